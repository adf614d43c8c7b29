"""The keeper's clock cannot jump ahead, in one keeper or from one to the next (rule K7)."""

from __future__ import annotations

import pytest

from spark_ledger.errors import ConflictError
from spark_ledger.keeper import streams
from spark_ledger.keeper.clock import SteadyClock
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.nodes import read_clock, write_clock
from spark_ledger.keeper.streams import StreamKeeper
from spark_ledger.metadata.base import Check, MetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected
from tests.unit.spark_ledger.keeper.world import Clock, passes, read, rows

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def test_clock_that_runs_evenly_is_believed() -> None:
    clock = SteadyClock(1000, 5.0)
    assert clock.read(1000, 5.0) == 1000
    assert clock.read(61_000, 65.0) == 61_000
    assert not clock.has_jumped and clock.behind_ms == 0


def test_clock_that_jumps_is_followed_at_ten_times_its_pace() -> None:
    clock = SteadyClock(0, 0.0)
    assert clock.read(YEAR_MS, 60.0) == 600_000
    assert clock.has_jumped
    assert clock.read(YEAR_MS + 60_000, 120.0) == 1_200_000
    assert clock.read(130_000, 130.0) == 130_000  # it was set right
    assert not clock.has_jumped


def test_clock_that_is_set_back_is_followed_at_once() -> None:
    clock = SteadyClock(YEAR_MS, 0.0)
    assert clock.read(5, 10.0) == 5


def test_clock_that_was_set_back_and_right_again_is_behind_by_ten_times_that_time() -> None:
    clock = SteadyClock(YEAR_MS, 0.0)
    assert clock.read(5, 60.0) == 5
    assert SteadyClock(5, 60.0, saved_ms=clock.reached_ms).read(5, 120.0) == 5
    assert clock.read(YEAR_MS + 61_000, 61.0) == YEAR_MS - 590_000
    assert clock.behind_ms == 651_000 and not clock.has_jumped
    assert clock.read(YEAR_MS + 140_000, 140.0) == YEAR_MS + 140_000


def test_first_keeper_whose_clock_is_ahead_is_believed_no_longer_than_it_takes() -> None:
    clock = SteadyClock(YEAR_MS, 0.0)
    assert clock.read(HOUR_MS, 1.0) == HOUR_MS
    assert clock.read(2 * HOUR_MS, YEAR_MS / 10_000) == 2 * HOUR_MS  # five weeks later
    assert clock.read(YEAR_MS, YEAR_MS / 10_000 + 1.0) == 2 * HOUR_MS + 10_000


def test_next_keeper_goes_on_where_the_last_one_was() -> None:
    clock = SteadyClock(YEAR_MS, 0.0, saved_ms=7)
    assert clock.has_jumped
    assert clock.read(YEAR_MS, 1.0) == 10_007
    assert SteadyClock(5, 0.0, saved_ms=YEAR_MS).read(5, 0.0) == 5


def test_monotonic_clock_that_stands_still_adds_nothing() -> None:
    clock = SteadyClock(0, 100.0)
    assert clock.read(YEAR_MS, 50.0) == 0
    assert clock.read(YEAR_MS, 100.0) == 0


def test_keeper_that_another_one_overtook_goes_on_from_what_that_has_written() -> None:
    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        cared = StreamKeeper(
            client,
            lambda: Check("", -1),
            KeeperConfig(dropped_grace_s=0.0, deletes_per_s=1.0),
            clock=clock,
            worked_s=clock,
            wall_ms=lambda: YEAR_MS,
        )
        await write_clock(client.store, 1000, None)
        with pytest.MonkeyPatch.context() as patch:  # it looked before that was written
            patch.setattr(streams, "read_or_renew_clock", _nothing)
            with pytest.raises(ConflictError):
                await cared.sweep()
        clock.now += 10.0
        await cared.sweep()
        written = await read_clock(client.store)
        assert written is not None and written.value.time_ms <= 101_000

    run(test)


async def _nothing(_: MetadataStore, __: int) -> None:
    return None


def test_clock_set_back_beside_a_commit_dated_back_drops_nothing_young() -> None:
    """To a clock that is behind all that was just committed is dated ahead, and has no age."""

    async def test(world: World) -> None:
        client = await world.client()
        stream = await StreamCatalog(client).create(
            "s", rows(1).schema, retention=Retention(age_s=7 * 24 * 3600.0)
        )
        await closed_commits(world, stream, 3)
        writers_ms = stream._committer.clock_ms
        stream._committer.clock_ms = lambda: writers_ms() - 365 * 24 * 3600 * 1000
        await closed_commits(world, stream, 1)
        stream._committer.clock_ms = writers_ms
        await closed_commits(world, stream, 1)
        clock = Clock()
        cared = await elected(world, clock)
        wall_ms = cared._stream_keeper._wall_ms
        await passes(cared, clock, 60)
        cared._stream_keeper._wall_ms = lambda: wall_ms() - 3600 * 1000
        await passes(cared, clock, 600)
        assert await read(stream) == [0, 1, 2, 3, 4]

    run(test)
