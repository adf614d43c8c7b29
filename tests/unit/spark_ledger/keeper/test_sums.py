"""What keepers have done is summed up over all of them, and what was wrong is told while it is."""

from __future__ import annotations

import logging
from typing import NoReturn

import pytest

from spark_ledger.errors import RecoveryError
from spark_ledger.keeper import streams
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import (
    STATE_PATH,
    Done,
    Found,
    KeeperState,
    ask_for_audit,
    read_audit,
    read_state,
)
from spark_ledger.limits.keeper import STREAM_SWEEP_PASSES
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore
from spark_ledger.stream.model import Retention
from spark_ledger.stream.nodes import STREAMS_ROOT
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_audit import AUDIT_S, elected, left, stream_of_three
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, keeper, new_stream, passes, task

YEAR_MS = 365 * 24 * 3600 * 1000


async def state_of(cared: Keeper) -> KeeperState:
    found = await read_state(cared._store)
    assert found is not None
    return found.value


def test_next_keeper_adds_to_what_the_ones_before_have_done() -> None:
    before = KeeperState(
        host="other",
        pid=7,
        passes=100,
        worked_s=5_000.0,
        done=Done(recovered=11, deleted=22, reclaimed=33, streams_finished=44),
        found=Found(open=9, failing=9),
        last_error="of the one before",
    )

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        await client.store.create("keeper", b"")
        await client.store.create(STATE_PATH, encode_node(before))
        await new_stream(client)
        await task(world, 1)  # unnamed, and its writer is gone
        cared = await keeper(world, clock, owner_grace_s=0.0, unnamed_grace_s=50.0)
        assert await cared.elect()
        await passes(cared, clock, 100)
        await cared._save()
        state = await state_of(cared)
        assert state.done == Done(recovered=11, deleted=23, reclaimed=33, streams_finished=44)
        assert (state.passes, state.worked_s, state.last_error) == (101, 5_100.0, "")
        assert state.found == Found() and state.pid != 7

    run(test)


def test_audits_are_counted_each_and_together() -> None:
    async def test(world: World) -> None:
        await stream_of_three(world)
        clock = Clock()
        cared = await elected(world, clock, audit_s=0.0)
        for number in (1, 2):
            await left(world, 90 + number)
            for _ in range(2):  # the first one notes it
                await ask_for_audit(cared._store)
                await passes(cared, clock, AUDIT_S)
            found = await read_audit(cared._store)
            assert found is not None and not found.value.is_asked
            assert (found.value.last.ledgers, found.value.last.deleted) == (1, 1)
            assert found.value.deleted == number == cared._audit.deleted == cared.done["audited"]
            assert found.value.begun_s is None and found.value.next_page == 0
            worked_s = clock.now - 1000.0
            assert worked_s - AUDIT_S < found.value.ended_s <= worked_s
        await passes(cared, clock, 2 * AUDIT_S)
        again = await read_audit(cared._store)
        assert again == found, "none begins that nobody asks for"

    run(test)


def test_ledgers_that_were_given_back_count_once_and_streams_are_swept_now_and_then() -> None:
    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        stream = await new_stream(client)
        await closed_commits(world, stream, 4)
        await stream.retention.truncate((3,))
        cared = await elected(world, clock, audit_s=0.0)
        swept: list[str] = []
        store = cared._store
        assert isinstance(store, MemoryMetadataStore)

        def interpose(name: str, path: str) -> Fault:
            if (name, path) == ("children", STREAMS_ROOT):
                swept.append(path)
            return Fault()

        store.interpose = interpose
        for _ in range(4 * STREAM_SWEEP_PASSES):
            await passes(cared, clock, 10)
            await cared._save()
        assert (await state_of(cared)).done == Done(reclaimed=3)
        assert len(swept) == 4

    run(test)


def test_clock_that_jumps_is_told_once_and_again_when_it_jumps_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(world: World) -> None:
        clock = Clock()
        cared = await elected(world, clock, audit_s=0.0)
        wall_ms, ahead_ms = cared._stream_keeper._wall_ms, [0]
        cared._stream_keeper._wall_ms = lambda: wall_ms() + ahead_ms[0]
        for times in (1, 2):
            for ahead_ms[0] in (0, YEAR_MS):
                await passes(cared, clock, 600)
            assert caplog.text.count("it jumped") == times

    with caplog.at_level(logging.WARNING, logger=streams.__name__):
        run(test)


def test_ledger_that_always_fails_is_tried_each_hour_and_told_once_for_each_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its bookies may be gone for days: it must not fill a log, nor wait for days behind them."""
    pauses: list[float] = []

    async def test(world: World) -> None:
        clock, ledger_id = Clock(), LedgerId(7)
        cared = await keeper(world, clock)
        for _ in range(12):
            for _ in range(2):  # a look within the pause says nothing
                cared._settler._fail(
                    ledger_id, "is not recovered yet", RecoveryError("too few answer")
                )
            failed = cared._settler._failed[ledger_id]
            pauses.append(failed.pause_s)
            assert failed.again_at == clock.now + failed.pause_s
            clock.now = failed.again_at
        assert cared._settler.last_error == "ledger 7: too few answer"

    with caplog.at_level(logging.WARNING):
        run(test)
    assert pauses == [min(10.0 * 2**n, 3600.0) for n in range(12)]
    assert caplog.text.count("ledger 7 is not recovered yet") == 12


def test_ledger_that_failed_and_was_recovered_by_somebody_else_is_failing_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        writing, other, clock = await world.client(), await world.client(), Clock()
        writer = await writing.create_ledger()
        await writer.append(b"x")
        await writing.close()
        cared = await keeper(world, clock, owner_grace_s=0.0)
        assert await cared.elect()

        async def fails(*_given: object, **_options: object) -> NoReturn:
            raise RecoveryError("too few answer")

        monkeypatch.setattr(cared._client, "open_ledger", fails)
        await passes(cared, clock, 30)
        assert (cared.found.open, cared.found.failing) == (1, 1)
        await other.open_ledger(writer.ledger_id, recover=True)
        await passes(cared, clock, 10)
        assert cared.found == Found()

    run(test)


def test_ledger_that_nothing_names_is_deleted_after_its_grace_however_many_audits_see_it() -> None:
    async def test(world: World) -> None:
        await stream_of_three(world)
        lost = {segment.ledger_id for segment in await left(world, 99)}
        clock = Clock()
        cared = await elected(world, clock, unnamed_grace_s=3.0 * AUDIT_S)
        await passes(cared, clock, 3 * AUDIT_S)
        assert lost <= await ledgers(world), "each audit has seen it for less than its grace"
        await passes(cared, clock, 2 * AUDIT_S)
        assert not lost & await ledgers(world)

    run(test)


def test_error_of_a_sweep_is_told_until_a_sweep_meets_none() -> None:
    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        stream = await new_stream(client)
        await stream.retention.set_limits(Retention(rows=1))
        cared = await elected(world, clock, audit_s=0.0)
        path = "streams/s/config"
        good = (await client.store.get(path)).value
        for data, is_told in ((b"{}", True), (b"{}", True), (good, False)):
            await client.store.put(path, data, (await client.store.get(path)).version)
            await passes(cared, clock, 60)  # one of them sweeps
            await cared._save()
            assert ("stream 's'" in (await state_of(cared)).last_error) is is_told

    run(test)
