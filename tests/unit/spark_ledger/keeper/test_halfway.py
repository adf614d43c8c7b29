"""A recovery that somebody begins and does not end: the keeper ends it, whoever lives (rule K3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import ConfigurationError, FencedError
from spark_ledger.keeper.gone import GoneOwners
from spark_ledger.keeper.halfway import HalfwayRecoveries
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.limits.keeper import LIVING_READ_S
from spark_ledger.types import LedgerId, LedgerState
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.keeper.world import (
    Clock,
    keeper,
    new_stream,
    passes,
    read,
    rows,
    unsettled,
)
from tests.unit.spark_ledger.metadata.test_ledgers import ledger


@asynccontextmanager
async def halfway(world: World, ledger_id: LedgerId) -> AsyncIterator[asyncio.Task[LedgerReader]]:
    """A recovery that has marked the ledger and fenced its bookies, and stands still in the block;
    then it goes on, if it was not cancelled."""
    client = await world.client()
    transport: Any = client.context.transport
    honest, stands, goes_on = transport.read, asyncio.Event(), asyncio.Event()

    async def wait(*args: Any, **options: Any) -> Any:
        stands.set()
        await goes_on.wait()
        async for chunk in honest(*args, **options):
            yield chunk

    transport.read = wait
    recovery = asyncio.create_task(client.open_ledger(ledger_id, recover=True))
    await stands.wait()
    yield recovery
    goes_on.set()
    await asyncio.gather(recovery, return_exceptions=True)


@pytest.mark.parametrize("looks_before", [True, False])
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_recovery_that_stands_still_is_ended_while_the_owner_lives(
    is_cancelled: bool, looks_before: bool
) -> None:
    """Nobody else did: the ledger's owner has stopped writing to it, and tails wait for its end.
    Who began to recover it may be back, and finds the same end."""

    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer, beside = await client.create_ledger(), await client.create_ledger()
        for number in range(3):
            await writer.append(b"%d" % number)
        await beside.append(b"0")
        clock = Clock()
        cared = await keeper(world, clock)
        assert await cared.elect()
        if looks_before:
            await passes(cared, clock, 10)
        reader = await other.open_ledger(writer.ledger_id)
        tail = asyncio.create_task(_numbers(reader))
        async with halfway(world, writer.ledger_id) as recovery:
            if is_cancelled:
                recovery.cancel()
            with pytest.raises(FencedError):
                await writer.append(b"3")
            await writer.close()
            open_ledger = await other.ledger_metadata(writer.ledger_id)
            assert open_ledger.state is LedgerState.IN_RECOVERY
            await passes(cared, clock, 30)
            assert len((await unsettled(world))[0]) == 2, "whoever recovers it may be at it"
            await passes(cared, clock, LIVING_READ_S + 10)
            assert await unsettled(world) == ([beside.ledger_id], [])
            assert cared.done["recovered"] == 1
            assert await asyncio.wait_for(tail, 5) == [0, 1, 2]
        if not is_cancelled:
            assert recovery.result().is_closed and recovery.result().last_add_confirmed == 2
        assert await beside.append(b"on") == 1

    run_virtually(test)


async def _numbers(reader: LedgerReader) -> list[int]:
    return [entry.entry_id async for entry in reader.tail()]


@pytest.mark.parametrize("is_committed", [True, False])
def test_ledger_of_a_stream_that_somebody_began_to_recover_is_closed(is_committed: bool) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        writer = stream.writer()
        await writer.write(rows(1))
        segments = await writer.finish()
        if is_committed:
            await stream.commit_segments(segments)
        async with halfway(world, segments[0].ledger_id) as recovery:
            recovery.cancel()
            clock = Clock()
            cared = await keeper(world, clock)
            assert await cared.elect()
            await passes(cared, clock, 50)  # a new keeper looks at each ledger once
        assert await unsettled(world) == ([], [] if is_committed else [segments[0].ledger_id])
        assert await read(stream) == ([1] if is_committed else [])
        assert (
            cared._settler._halfway._ledgers == set() and cared._settler._halfway._due_at == {}
        ), "it is closed"
        await writer.close()

    run(test)


@pytest.mark.parametrize("step_s", [10.0, 170.0])
def test_recovery_that_stands_still_is_ended_though_each_sweep_fails_and_passes_are_long(
    step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of a later format, perhaps, and retention that has much to catch up with."""

    async def test(world: World) -> None:
        client, clock = await world.client(), Clock()
        writer = await client.create_ledger()
        await writer.append(b"0")
        cared = await keeper(world, clock)
        assert await cared.elect()

        async def sweep(**_options: bool) -> None:
            for _ in range(round(step_s / 10.0)):
                clock.now += 10.0
                cared._check()  # before each change
            raise ConfigurationError("a node of a later format")

        monkeypatch.setattr(cared._stream_keeper, "sweep", sweep)
        await cut_short(cared)
        async with halfway(world, writer.ledger_id) as recovery:
            recovery.cancel()
            for _ in range(round((LIVING_READ_S + 30.0) / step_s) + 3):
                await cut_short(cared)
            assert await unsettled(world) == ([], []) and cared.done["recovered"] == 1

    run_virtually(test)


async def cut_short(cared: Keeper) -> None:
    """One pass, which ends in its sweep."""
    with pytest.raises(ConfigurationError, match="a later format"):
        await cared.run_pass()


def test_each_ledger_of_an_owner_that_lives_is_looked_at_once_in_ten_minutes() -> None:
    seen, looks, now = HalfwayRecoveries(GoneOwners(100.0)), list[float](), 1234.0
    open_one = ledger(12_345_678)
    while now < 1234.0 + 3.5 * LIVING_READ_S:
        if seen.is_due(open_one.ledger_id, now):
            looks.append(now)
            assert seen.seen_s(open_one, now) is None
        now += 7.0
    assert looks[0] == 1234.0 and len(looks) == 4, "then at its own times"
    assert all(after - before <= LIVING_READ_S + 7.0 for before, after in pairwise(looks))
    assert seen.is_due(open_one.ledger_id, now + LIVING_READ_S), (
        "and if it had no turn, at the next"
    )
    assert seen.is_due(open_one.ledger_id, now + 2.5 * LIVING_READ_S)


def test_ledgers_of_living_owners_are_not_all_read_in_one_pass() -> None:
    """A new keeper has read all of them in its first one."""
    seen, ledgers = HalfwayRecoveries(GoneOwners(100.0)), [ledger(i) for i in range(610)]
    for _ in range(2):  # and it does so again behind a reconnect
        for each in ledgers:
            seen.seen_s(each, 5000.0)
    due = [sum(seen.is_due(LedgerId(i), 5000.0 + t) for i in range(610)) for t in range(601)]
    assert due[0] == 0 and due[-1] == 610
    assert max(after - before for before, after in pairwise(due)) <= 20


def test_ledger_is_looked_at_in_each_pass_from_when_it_was_seen_in_recovery() -> None:
    seen = HalfwayRecoveries(GoneOwners(100.0))
    healthy = ledger(1)
    recovering = healthy.with_changes(state=LedgerState.IN_RECOVERY)
    assert seen.seen_s(healthy, 0.0) is None and not seen.is_due(LedgerId(1), 7.0)
    assert [seen.seen_s(recovering, now) for now in (10.0, 20.0, 35.0)] == [0.0, 10.0, 25.0]
    assert seen.is_due(LedgerId(1), 36.0)
    seen.keep_only({LedgerId(2)})
    assert seen.seen_s(recovering, 40.0) == 0.0, "closed, and forgotten"
