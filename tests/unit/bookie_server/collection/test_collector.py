"""When passes begin, what operators order, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from bookie_server.collection.collector import LedgerCollector
from bookie_server.core.collection import Cause
from spark_ledger.cli.collecting import Wanted, order
from spark_ledger.errors import NotFoundError
from spark_ledger.limits.collection import COLLECTION_STOP_S
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.collection import (
    CollectionOrder,
    order_path,
    read_collection,
    write_order,
)
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.types import BookieInfo
from tests.unit.bookie_server.collection.cluster import BOOKIE, World
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


def run(act: Callable[[World, LedgerCollector], Awaitable[None]]) -> None:
    """With a bookie that holds ledgers 1 to 4, of which 2 is deleted, and its collector."""

    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        await world.delete(2)
        collector = world.collector()
        collector.start()
        try:
            await act(world, collector)
        finally:
            await collector.stop()

    run_in_virtual_time(main())


def test_first_pass_waits_and_others_follow() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        await asyncio.sleep(40)
        assert collector.stats().passes == 0
        while not collector.stats().passes:
            await asyncio.sleep(1)
        assert world.shelf.deleted == [2]
        assert collector.stats()[:2] == (1, 0)
        assert collector.stats().freed_bytes == 100
        await asyncio.sleep(150)
        assert collector.stats().passes >= 2

    run(act)


def test_full_disk_has_passes_sooner() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        world.is_full = True
        await asyncio.sleep(12)
        assert world.shelf.deleted == [2]
        await asyncio.sleep(40)
        assert 3 <= collector.stats().passes <= 6

    run(act)


def test_pass_that_lets_go_of_much_is_followed_soon_by_others() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        while not world.shelf.deleted:
            await asyncio.sleep(1)
        for ledger_id in (3, 4):
            await world.delete(ledger_id)
            await asyncio.sleep(14)
            assert world.shelf.deleted[-1] == ledger_id
        await asyncio.sleep(12)
        passes = collector.stats().passes
        await asyncio.sleep(40)
        assert collector.stats().passes == passes, "the last one found nothing: there is time"

    run(act)


def test_new_ledgers_are_marked_soon() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        async def mark() -> str:
            found = await read_collection(world.operator, BOOKIE)
            return found.value.mark if found is not None else ""

        await asyncio.sleep(6)
        first = await mark()
        assert first
        await asyncio.sleep(20)
        assert await mark() == first, "nothing is written without need"
        await world.make(5)
        await asyncio.sleep(6)
        assert await mark() != first

    run(act)


def test_ledgers_that_a_process_took_before_it_died_are_marked_soon_by_the_next() -> None:
    """Else they would be taken for deleted until the first pass, if an older backup came back."""

    async def act(world: World, collector: LedgerCollector) -> None:
        await asyncio.sleep(6)
        await world.make(5)
        await collector.stop()
        before = await read_collection(world.operator, BOOKIE)
        world.new_ledgers = 0
        again = world.collector()
        again.start()
        await asyncio.sleep(6)
        after = await read_collection(world.operator, BOOKIE)
        assert before is not None and after is not None
        assert after.value.mark != before.value.mark
        await asyncio.sleep(20)
        last = await read_collection(world.operator, BOOKIE)
        assert last is not None and last.version == after.version, "and no other one"
        await again.stop()

    run(act)


def test_order_is_followed_at_once_and_once() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        await BookieRegistry(world.operator).register(BookieInfo(BOOKIE, "h:1"))
        ((bookie_id, report),) = await order(world.operator, Wanted([], 20.0, dry_run=True))
        assert bookie_id == BOOKIE and report is not None
        assert (report.dry_run, report.candidates, report.deleted) == (True, 1, 0)
        ((_, report),) = await order(world.operator, Wanted([BOOKIE], 20.0))
        assert report is not None and report.deleted == 1
        passes = collector.stats().passes
        await collector.stop()
        again = world.collector()
        again.start()
        await asyncio.sleep(30)
        assert (passes, again.stats().passes) == (2, 0), "the process before it has done it"
        await again.stop()

    run(act)


def test_order_is_not_followed_again_after_passes_of_nobodys_order() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        await BookieRegistry(world.operator).register(BookieInfo(BOOKIE, "h:1"))
        ((_, report),) = await order(world.operator, Wanted([BOOKIE], 20.0))
        assert report is not None
        passes = collector.stats().passes
        while collector.stats().passes < passes + 2:
            await asyncio.sleep(1)
        found = await read_collection(world.operator, BOOKIE)
        assert found is not None and found.value.report is not None
        assert found.value.report.order == report.order, "it says what was followed last"
        await collector.stop()
        again = world.collector()
        again.start()
        await asyncio.sleep(30)
        assert again.stats().passes == 0, "the process before it has done it"
        await again.stop()

    run(act)


def test_bookie_that_does_not_answer_an_order_is_named() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        await collector.stop()
        await BookieRegistry(world.operator).register(BookieInfo(BOOKIE, "h:1"))
        assert await order(world.operator, Wanted([], 5.0)) == [(BOOKIE, None)]
        with pytest.raises(NotFoundError, match="bookie-7"):
            await order(world.operator, Wanted(["bookie-7"], 5.0))

    run(act)


def test_order_that_cannot_be_read_stops_nothing() -> None:
    async def act(world: World, collector: LedgerCollector) -> None:
        await world.operator.create(order_path(BOOKIE), b"?")
        await asyncio.sleep(110)
        assert world.shelf.deleted == [2]

    run(act)


def test_newer_order_replaces_the_one_before() -> None:
    async def act(world: World, _collector: LedgerCollector) -> None:
        for token in "ab":
            await write_order(world.operator, BOOKIE, CollectionOrder(token=token))
        await asyncio.sleep(3)
        found = await read_collection(world.operator, BOOKIE)
        assert found is not None and found.value.report is not None
        assert found.value.report.order == "b"

    run(act)


def test_outage_of_the_metadata_is_waited_out() -> None:
    async def main() -> None:
        outcome = Outcome.UNAVAILABLE
        world = World(lambda _name, _path: Fault(outcome))
        await world.make(1, 2, 3, 4)
        await world.delete(2)
        collector = world.collector()
        collector.start()
        await asyncio.sleep(110)
        assert collector.stats().cause is Cause.METADATA
        outcome = Outcome.NORMAL
        await asyncio.sleep(110)
        assert world.shelf.deleted == [2]
        assert collector.stats().cause is None
        await collector.stop()

    run_in_virtual_time(main())


def test_bug_of_ours_is_logged_and_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def act(_world: World, collector: LedgerCollector) -> None:
        def fail() -> str:
            raise AssertionError("a bug")

        collector._why_not = fail
        await asyncio.sleep(110)
        assert "garbage collection ended" in caplog.text

    run(act)


def test_stop_waits_for_the_disk_work_that_it_meets() -> None:
    async def main() -> None:
        world = World()
        await world.make(1)
        begun, done = asyncio.Event(), asyncio.Event()

        async def slowly(work: Callable[[], None]) -> None:
            begun.set()
            await asyncio.sleep(3.0)
            work()
            done.set()

        collector = world.collector()
        collector._run_on_disk = slowly
        collector.start()
        await begun.wait()
        await collector.stop()
        assert done.is_set()

    run_in_virtual_time(main())


def test_disk_work_that_stop_does_not_wait_for_goes_on_to_its_end() -> None:
    """A disk that is slow for longer than a stop waits: the deletion that it is in is not cut."""

    async def main() -> None:
        world = World()
        await world.make(1)
        begun, done = asyncio.Event(), asyncio.Event()

        async def slowly(work: Callable[[], None]) -> None:
            begun.set()
            await asyncio.sleep(3 * COLLECTION_STOP_S)
            work()
            done.set()

        collector = world.collector()
        collector._run_on_disk = slowly
        collector.start()
        await begun.wait()
        await collector.stop()
        assert not done.is_set()
        await asyncio.sleep(3 * COLLECTION_STOP_S)
        assert done.is_set()

    run_in_virtual_time(main())


@pytest.mark.leaves_open("task sleep", reason="the disk that hangs")
def test_stop_does_not_wait_for_a_disk_that_hangs() -> None:
    async def main() -> None:
        world = World()
        await world.make(1)
        begun = asyncio.Event()

        def hang(_work: Callable[[], None]) -> Coroutine[None, None, None]:
            begun.set()
            return asyncio.sleep(1e6)

        collector = world.collector()
        collector._run_on_disk = hang
        collector.start()
        await begun.wait()
        before = asyncio.get_running_loop().time()
        await collector.stop()
        assert asyncio.get_running_loop().time() - before < 10

    run_in_virtual_time(main())
