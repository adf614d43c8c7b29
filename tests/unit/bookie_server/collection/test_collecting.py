"""One pass: what goes, and what ends it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_server.collection.mark import HistoryMark, OnDisk, PassAbortedError
from bookie_server.core.collection import Cause
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from bookie_server.storage.fs.vfs import write_file_durably
from spark_ledger.metadata.base import Create, Delete
from spark_ledger.metadata.collection import CollectionOrder, collection_path
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.ledger_ids import COUNTER_PATH, raise_counter
from spark_ledger.metadata.ledgers import LEDGERS_PATH, ledger_path
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from spark_ledger.types import LedgerId
from tests.unit.bookie_server.collection.cluster import BOOKIE, BYTES, World
from tests.unit.virtual_time import run_in_virtual_time


def test_deleted_ledgers_go_and_named_ones_stay() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4, 9_999, 10_000, 123_456_789)
        await world.delete(2, 10_000)
        report = await world.collector().run_pass()
        assert world.shelf.deleted == [2, 10_000]
        assert (report.held, report.candidates, report.deleted) == (7, 2, 2)
        assert report.freed_bytes == 2 * BYTES
        assert report.aborted == ""

    run_in_virtual_time(main())


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_pages_and_batches_of_any_size_find_the_same(page: int) -> None:
    async def main() -> None:
        world = World()
        await world.make(*range(1, 30), *range(9_990, 10_010))
        gone = [2, 3, 4, 5, 17, 29, 9_999, 10_000, 10_009]
        await world.delete(*gone)
        await world.collector(page=page, batch=page).run_pass()
        assert world.shelf.deleted == gone

    run_in_virtual_time(main())


def test_ledger_made_between_page_and_list_is_kept() -> None:
    async def main() -> None:
        world = World()
        await world.make(*range(1, 10))
        await world.name(10)

        def first_contact() -> None:  # the page is read, the list is not
            world.shelf.keys[10] = b"k" * 32

        world.shelf.after_page = first_contact
        report = await world.collector().run_pass()
        assert not world.shelf.deleted
        assert report.aborted == ""

    run_in_virtual_time(main())


def test_ledger_made_between_two_pages_is_in_the_list_of_the_second() -> None:
    async def main() -> None:
        world = World()
        await world.make(*range(1, 7))
        node = await world.operator.get(ledger_path(LedgerId(1)))
        made = node.value.replace(b'"ledger_id":1', b'"ledger_id":7')
        await raise_counter(world.operator, 8)
        pages = 0

        def first_contact() -> None:
            nonlocal pages
            pages += 1
            if pages == 2:
                world.tree.apply([Create(ledger_path(LedgerId(7)), made)])
                world.shelf.keys[7] = b"k" * 32

        world.shelf.before_page = first_contact
        report = await world.collector(page=4).run_pass()
        assert (report.held, report.candidates, report.aborted) == (7, 0, "")

    run_in_virtual_time(main())


def test_half_a_list_deletes_nothing_and_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World()
        await world.make(*range(1, 11))
        await world.delete(3)
        whole = MemoryTree.children

        def half(tree: MemoryTree, path: str) -> list[str]:
            names = whole(tree, path)
            return names[: len(names) // 2] if path.startswith(LEDGERS_PATH) else names

        monkeypatch.setattr(MemoryTree, "children", half)
        report = await world.collector(batch=100).run_pass()
        assert not world.shelf.deleted
        assert "cannot be relied on" in report.aborted

    run_in_virtual_time(main())


def test_ledger_that_is_there_again_at_the_second_look_ends_the_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        path = ledger_path(LedgerId(2))
        node = await world.operator.get(path)
        await world.delete(2)
        collector = world.collector()
        collector._why_not = _later(lambda: world.tree.apply([Create(path, node.value)]))
        report = await collector.run_pass()
        assert not world.shelf.deleted
        assert "is named at the second" in report.aborted

    run_in_virtual_time(main())


def test_damaged_node_names_its_ledger() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 20_000)
        await world.spoil(20_000)
        report = await world.collector().run_pass()
        assert not world.shelf.deleted
        assert report.aborted == ""

    run_in_virtual_time(main())


def test_session_lost_in_the_pause_ends_the_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        await world.delete(2)
        collector = world.collector()
        collector._why_not = _later(world.store.expire)
        report = await collector.run_pass()
        assert not world.shelf.deleted
        assert "the connection to ZooKeeper broke" in report.aborted
        assert (await world.collector().run_pass()).deleted == 1

    run_in_virtual_time(main())


def test_metadata_that_do_not_answer_end_the_pass() -> None:
    async def main() -> None:
        is_away = False

        def interpose(name: str, _path: str) -> Fault:
            return Fault(Outcome.UNAVAILABLE if is_away and name == "children" else Outcome.NORMAL)

        world = World(interpose)
        await world.make(1, 2, 3, 4)
        await world.delete(1, 2, 3, 4)
        is_away = True
        report = await world.collector().run_pass()
        assert not world.shelf.deleted
        assert "unavailable" in report.aborted

    run_in_virtual_time(main())


def test_restored_metadata_end_every_pass_until_they_are_accepted() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3)
        collector = world.collector()
        await collector.run_pass()
        backup = dict(world.tree._nodes)
        children = {path: set(names) for path, names in world.tree._children.items()}
        await world.make(4, 5)
        await collector._mark_new_ledgers()
        world.tree._nodes, world.tree._children = backup, children

        for start in (collector, world.collector()):
            report = await start.run_pass()
            assert not world.shelf.deleted
            assert "--accept-restored" in report.aborted
        dry = await collector.run_pass(
            CollectionOrder(token="a", dry_run=True, accept_restored=True)
        )
        assert (dry.candidates, dry.deleted) == (2, 0)
        report = await collector.run_pass(CollectionOrder(token="b", accept_restored=True))
        assert "ledger cluster restored" in report.aborted  # the counter is behind
        await world.name(6)
        report = await collector.run_pass(CollectionOrder(token="c", accept_restored=True))
        assert world.shelf.deleted == [4, 5]

    run_in_virtual_time(main())


def test_another_ledger_of_the_same_id_makes_an_accepted_one_garbage() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        await world.delete(2)
        await world.name(2, key=b"z" * 32)
        collector = world.collector()
        await collector.run_pass()
        assert not world.shelf.deleted  # the list has the id
        await collector.run_pass(CollectionOrder(token="a", accept_restored=True))
        assert world.shelf.deleted == [2]

    run_in_virtual_time(main())


def test_mark_that_the_metadata_lost_ends_the_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        await world.collector().run_pass()
        await world.delete(1)
        await world.operator.transaction([Delete(collection_path(BOOKIE))])
        report = await world.collector().run_pass()
        assert not world.shelf.deleted
        assert "was restored from a backup" in report.aborted

    run_in_virtual_time(main())


def test_mark_that_the_disk_lost_ends_the_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        await world.collector().run_pass()
        await world.delete(1)
        world.files = MemoryFileSystem()
        world.files.mkdir(Path("/ledgers"))
        report = await world.collector().run_pass()
        assert not world.shelf.deleted
        assert "is another one" in report.aborted

    run_in_virtual_time(main())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REQUEST, Outcome.LOST_REPLY])
def test_mark_whose_reply_is_lost_is_no_restore(outcome: Outcome) -> None:
    async def main() -> None:
        strikes = False

        def interpose(name: str, path: str) -> Fault:
            is_mark = path == collection_path(BOOKIE) and name in {"create", "put"}
            return Fault(outcome if strikes and is_mark else Outcome.NORMAL)

        world = World(interpose)
        for round_number in range(2):  # the first mark, and another one
            strikes = True
            report = await world.collector().run_pass()
            assert report.aborted
            strikes = False
            report = await world.collector().run_pass()
            assert report.aborted == "", round_number

    run_in_virtual_time(main())


@pytest.mark.parametrize("starts_again", [False, True])
def test_mark_that_arrives_late_is_no_restore(starts_again: bool) -> None:
    async def main() -> None:
        strikes = False

        def interpose(name: str, path: str) -> Fault:
            is_mark = path == collection_path(BOOKIE) and name == "put"
            return Fault(Outcome.LOST_REQUEST if strikes and is_mark else Outcome.NORMAL)

        world = World(interpose)
        collector = world.collector()
        assert (await collector.run_pass()).aborted == ""
        on_its_way: list[bytes] = []
        whole = world.store.put

        async def put(path: str, data: bytes, version: int) -> int:
            on_its_way.append(data)
            return await whole(path, data, version)

        world.store.put = put  # type: ignore[method-assign]
        strikes = True
        before = await world.operator.get(collection_path(BOOKIE))
        assert (await collector.run_pass()).aborted
        late, *_ = on_its_way
        if starts_again:
            collector = world.collector()
        assert (await collector.run_pass()).aborted
        await world.operator.put(collection_path(BOOKIE), late, before.version)
        strikes = False
        for _ in range(2):
            assert (await collector.run_pass()).aborted == ""

    run_in_virtual_time(main())


def test_counter_behind_the_held_ids_ends_the_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        await world.delete(1)
        await world.operator.transaction([Delete(COUNTER_PATH)])
        report = await world.collector().run_pass()
        assert not world.shelf.deleted
        assert "run `ledger cluster restored`" in report.aborted

    run_in_virtual_time(main())


def test_more_than_the_share_asks_an_operator() -> None:
    async def main() -> None:
        world = World()
        await world.make(*range(1, 11))
        await world.delete(*range(1, 7))
        collector = world.collector(freely=5)
        report = await collector.run_pass()
        assert not world.shelf.deleted
        assert "6 of the 10 ledgers" in report.aborted
        dry = await collector.run_pass(CollectionOrder(token="a", dry_run=True))
        assert (dry.candidates, dry.aborted, world.shelf.deleted) == (6, "", [])
        report = await collector.run_pass(CollectionOrder(token="b", share_max=1.0))
        assert report.deleted == 6

    run_in_virtual_time(main())


def test_disk_error_in_the_middle_leaves_the_rest_to_the_next_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(*range(1, 11))
        await world.delete(*range(1, 7))

        def fail() -> None:
            if world.shelf.deleted:
                raise OSError("no such disk")

        world.shelf.before_delete = fail
        collector = world.collector(batch=2)
        report = await collector.run_pass()
        assert (report.deleted, report.aborted) == (2, "no such disk")
        world.shelf.before_delete = lambda: None
        assert (await collector.run_pass()).deleted == 4

    run_in_virtual_time(main())


def test_bookie_whose_disks_stall_is_left_alone() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3)
        await world.delete(1)
        world.why_not = "the journal stalls"
        collector = world.collector()
        report = await collector.run_pass()
        assert (report.held, report.aborted) == (0, "the journal stalls")
        world.why_not = ""
        assert (await collector.run_pass()).deleted == 1

    run_in_virtual_time(main())


def test_note_of_a_later_format_ends_the_pass() -> None:
    async def main() -> None:
        world = World()
        await world.make(1)
        await world.operator.create(
            collection_path(BOOKIE), encode_node(CollectionOrder(token="x", format_version=9))
        )
        report = await world.collector().run_pass()
        assert report.aborted

    run_in_virtual_time(main())


def _later(act: Callable[[], object]) -> Callable[[], str]:
    """No reason to leave the bookie alone; acts when it is asked between the two looks."""
    calls = 0

    def say() -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            act()
        return ""

    return say


@pytest.mark.parametrize(
    "content",
    [b"{]", b"", b'{"format_version": 1, "marks": ["\xff"]}', b"[]"],
    ids=["no JSON", "empty", "no text", "another form"],
)
def test_damaged_note_of_the_mark_is_the_fault_of_the_disk(content: bytes) -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2)
        await world.collector().run_pass()
        await world.delete(1)
        write_file_durably(world.files, Path("/ledgers/collection.json"), content)
        collector = world.collector()
        report = await collector.run_pass()
        assert "collection.json is damaged" in report.aborted
        assert collector.stats().cause is Cause.DISK
        assert not world.shelf.deleted

    run_in_virtual_time(main())


def test_mark_that_arrived_before_a_crash_is_not_that_of_later_ledgers() -> None:
    """Metadata of between the two have the mark, and lack the ledgers (rule G4)."""

    async def main() -> None:
        world = World()
        await world.make(1)
        await world.collector().run_pass()
        writes = 0

        async def on_disk(work: Callable[[], None]) -> None:
            nonlocal writes
            writes += 1
            if writes == 3:  # behind a read, and the note of both marks
                raise OSError(errno.EIO, "the process dies")
            work()

        def mark(on_disk: OnDisk) -> HistoryMark:
            return HistoryMark(world.store, BOOKIE, world.files, Path("/ledgers"), on_disk)

        async def at_once(work: Callable[[], None]) -> None:
            work()

        with pytest.raises(OSError, match="dies"):
            await mark(on_disk).renew()
        backup = world.tree.get(collection_path(BOOKIE)).value
        await world.make(2)
        again = mark(at_once)
        await again.renew()
        node = world.tree.get(collection_path(BOOKIE))
        assert node.value != backup, "another word for what came later"
        await world.operator.put(collection_path(BOOKIE), backup, node.version)
        for each in (again, mark(at_once)):
            with pytest.raises(PassAbortedError, match="restored from a backup"):
                await each.check()

    run_in_virtual_time(main())


def test_report_has_the_figures_of_the_pass_and_sums_since_the_start() -> None:
    async def main() -> None:
        world = World()
        await world.make(1, 2, 3, 4)
        collector = world.collector()
        for number, deleted in enumerate((1, 2), start=1):
            await world.delete(deleted)
            report = await collector.run_pass()
            assert (report.held, report.candidates, report.deleted) == (5 - number, 1, 1)
            assert (report.freed_bytes, report.freed_bytes_total) == (BYTES, number * BYTES)
            assert (report.deleted_total, report.passes_total) == (number, number)
            stats = collector.stats()
            assert (stats.deleted, stats.freed_bytes) == (number, number * BYTES)
            assert (stats.passes, stats.aborted, stats.reason) == (number, 0, "")
        world.why_not = "a disk stands still"
        for number in (1, 2):
            report = await collector.run_pass()
            assert (report.aborted, report.deleted) == ("a disk stands still", 0)
            stats = collector.stats()
            assert (stats.passes, stats.aborted, stats.cause) == (2 + number, number, Cause.DISK)
            assert (stats.deleted, stats.reason) == (2, "a disk stands still")

    run_in_virtual_time(main())
