"""A sign that ledgers were deleted starts a pass sooner, and does nothing else (rule G10)."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bookie_server.collection.collector import LedgerCollector
from spark_ledger.metadata.deletions import DELETIONS_PATH, give_sign
from spark_ledger.metadata.memory import Fault, Interpose, Outcome
from tests.unit.bookie_server.collection.cluster import World
from tests.unit.virtual_time import run_in_virtual_time

HOUR_S = 3600.0


def run(
    act: Callable[[World, LedgerCollector], Awaitable[None]], interpose: Interpose | None = None
) -> None:
    """With a bookie that holds ledgers 1 to 9, a sign of before, and an hour between passes."""

    async def main() -> None:
        world = World(interpose)
        await world.make(*range(1, 10))
        await give_sign(world.operator)
        world.interval_s = HOUR_S
        collector = world.collector()
        collector.start()
        await asyncio.sleep(10)
        assert collector.stats().passes == 0, "signs of before it started are no news"
        try:
            await act(world, collector)
        finally:
            await collector.stop()

    run_in_virtual_time(main())


def test_deleted_ledger_goes_soon_after_the_sign() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        await world.delete(2)
        await asyncio.sleep(60)
        assert world.shelf.deleted == [], "nobody has told"
        await give_sign(world.operator)
        await asyncio.sleep(7)
        assert world.shelf.deleted == [2]
        await asyncio.sleep(200)
        assert collector.stats().passes == 2, "one sign, one pass; and one as that gave up much"

    run(act)


def test_first_sign_of_a_cluster_is_one() -> None:
    async def act(world: World, _collector: LedgerCollector) -> None:
        await world.operator.delete(DELETIONS_PATH)
        await asyncio.sleep(60)
        await world.delete(2)
        await give_sign(world.operator)
        await asyncio.sleep(30)
        assert world.shelf.deleted == [2]

    run(act)


def test_signs_that_do_not_end_start_no_pass_within_the_pause() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        began: list[float] = []
        loop, begin = asyncio.get_running_loop(), collector._begin

        async def noting(*arguments: object, **options: object) -> object:
            began.append(loop.time())
            return await begin(*arguments, **options)  # type: ignore[arg-type]

        collector._begin = noting  # type: ignore[assignment, method-assign]
        for _ in range(250):
            await give_sign(world.operator)
            await asyncio.sleep(1)
        pauses = [later - before for before, later in itertools.pairwise(began)]
        assert len(began) > 10 and min(pauses) >= world.sign_pause_s
        assert world.shelf.deleted == [], "nothing was deleted, whatever the signs say"

    run(act)


def test_pass_that_takes_long_is_not_started_by_each_sign() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        async def slowly(work: Callable[[], None]) -> None:
            await asyncio.sleep(2.0)
            work()

        collector._run_on_disk = slowly
        for _ in range(250):
            await give_sign(world.operator)
            await asyncio.sleep(1)
        report = collector.report
        assert report.duration_s > 10
        assert 1 <= report.passes_total <= 3, "a tenth of the time"

    run(act)


def test_sign_that_comes_during_a_pass_starts_another() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        async def late() -> None:
            await world.delete(3)
            await give_sign(world.operator)

        def before_delete() -> None:
            world.shelf.before_delete = lambda: None
            tasks.append(asyncio.get_running_loop().create_task(late()))

        tasks: list[asyncio.Task[None]] = []
        await world.make(*range(10, 200))  # so that no pass gives up much
        await world.delete(2)
        world.shelf.before_delete = before_delete
        await give_sign(world.operator)
        await asyncio.sleep(40)
        assert tasks and world.shelf.deleted == [2, 3]

    run(act)


def test_sign_is_no_word_of_an_operator() -> None:
    """A pass that it starts asks as any other one before it lets too much go (rule G6)."""

    async def act(world: World, collector: LedgerCollector) -> None:
        await world.make(*range(10, 300))
        await world.delete(*range(1, 250))
        for _ in range(5):
            await give_sign(world.operator)
            await asyncio.sleep(30)
        assert collector.stats().passes >= 4 and world.shelf.deleted == []
        assert "share_max" in collector.last_error

    run(act)


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.LOST_REPLY])
def test_sign_that_cannot_be_read_starts_and_stops_nothing(outcome: Outcome) -> None:
    fails = False

    def interpose(_name: str, path: str) -> Fault:
        return Fault(outcome) if fails and path == DELETIONS_PATH else Fault()

    async def act(world: World, collector: LedgerCollector) -> None:
        nonlocal fails
        fails = True
        await world.delete(2)
        await give_sign(world.operator)
        await asyncio.sleep(60)
        assert collector.stats().passes == 0
        fails = False
        await asyncio.sleep(7)
        assert world.shelf.deleted == [2]

    run(act, interpose)


@pytest.mark.parametrize("trouble", ["metadata", "disk", "deletion", "changed"])
def test_sign_of_a_pass_that_was_ended_early_starts_another_soon(trouble: str) -> None:
    """Else what was deleted keeps its bytes until the next pass of everyday."""
    fails = False

    def interpose(_name: str, path: str) -> Fault:
        hit = fails and trouble == "metadata" and path != DELETIONS_PATH
        return Fault(Outcome.UNAVAILABLE) if hit else Fault()

    async def act(world: World, collector: LedgerCollector) -> None:
        nonlocal fails

        def before_delete() -> None:
            if fails and trouble == "deletion":
                raise OSError(errno.EIO, "Input/output error")

        async def come_back() -> None:
            await asyncio.sleep(0.5)
            await world.name(2)

        fails = True
        world.why_not = "a disk stalls" if trouble == "disk" else ""
        world.shelf.before_delete = before_delete
        await world.delete(2)
        if trouble == "changed":
            look = collector._begin

            async def begin(*of: Any, **options: Any) -> Any:
                begun = await look(*of, **options)
                task = asyncio.get_running_loop().create_task(come_back())
                tasks.append(task)
                return begun

            tasks: list[asyncio.Task[None]] = []
            collector._begin = begin  # type: ignore[method-assign]
        await give_sign(world.operator)
        await asyncio.sleep(8)
        assert collector.stats()[:2] == (1, 1) and world.shelf.deleted == []
        fails, world.why_not = False, ""
        if trouble == "changed":
            collector._begin = look  # type: ignore[method-assign]
            await world.delete(2)
        await asyncio.sleep(30)
        assert collector.stats().aborted == 1 and world.shelf.deleted == [2]
        await asyncio.sleep(200)
        assert collector.stats().passes <= 3, "and no other"

    run(act, interpose)


def test_metadata_that_went_back_are_looked_at_soon_and_nothing_goes() -> None:
    """The sign of a restored ZooKeeper is another one, too: the pass ends by rule G4."""

    async def act(world: World, collector: LedgerCollector) -> None:
        await give_sign(world.operator)
        await asyncio.sleep(20)
        assert collector.stats()[:2] == (1, 0)
        await asyncio.sleep(20)
        await world.delete(2, 3)  # as if the backup were older than they
        await world.operator.delete(f"collection/{collector._bookie_id}")
        await world.operator.delete(DELETIONS_PATH)
        await asyncio.sleep(30)
        assert collector.stats()[:2] == (2, 1) and world.shelf.deleted == []
        assert "does not hold the last note of this bookie" in collector.last_error

    run(act)
