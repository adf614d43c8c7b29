"""What an appender tells when its connection breaks or its bookie refuses, over each transport."""

from __future__ import annotations

import asyncio

from spark_ledger.transport.base import AddResult
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from tests.contracts.test_transport import (
    BOOKIE,
    LEDGER,
    World,
    acknowledged,
    make_run,
    on_both,
    until,
)


@on_both
async def test_runs_on_their_way_behind_a_refused_one_are_dropped(world: World) -> None:
    """Stored, they would be acknowledged together with the one that is not (rule P3)."""
    first, second = world.open(), world.open(8)
    world.bookie.refuse_next = BookieStatus.TOO_MANY_REQUESTS, "busy"
    for entry in range(4):
        first.send(make_run(entry))
    second.send(make_run(0, ledger=8))
    await until(lambda: len(world.results) == 2, "the refusal, and the answer to another ledger")
    busy = AddResult(BOOKIE, BookieStatus.TOO_MANY_REQUESTS, EntryId(0), "busy")
    assert busy in world.results
    assert [run.ledger_id for run in world.bookie.adds] == [8]


@on_both
async def test_appender_stays_with_its_connection_when_the_bookie_is_back(world: World) -> None:
    """What it was answered before the break says nothing of what is sent behind it (rule P3)."""
    answered, used, idle = world.open(9), world.open(), world.open(8)
    answered.send(make_run(0, ledger=9))
    await until(lambda: acknowledged(world) == 0, "the first add")
    world.results.clear()
    world.bookie.hold = True
    used.send(make_run(0))
    await until(lambda: len(world.bookie.adds) == 2, "the run arrives")
    await world.kill()
    await until(lambda: world.results, "the failure")
    await world.revive()
    world.bookie.hold = False
    world.bookie.release()
    idle.send(make_run(0, ledger=8))
    answered.send(make_run(1, ledger=9))
    await until(lambda: len(world.results) == 3, "both fail when they are used")
    assert {result.status for result in world.results} == {BookieStatus.UNAVAILABLE}
    assert [result.last_entry for result in world.results] == [0, 0, 1]
    assert [run.ledger_id for run in world.bookie.adds] == [9, LEDGER]
    late = world.open(LedgerId(8))
    late.send(make_run(0, ledger=8))
    await until(lambda: len(world.results) == 4, "a new appender takes the new connection")
    assert world.results[3].status is BookieStatus.OK


@on_both
async def test_calls_under_way_to_a_bookie_that_dies_are_unavailable_at_once(world: World) -> None:
    """And those that it has still to answer when the transport is closed."""
    for end in (world.kill, world.transport.close):
        world.bookie.hold = True
        fence = asyncio.create_task(
            world.transport.read_last_confirmed(BOOKIE, LEDGER, fence=True, timeout_s=10)
        )
        await until(lambda: LEDGER in world.bookie.ledgers, "the question arrives")
        await end()
        assert (await fence).status is BookieStatus.UNAVAILABLE
        if end == world.kill:
            world.bookie.ledgers.clear()
            await world.revive()
            await until_it_answers(world)


async def until_it_answers(world: World) -> None:
    async with asyncio.timeout(10):
        while (await world.read(0, 0))[-1].status is BookieStatus.UNAVAILABLE:
            await asyncio.sleep(0.01)
