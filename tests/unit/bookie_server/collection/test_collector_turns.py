"""Passes and marks that meet something on their way are made once more."""

from __future__ import annotations

import asyncio

import pytest

from bookie_server.giving_back import GivingBack
from spark_ledger.errors import ConflictError, LedgerError, NotFoundError
from spark_ledger.metadata.collection import (
    CollectionOrder,
    PassReport,
    collection_path,
    write_order,
)
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import Fault
from spark_ledger.types import BookieStatus, LedgerId
from tests.unit.bookie_server.collection.cluster import BOOKIE, World
from tests.unit.virtual_time import run_in_virtual_time


@pytest.mark.parametrize("by_a_pass", [True, False])
def test_ledger_that_is_taken_while_a_mark_is_written_has_another(*, by_a_pass: bool) -> None:
    """The metadata of before the ledger would be believed after a restore otherwise (rule G4)."""

    async def main() -> None:
        world = World()
        await world.make(1)
        collector, marks = world.collector(), 0
        renew_now = collector._mark.renew

        async def renew(*, accept: str | None = None, kept_below: int | None = None) -> None:
            nonlocal marks
            marks += 1
            await renew_now(accept=accept, kept_below=kept_below)
            world.new_ledgers += marks == 1

        collector._mark.renew = renew  # type: ignore[method-assign]
        if by_a_pass:
            await collector.run_pass()
            assert marks == 1
        collector.start()
        await asyncio.sleep(11)
        assert marks == 2
        await asyncio.sleep(20)
        assert marks == 2, "and no more"
        await collector.stop()
        assert world.store._watches == [], "nothing is left on the connection"

    run_in_virtual_time(main())


def test_whole_pass_that_was_aborted_is_made_by_the_next_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(*range(1, 10))
        await world.move(2)
        world.interval_s, world.whole_interval_s = 10.0, 40.0
        collector, passes = world.collector(), list[bool]()
        run_pass = collector.run_pass

        async def counted(
            order: CollectionOrder | None = None, *, whole: bool = False
        ) -> PassReport:
            passes.append(whole)
            return await run_pass(order, whole=whole)

        collector.run_pass = counted  # type: ignore[method-assign]
        world.why_not = "journal /j has not synced"
        collector.start()
        await asyncio.sleep(40)
        aborted = passes[passes.index(True) :]
        assert all(aborted) and len(aborted) > 2 and world.shelf.deleted == []
        world.why_not = ""
        del passes[:]
        await asyncio.sleep(25)
        assert passes[0] and not any(passes[1:]) and len(passes) > 1
        assert world.shelf.deleted == [2]
        await collector.stop()

    run_in_virtual_time(main())


@pytest.mark.parametrize("is_deleted", [True, False])
@pytest.mark.parametrize("what", ["restored", "stalled"])
def test_what_happens_between_the_two_looks_ends_the_pass(what: str, *, is_deleted: bool) -> None:
    """Of a deleted ledger (rule G3) as of one that is named elsewhere (rule G9)."""

    async def main() -> None:
        world = World()
        await world.make(*range(1, 10))
        await (world.delete(2) if is_deleted else world.move(2))
        collector = world.collector()

        def happens() -> None:
            if what == "restored":  # the bookie knows a later ledger than the metadata
                world.shelf.keys[100] = b"k" * 32
            else:
                world.why_not = "journal /j has not synced"

        asyncio.get_running_loop().call_later(0.5, happens)
        report = await collector.run_pass(whole=True)
        assert (report.candidates, report.deleted) == (1, 0)
        assert ("was restored" if what == "restored" else "has not synced") in report.aborted
        assert world.shelf.deleted == [] and 2 not in world.shelf.giving_back

    run_in_virtual_time(main())


def test_connection_that_breaks_before_a_copy_goes_keeps_the_copy() -> None:
    """Between two connections the metadata may have been restored (rule G5)."""

    async def main() -> None:
        def interpose(name: str, path: str) -> Fault:
            if (name, path) == ("put", ledger_path(LedgerId(2))):
                world.store.reconnect()
            return Fault()

        world = World(interpose)
        await world.make(*range(1, 10))
        await world.move(2)
        report = await world.collector().run_pass(whole=True)
        assert report.deleted == 0 and "the connection to ZooKeeper broke" in report.aborted
        assert world.shelf.deleted == [] and 2 not in world.shelf.giving_back

    run_in_virtual_time(main())


@pytest.mark.parametrize("error", [ConflictError, NotFoundError])
def test_copy_whose_ledger_changes_in_the_last_moment_stays_and_holds_up_no_other(
    error: type[LedgerError],
) -> None:
    async def main() -> None:
        def interpose(name: str, path: str) -> Fault:
            if (name, path) == ("put", ledger_path(LedgerId(2))):
                raise error("it has just changed")
            return Fault()

        world = World(interpose)
        await world.make(*range(1, 10))
        await world.move(2, 3)
        report = await world.collector().run_pass(whole=True)
        assert (report.deleted, report.aborted) == (1, "") and world.shelf.deleted == [3]
        assert 2 not in world.shelf.giving_back and 3 not in world.shelf.giving_back

    run_in_virtual_time(main())


