"""The grace of dropped rows is shorter while more waits for it than retention keeps (rule K8)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NoReturn

import pytest

from spark_ledger.errors import (
    BookieUnavailableError,
    ConflictError,
    DataLossError,
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
)
from spark_ledger.keeper import streams
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import read_swept
from spark_ledger.limits.keeper import (
    CONFLICTS_TO_SAY,
    DROPPED_LEAST_S,
    STREAM_SWEEP_PASSES,
)
from spark_ledger.limits.metadata import METADATA_TIMEOUT_S
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.commit.committer import COMMIT_TIMEOUT_S
from spark_ledger.stream.format.metadata_column import PositionedBatch
from spark_ledger.stream.model import Retention
from spark_ledger.stream.nodes import STREAMS_ROOT
from spark_ledger.stream.retention.handle import StreamRetention
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.keeper.test_streams import (
    closed_commits,
    elected,
    ledgers,
    live_ledgers,
)
from tests.unit.spark_ledger.keeper.world import SCHEMA, Clock, new_stream, passes, read
from tests.unit.spark_ledger.stream.world import small_manifests

GRACE_S, LEAST_S = 300.0, 75.0


@pytest.fixture(autouse=True)
def any_number_of_bytes_is_worth_a_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HURRIED_BYTES_MIN", 0)


async def crowded(world: World, clock: Clock, **limits: int) -> tuple[Stream, Keeper]:
    """Ten commits, a retention of three of them, and a keeper; of a byte each, unless limits say
    what is kept."""
    stream = await new_stream(await world.client())
    await closed_commits(world, stream, 10)
    size_bytes = (await stream.retention.extent()).live_bytes // 10
    assert (await stream.commit(4)).bytes_before == 4 * size_bytes, "commits are of one size"
    retention = Retention(**limits) if limits else Retention(size_bytes=3 * size_bytes)
    await stream.retention.set_limits(retention)
    keeper = await elected(world, clock, dropped_grace_s=GRACE_S, dropped_least_s=LEAST_S)
    await passes(keeper, clock, 10)
    assert (await stream.head()).earliest_commit == 7
    return stream, keeper


async def given_back(stream: Stream) -> int:
    """Up to which commit nothing is left."""
    return (await stream._log.manifests.read_root(latest=True)).dropped


def test_least_is_longer_than_a_commit_looks_for_its_lost_reply() -> None:
    assert DROPPED_LEAST_S >= COMMIT_TIMEOUT_S + METADATA_TIMEOUT_S
    assert LEAST_S == DROPPED_LEAST_S


@pytest.mark.parametrize("manifests", [False, True])
def test_no_more_waits_for_the_grace_than_retention_keeps(
    manifests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manifests:
        small_manifests(monkeypatch)

    async def test(world: World) -> None:
        clock = Clock()
        stream, keeper = await crowded(world, clock)
        await passes(keeper, clock, 70)
        assert await given_back(stream) == 0
        await passes(keeper, clock, 20)
        assert await given_back(stream) == 4, "three that are kept, and as many that wait"
        await passes(keeper, clock, 180)
        assert await given_back(stream) == 4
        await passes(keeper, clock, 90)
        assert await given_back(stream) == 7
        assert await read(stream) == [7, 8, 9]
        assert await ledgers(world) == await live_ledgers(stream)

    run(test)


def test_rows_that_are_dropped_later_have_the_least_too() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        stream, keeper = await crowded(world, clock)
        await passes(keeper, clock, 60)
        await closed_commits(world, stream, 9)
        await passes(keeper, clock, 70)
        assert (await stream.head()).earliest_commit == 16
        assert await given_back(stream) == 7, "what was dropped a minute later waits"
        await passes(keeper, clock, 40)
        assert await given_back(stream) == 13

    run(test)


def test_rows_beyond_other_limits_wait_for_the_grace() -> None:
    """Whoever keeps rows by number or age, or overwrites a stream, has said nothing of bytes."""

    async def test(world: World) -> None:
        clock = Clock()
        stream, keeper = await crowded(world, clock, rows=3)
        await passes(keeper, clock, 280)
        assert await given_back(stream) == 0
        await passes(keeper, clock, 60)
        assert await given_back(stream) == 7

    run(test)


def test_grace_that_is_shorter_than_the_least_counts() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        stream, _keeper = await crowded(world, clock)
        await _keeper._election.resign()
        hurried = await elected(world, clock, dropped_grace_s=20.0, dropped_least_s=LEAST_S)
        await passes(hurried, clock, 90)
        assert await given_back(stream) == 7

    run(test)


def test_reader_that_planned_before_the_drop_has_its_rows_or_an_error() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 10)
        head = await stream.head()
        size_bytes = (await stream.retention.extent()).live_bytes
        await stream.retention.set_limits(Retention(size_bytes=3 * size_bytes // 10))
        keeper = await elected(world, clock, dropped_grace_s=GRACE_S, dropped_least_s=LEAST_S)
        whole, cut = 0, 0
        for _ in range(40):
            await passes(keeper, clock, 10)
            task = await StreamCatalog(await world.client()).open("s")
            try:
                chunks = task.read_commit_chunks(range(10), head.earliest, head.end)
                found = await numbers(chunks)
            except DataLossError:
                cut += 1
                assert whole >= LEAST_S / 10, "it had the least at any rate"
            else:
                assert found == list(range(10)) and not cut
                whole += 1
        assert whole and cut

    run_virtually(test)


async def numbers(chunks: AsyncGenerator[list[PositionedBatch], None]) -> list[int]:
    found: list[Any] = []
    async with aclosing(chunks):
        async for chunk in chunks:
            for each in chunk:
                found += each.batch.column("n").to_pylist()
                assert found == list(range(len(found))), "in order, and no others"
    return found


def test_stream_of_which_much_waits_is_visited_at_each_pass() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        stream, keeper = await crowded(world, clock)
        await new_stream(await world.client(), "calm")
        await closed_commits(world, stream, 5)
        visits: Counter[str] = Counter()
        sweeper, visit = keeper._stream_keeper, keeper._stream_keeper._visit

        async def counting(name: str, *arguments: Any) -> None:
            visits[name] += 1
            await visit(name, *arguments)

        sweeper._visit = counting  # type: ignore[assignment, method-assign]
        await passes(keeper, clock, 50)
        assert visits == {"s": 5}
        assert (await stream.head()).earliest_commit == 12
        await passes(keeper, clock, 400)
        visits.clear()
        await passes(keeper, clock, 60)
        assert visits == {"s": 1, "calm": 1}, "nothing is left to hurry for"

    run(test)


@pytest.mark.parametrize(
    "error", [ConflictError("changed"), BookieUnavailableError("a"), MetadataUnavailableError("b")]
)
@pytest.mark.parametrize("step", ["apply", "extent"])
def test_stream_whose_visit_fails_is_visited_at_the_next_pass_too(
    error: LedgerError, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is written until the next whole sweep would lie beside what waits already."""

    async def test(world: World) -> None:
        clock = Clock()
        _, keeper = await crowded(world, clock)
        sweeper = keeper._stream_keeper
        before = await read_swept(keeper._store)
        assert before is not None and before.value.reclaimable_commits == 7
        assert sweeper._hurried == {"s"}
        right = getattr(StreamRetention, step)

        async def failing(*_arguments: object) -> NoReturn:
            raise error

        monkeypatch.setattr(StreamRetention, step, failing)
        clock.now += 10.0
        with contextlib.suppress(MetadataUnavailableError):
            await keeper.run_pass()
        assert await read_swept(keeper._store) == before, "it waits still"
        monkeypatch.setattr(StreamRetention, step, right)
        for _ in range(7):
            clock.now += 10.0
            assert sweeper.hurries
            await keeper.run_pass()
        assert sweeper._swept, "its visits give back what has waited"

    run(test)


