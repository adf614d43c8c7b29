"""What an appender tells when its connection breaks or its bookie refuses, over each transport."""

from __future__ import annotations

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