def test_metadata_that_went_back_before_new_ledgers_are_marked_end_nothing() -> None:
    """The mark between two passes is refused as that of a pass is, and an operator decides."""

    async def main() -> None:
        world = World()
        await world.make(*range(1, 10))
        await world.delete(2)
        collector = world.collector()
        collector.start()
        await asyncio.sleep(6)
        await world.operator.delete(collection_path(BOOKIE))
        await world.make(20)
        await asyncio.sleep(6)
        assert "does not hold the last note of this bookie" in collector.last_error
        order = CollectionOrder(token="t", accept_restored=True)
        await write_order(world.operator, BOOKIE, order)
        await asyncio.sleep(6)
        assert world.shelf.deleted == [2] and not collector.last_error
        await collector.stop()

    run_in_virtual_time(main())


def test_ledgers_that_are_given_back_side_by_side_end_one_by_one() -> None:
    giving = GivingBack()
    giving.begin([LedgerId(1), LedgerId(2)])
    giving.begin([LedgerId(3)])
    giving.end([LedgerId(1)])
    assert [each in giving for each in range(5)] == [False, False, True, True, False]
    assert giving.refuse(LedgerId(1)) is None
    refusal = giving.refuse(LedgerId(2))
    assert refusal is not None and refusal.status is BookieStatus.TOO_MANY_REQUESTS


def test_copies_that_are_kept_are_given_back_once_that_is_ordered() -> None:
    """From now on means also: none any more."""

    async def main() -> None:
        mark = World().collector()._mark
        kept = []
        for below in (None, 7, None, 0, None):
            await mark.renew(kept_below=below)
            kept.append(await mark.kept_below())
        assert kept == [0, 7, 7, 0, 0]

    run_in_virtual_time(main())


def test_connection_that_breaks_at_the_second_look_keeps_the_ledgers() -> None:
    """What the second look has read may be of a backup (rule G5)."""

    async def main() -> None:
        second = asyncio.Event()

        def interpose(_name: str, path: str) -> Fault:
            if second.is_set() and path == ledger_path(LedgerId(2)):
                world.store.reconnect()
            return Fault()

        world = World(interpose)
        await world.make(*range(1, 10))
        await world.delete(2)
        asyncio.get_running_loop().call_later(0.5, second.set)  # between the two looks
        report = await world.collector().run_pass()
        assert report.candidates == 1 and "the connection to ZooKeeper broke" in report.aborted
        assert report.deleted == 0 and world.shelf.deleted == []

    run_in_virtual_time(main())


def test_copy_that_was_going_when_the_bookie_stops_is_vouched_for_no_more() -> None:
    """Its deletion may go on, on a thread of the disk, until the process ends (rule G9)."""

    async def main() -> None:
        def interpose(name: str, path: str) -> Fault:
            is_outdated = (name, path) == ("put", ledger_path(LedgerId(2)))
            return Fault(delay_s=100.0 if is_outdated else 0.0)

        world = World(interpose)
        await world.make(*range(1, 10))
        await world.move(2)
        one = asyncio.ensure_future(world.collector().run_pass(whole=True))
        await asyncio.sleep(10)
        assert 2 in world.shelf.giving_back
        one.cancel()
        await asyncio.wait([one])
        assert one.cancelled() and 2 in world.shelf.giving_back

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("rate", "is_deleted", "seconds"),
    [
        ("deletes_per_s", True, 1.0 + 8 / 2),
        ("deletes_per_s", False, 1.0 + 8 / 2),
        ("reads_per_s", True, 1.0 + 20 / 2 + 8 / 2),
        ("reads_per_s", False, 1.0 + 20 / 2),
    ],
)
def test_pass_deletes_and_reads_no_faster_than_it_may(
    rate: str, seconds: float, *, is_deleted: bool
) -> None:
    """Each node that is read and each ledger that goes costs others something: two a second."""

    async def main() -> None:
        world = World()
        await world.make(*range(1, 21))
        await (world.delete(*range(1, 9)) if is_deleted else world.move(*range(1, 9)))
        collector = world.collector(freely=100, batch=3, **{rate: 2.0})
        report = await collector.run_pass(whole=True)
        assert report.deleted == 8 and not report.aborted
        assert report.duration_s == pytest.approx(seconds, rel=0.05)

    run_in_virtual_time(main())


def test_report_of_a_restored_cluster_does_not_make_it_the_one_that_was_known() -> None:
    """The mark of before stays in the metadata, and ends each pass (rule G4)."""

    async def main() -> None:
        world = World()
        world.interval_s = 10.0
        await world.make(*range(1, 10))
        collector = world.collector()
        await collector.run_pass()
        backup = await world.operator.get(collection_path(BOOKIE))
        await collector.run_pass()
        node = await world.operator.get(collection_path(BOOKIE))
        await world.operator.put(collection_path(BOOKIE), backup.value, node.version)
        await world.delete(2)
        collector.start()
        await asyncio.sleep(100)
        assert collector.report.passes_total > 4 and collector.stats().aborted > 2
        assert "was restored from a backup" in collector.last_error
        assert world.shelf.deleted == []
        await collector.stop()

    run_in_virtual_time(main())


def test_mark_that_is_renewed_keeps_the_report_beside_it() -> None:
    """Who has ordered a pass finds there how it went."""

    async def main() -> None:
        world = World()
        mark = world.collector()._mark
        await mark.renew()
        report = PassReport(order="token", held=7)
        await mark.publish(report)
        await mark.renew()
        found = await mark.check()
        assert found is not None and found.value.report == report

    run_in_virtual_time(main())
