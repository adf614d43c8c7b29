"""Copies of closed ledgers that the metadata name elsewhere are given back (rule G9)."""

from __future__ import annotations

import asyncio

import pytest

from bookie_server.collection import collecting
from bookie_server.collection.collector import LedgerCollector
from bookie_server.core.collection import Cause
from spark_ledger.errors import CorruptionError
from spark_ledger.metadata.collection import CollectionOrder, PassReport, collection_path
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.types import BookieId, LedgerId
from tests.unit.bookie_server.collection.cluster import BOOKIE, BYTES, World
from tests.unit.virtual_time import run_in_virtual_time

THIRD = BookieId("bookie-3")


async def whole_pass(world: World, collector: LedgerCollector | None = None) -> PassReport:
    return await (collector or world.collector()).run_pass(whole=True)


def test_closed_ledgers_that_are_named_elsewhere_go_and_all_others_stay() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4, 5)
        await world.make(6, key=b"")
        await world.move(2, 6)
        await world.move(3, is_closed=False)
        await world.move(4, to=BOOKIE)
        report = await whole_pass(world)
        assert world.shelf.deleted == [2]
        assert (report.held, report.candidates, report.deleted) == (6, 1, 1)
        assert (report.freed_bytes, report.aborted) == (BYTES, "")
        assert 2 not in world.shelf.giving_back

    run_in_virtual_time(main())


@pytest.mark.parametrize("ledgers", [2, 9], ids=["few, read one by one", "listed"])
@pytest.mark.parametrize(("whole", "order"), [(False, ""), (True, ""), (False, "token")])
def test_pass_gives_back_only_daily_or_by_order(whole: bool, order: str, ledgers: int) -> None:
    """A copy that repair makes is named elsewhere until it is whole: minutes, for a large one."""

    async def main() -> None:
        world = World()
        await world.make(*range(1, ledgers + 1))
        await world.move(2)
        await world.collector().run_pass(CollectionOrder(token=order), whole=whole)
        assert world.shelf.deleted == ([2] if whole or order else [])

    run_in_virtual_time(main())


def test_only_copies_that_are_given_back_are_deleted_as_named() -> None:
    """Of those memory goes to the disk first. Garbage goes also where there is no room for that."""

    async def main() -> None:
        world = World()
        await world.make(1, 2, 3)
        await world.move(2)
        await world.operator.delete(ledger_path(LedgerId(3)), -1)
        await whole_pass(world)
        assert (world.shelf.deleted, world.shelf.deleted_as_named) == ([3, 2], [2])

    run_in_virtual_time(main())


def test_metadata_are_changed_before_the_copy_goes_and_after_nobody_may_count_on_it() -> None:
    """Who has copied to this bookie, and names it a moment later, has to hear of it."""

    async def main() -> None:
        world = World()
        await world.make(1)
        await world.move(1)
        ledgers = LedgerStore(world.operator)
        before = await ledgers.read(LedgerId(1))
        seen: list[str] = []
        put = world.store.put

        async def watched(path: str, data: bytes, version: int) -> int:
            if path == ledger_path(LedgerId(1)):
                seen.append("vouched for" if 1 not in world.shelf.giving_back else "changed")
            return await put(path, data, version)

        world.store.put = watched  # type: ignore[method-assign]
        world.shelf.before_delete = lambda: seen.append(
            "deleted" if 1 in world.shelf.giving_back else "vouched for"
        )
        await whole_pass(world)
        after = await ledgers.read(LedgerId(1))
        assert seen == ["changed", "deleted"]
        assert (after.value, after.version) == (before.value, before.version + 1)

    run_in_virtual_time(main())


def test_copy_that_is_named_again_between_the_looks_stays() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2)
        await world.move(1, 2)

        put = world.store.put

        async def after_a_rename(path: str, data: bytes, version: int) -> int:
            if path == ledger_path(LedgerId(1)):
                await world.move(1, to=BOOKIE)
            return await put(path, data, version)

        world.store.put = after_a_rename  # type: ignore[method-assign]
        report = await whole_pass(world)
        assert world.shelf.deleted == [2]
        assert report.aborted == ""
        assert 1 not in world.shelf.giving_back, "it is vouched for again"

    run_in_virtual_time(main())


def test_move_to_a_third_bookie_meanwhile_is_left_to_the_next_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(1)
        await world.move(1)
        put, moves = world.store.put, [THIRD]

        async def after_a_rename(path: str, data: bytes, version: int) -> int:
            if path == ledger_path(LedgerId(1)) and moves:
                await world.move(1, to=moves.pop())
            return await put(path, data, version)

        world.store.put = after_a_rename  # type: ignore[method-assign]
        collector = world.collector()
        await whole_pass(world, collector)
        assert not world.shelf.deleted
        await whole_pass(world, collector)
        assert world.shelf.deleted == [1]

    run_in_virtual_time(main())


def test_change_of_which_nobody_knows_whether_it_was_made_deletes_nothing() -> None:
    async def main() -> None:
        lost, path = [Fault(Outcome.LOST_REPLY)], ledger_path(LedgerId(1))

        def interpose(name: str, what: str) -> Fault:
            return lost.pop() if name == "put" and what == path and lost else Fault()

        world = World(interpose)
        await world.make(1)
        await world.move(1)
        collector = world.collector()
        report = await whole_pass(world, collector)
        assert report.aborted
        assert not world.shelf.deleted
        assert 1 not in world.shelf.giving_back
        assert (await whole_pass(world, collector)).deleted == 1

    run_in_virtual_time(main())