def test_stream_that_is_deleted_is_not_hurried_for() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        stream, keeper = await crowded(world, clock)
        assert keeper._stream_keeper.hurries
        await StreamCatalog(await world.client()).delete("s")
        await stream.close()
        await passes(keeper, clock, 10)
        assert not keeper._stream_keeper.hurries

    run(test)


def test_stream_that_keeps_all_from_now_on_is_not_hurried_for() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        stream, keeper = await crowded(world, clock)
        assert keeper._stream_keeper.hurries
        await stream.retention.set_limits(Retention())
        await passes(keeper, clock, 10)
        assert not keeper._stream_keeper.hurries

    run(test)


@pytest.mark.parametrize(
    "error", [DataLossError("the page is gone"), NotFoundError("its ledger is gone")]
)
@pytest.mark.parametrize("step", ["last_followed_by", "get"])
def test_page_that_a_dead_keeper_took_away_ends_no_sweep(
    error: LedgerError, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the look for how much waits meets it here."""

    async def test(world: World) -> None:
        clock = Clock()
        stream, keeper = await crowded(world, clock)

        async def lost(*_arguments: object) -> int:
            raise error

        crowded_at = StreamRetention.crowded

        async def with_lost(retention: StreamRetention, size_bytes: int) -> int:
            with monkeypatch.context() as patch:
                patch.setattr(CommitLog, step, lost)
                return await crowded_at(retention, size_bytes)

        monkeypatch.setattr(StreamRetention, "crowded", with_lost)
        await passes(keeper, clock, 340)
        assert await given_back(stream) == 7 and keeper._stream_keeper.last_error == ""

    run(test)


@pytest.mark.parametrize("goes_on", [False, True])
def test_stream_that_changes_while_it_is_swept_is_an_error_only_if_that_goes_on(
    goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Writers seal pages meanwhile, and the next pass goes on."""
    caplog.set_level("INFO", "spark_ledger.keeper.streams")

    async def test(world: World) -> None:
        clock = Clock()
        stream, keeper = await crowded(world, clock)
        left, change = 1_000 if goes_on else CONFLICTS_TO_SAY - 1, keeper._store.transaction

        async def sealed_meanwhile(operations: Sequence[Operation]) -> None:
            nonlocal left
            if left and any(each.path == "streams/s/manifests" for each in operations):
                left -= 1
                raise ConflictError("sealed meanwhile")
            await change(operations)

        keeper._store.transaction = sealed_meanwhile  # type: ignore[method-assign]
        clock.now += LEAST_S
        for _pass in range(CONFLICTS_TO_SAY):
            clock.now += 1.0
            await keeper.run_pass()
        assert await given_back(stream) == (0 if goes_on else 4)
        warned = [each.message for each in caplog.records if each.levelname == "WARNING"]
        assert len(warned) == goes_on == bool(keeper._stream_keeper.last_error)

    run(test)


def test_deletion_that_was_cut_off_is_finished_though_another_stream_is_in_a_hurry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The visits to that one in between say nothing of who was marked as deleted."""

    async def test(world: World) -> None:
        clock = Clock()
        _, keeper = await crowded(world, clock)
        catalog = StreamCatalog(await world.client())
        await catalog.create("gone", SCHEMA)

        async def cut_off(*_: object) -> None:
            raise ConflictError("killed here")

        with monkeypatch.context() as patch:
            patch.setattr(catalog, "_delete_nodes", cut_off)
            with pytest.raises(ConflictError):
                await catalog.delete("gone")
        for _ in range(3 * STREAM_SWEEP_PASSES):
            clock.now += 1.0
            await keeper.run_pass()
            assert keeper._stream_keeper.hurries
        assert await keeper._store.children(STREAMS_ROOT) == ["s"]

    run_virtually(test)


def test_conflicts_now_and_then_are_no_error_however_many_there_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        clock = Clock()
        _, keeper = await crowded(world, clock)
        sweeper = keeper._stream_keeper
        visit, visits = sweeper._visit, 0

        async def mostly_changed(*words: Any) -> None:
            nonlocal visits
            visits += 1
            if visits % CONFLICTS_TO_SAY:
                raise ConflictError("sealed meanwhile")
            await visit(*words)

        monkeypatch.setattr(sweeper, "_visit", mostly_changed)
        for _ in range(3 * CONFLICTS_TO_SAY):
            clock.now += 1.0
            await keeper.run_pass()
            assert sweeper.last_error == ""
        assert visits == 3 * CONFLICTS_TO_SAY

    run_virtually(test)