def test_disk_that_fails_ends_the_pass_and_what_is_left_is_vouched_for() -> None:
    async def main() -> None:
        world = World()
        await world.make(1)
        await world.move(1)

        def fail() -> None:
            raise OSError("no more")

        world.shelf.before_delete = fail
        report = await whole_pass(world)
        assert "no more" in report.aborted
        assert 1 not in world.shelf.giving_back

    run_in_virtual_time(main())


def test_copy_that_stays_on_a_full_disk_keeps_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pass would end at it as well."""
    monkeypatch.setattr(collecting, "METADATA_READS_IN_FLIGHT_MAX", 2)

    async def main() -> None:
        world = World()
        await world.make(*range(1, 8))
        await world.move(*range(1, 7))
        tries = iter((True, False, False))

        def fail() -> None:
            if next(tries):
                raise OSError("No space left")

        world.shelf.before_delete = fail
        report = await whole_pass(world)
        assert "No space left" in report.aborted
        assert world.shelf.deleted == [3, 4, 5, 6] and report.deleted == 4
        assert not {1, 2, 3, 4, 5, 6} & {n for n in range(9) if n in world.shelf.giving_back}

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    "error", [OSError("No space left"), CorruptionError("wrong checksum of a row")]
)
@pytest.mark.parametrize("are_elsewhere", [False, True])
def test_ledger_that_the_disk_does_not_let_go_keeps_no_other_one(
    error: Exception, *, are_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pass would end at it as well: candidates come in the order of their ids."""
    monkeypatch.setattr(collecting, "METADATA_READS_IN_FLIGHT_MAX", 2)

    async def main() -> None:
        world = World()
        await world.make(*range(1, 8))
        await (world.move(1, 2, 3, 4, 5, 6) if are_elsewhere else world.delete(1, 2, 3, 4, 5, 6))
        tries = iter((True, False, False))

        def fail() -> None:
            if next(tries):
                raise error

        world.shelf.before_delete = fail
        collector = world.collector(batch=2)
        report = await whole_pass(world, collector)
        assert str(error) in report.aborted and collector.stats().cause is Cause.DISK
        assert world.shelf.deleted == [3, 4, 5, 6] and report.deleted == 4

    run_in_virtual_time(main())


def test_bookie_of_which_everything_is_elsewhere_needs_no_operators_word() -> None:
    """No list was read that could be half: each node says who holds the copies (rule G6)."""

    async def main() -> None:
        world = World()
        await world.make(*range(1, 21))
        await world.move(*range(1, 21))
        report = await whole_pass(world, world.collector(freely=1, share_max=0.01))
        assert (report.deleted, report.aborted) == (20, "")

    run_in_virtual_time(main())


def test_daily_pass_is_whole_and_the_others_are_not() -> None:
    async def main() -> None:
        world = World()
        await world.make(*range(1, 10))
        world.interval_s, world.whole_interval_s = 10.0, 30.0
        collector, passes = world.collector(), list[bool]()
        run_pass = collector.run_pass

        async def counted(
            order: CollectionOrder | None = None, *, whole: bool = False
        ) -> PassReport:
            passes.append(whole)
            return await run_pass(order, whole=whole)

        collector.run_pass = counted  # type: ignore[method-assign]
        await world.move(2)
        collector.start()
        try:
            await asyncio.sleep(20.0)
            whole_at = [n for n, whole in enumerate(passes) if whole]
            assert whole_at, "the first one comes within a quarter of the interval"
            await asyncio.sleep(100.0)
            whole_at = [n for n, whole in enumerate(passes) if whole]
            assert 3 <= len(whole_at) <= 5 < len(passes)
            assert world.shelf.deleted == [2]
        finally:
            await collector.stop()

    run_in_virtual_time(main())


def test_copies_that_restored_metadata_name_elsewhere_stay_until_an_operator_says_so() -> None:
    """The backup is older than a move: those that it names have given their copies back."""

    async def main() -> None:
        world = World()
        await world.make(1, 2, 3)
        await world.collector().run_pass()
        await world.move(2)  # what the backup says of it: this bookie got it later
        await world.operator.delete(collection_path(BOOKIE), -1)
        accept = CollectionOrder(token="a", accept_restored=True)
        report = await world.collector().run_pass(accept)
        assert (report.candidates, report.kept, report.aborted) == (0, 1, "")
        for started_anew in range(2):
            report = await whole_pass(world)
            assert (report.kept, world.shelf.deleted) == (1, []), started_anew
        await world.make(4)
        await world.move(4)  # it came after the restore
        assert (await whole_pass(world)).kept == 1
        assert world.shelf.deleted == [4]
        dry = CollectionOrder(token="b", dry_run=True, give_back=True)
        report = await world.collector().run_pass(dry)
        assert (report.candidates, report.kept) == (1, 0)
        assert (await whole_pass(world)).kept == 1
        report = await world.collector().run_pass(CollectionOrder(token="c", give_back=True))
        assert (report.deleted, report.kept) == (1, 0)
        assert world.shelf.deleted == [4, 2]

    run_in_virtual_time(main())
