"""Looks at what is damaged: each ledger has its turn, and what goes wrong ends one look only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from bookie_server import refetch
from bookie_server.refetch import Refetch
from bookie_server.storage.ledgers.lacking import Lack, LackingLedgers, Range
from spark_ledger.bookie_api import EntryPage
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.repair import REFETCH_LOOK_S
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)
from tests.unit.bookie_server.collection.test_orders_of_a_backup import backup_of
from tests.unit.bookie_server.test_refetch import ME
from tests.unit.spark_ledger.repair.world import marked_in
from tests.unit.virtual_time import run_in_virtual_time

CLOSED: dict[str, Any] = {
    "state": LedgerState.CLOSED,
    "last_entry_id": EntryId(3),
    "length": 40,
}


class Holder:
    """A bookie that lacks the first entry of each of its ledgers."""

    def __init__(self, ledgers: range) -> None:
        self.lacks = {LedgerId(each) for each in ledgers}
        self.asked: list[int] = []
        self.errors: list[Exception] = []
        self.broken: set[int] = set()
        self.is_known = True
        self.lacking = cast("LackingLedgers", self)

    def ledgers(self) -> list[LedgerId]:
        return sorted(self.lacks)

    def of(self, ledger_id: LedgerId) -> tuple[Lack, ...]:
        return (Lack(ledger_id, EntryId(0), EntryId(0), 1),) if ledger_id in self.lacks else ()

    def refetched(self, lacks: list[Lack], is_whole: Callable[[Lack], bool]) -> int:
        gone = list(filter(is_whole, lacks))
        self.lacks -= {each.ledger_id for each in gone}
        return len(gone)

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        if self.asked[-1:] != [ledger_id]:
            self.asked.append(ledger_id)
        if self.errors:
            raise self.errors.pop()
        if ledger_id in self.broken:
            raise CorruptionError("index")
        return EntryPage([], None) if self.is_known else None


class Restored(MemoryMetadataStore):
    """A connection that has noticed it."""

    @property
    def restored(self) -> str:
        return "restored from a backup"


async def at_once(work: Callable[[], None]) -> None:
    """No thread: virtual time would go on without it."""
    work()


def of_ledger(number: int) -> LedgerMetadata:
    """An open ledger on this bookie and another one."""
    fragment = Fragment(EntryId(0), (ME, BookieId("b1")))
    return LedgerMetadata(LedgerId(number), Quorums(2, 2, 1), (fragment,))


async def made(tree: MemoryTree, ledgers: range) -> MemoryMetadataStore:
    """Closed ledgers on this bookie, and a connection."""
    store = tree.open_session()
    for each in ledgers:
        open_ledger = await LedgerStore(store).create(of_ledger(each))
        wanted = open_ledger.value.with_changes(**CLOSED)
        await LedgerStore(store).compare_and_set(wanted, open_ledger.version)
    return store


def test_each_ledger_has_its_turn_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refetch, "REFETCH_LEDGERS_AT_ONCE", 2)

    async def main() -> None:
        holder, tree = Holder(range(5)), MemoryTree()
        looks = Refetch(holder, await made(tree, range(5)), ME)
        for _ in range(4):
            await looks.look()
        assert holder.asked == [0, 1, 2, 3, 4, 0, 1]
        assert await marked_in(tree) == dict.fromkeys(range(5), 1)

    asyncio.run(main())


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_ledger_whose_look_fails_each_time_holds_up_no_other(broken: int) -> None:
    async def main() -> None:
        holder, tree = Holder(range(3)), MemoryTree()
        holder.broken = {broken}
        looks = Refetch(holder, await made(tree, range(3)), ME)
        for _ in range(4):
            with suppress(CorruptionError):
                await looks.look()
        assert set(holder.asked) == {0, 1, 2}
        assert (await marked_in(tree)).keys() == {0, 1, 2} - holder.broken

    asyncio.run(main())


def test_metadata_that_were_restored_decide_nothing() -> None:
    async def main() -> None:
        holder, restored = Holder(range(2)), Restored()  # it has forgotten the ledgers
        holder.is_known = False
        await Refetch(holder, restored, ME).look()
        assert holder.ledgers() == [0, 1]
        await Refetch(holder, MemoryMetadataStore(restored.tree), ME).look()
        assert holder.ledgers() == []

    asyncio.run(main())


def test_metadata_that_were_restored_count_once_they_are_accepted() -> None:
    """Nothing that is damaged came back before the bookie was started again."""

    async def main() -> None:
        tree, accepted = MemoryTree(), False
        await made(tree, range(2))
        looks = Refetch(Holder(range(2)), Restored(tree), ME, is_accepted=lambda: accepted)
        await looks.look()
        assert await marked_in(tree) == {}
        accepted = True
        await looks.look()
        assert await marked_in(tree) == {0: 1, 1: 1}

    asyncio.run(main())


def test_ledger_that_went_back_in_a_restore_is_asked_for_again_without_a_new_start() -> None:
    """It was closed, and is closed anew at another end, in the version that was seen before."""

    async def main() -> None:
        tree = MemoryTree()
        made_open = await LedgerStore(tree.open_session()).create(of_ledger(0))
        restore = backup_of(tree)
        wanted = made_open.value.with_changes(**{**CLOSED, "last_entry_id": EntryId(5)})
        await LedgerStore(tree.open_session()).compare_and_set(wanted, made_open.version)
        store = tree.open_session()
        looks = Refetch(Holder(range(1)), store, ME, is_accepted=lambda: True)
        await looks.look()
        assert await marked_in(tree) == {0: 1}
        restore()
        store.reconnect()
        wanted = made_open.value.with_changes(**CLOSED)
        await LedgerStore(tree.open_session()).compare_and_set(wanted, made_open.version)
        assert await marked_in(tree) == {}
        await looks.look()
        assert await marked_in(tree) == {0: 1}

    asyncio.run(main())


@pytest.mark.parametrize("error", [OSError(5, "disk"), CorruptionError("index"), None])
def test_look_that_fails_is_followed_by_another(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refetch, "in_daemon_thread", at_once)

    async def main() -> None:
        holder, tree = Holder(range(1)), MemoryTree()
        store = await made(tree, range(1))
        if error is None:
            store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        else:
            holder.errors = [error]
        looks = Refetch(holder, store, ME)
        looks.start()
        await asyncio.sleep(1.5 * REFETCH_LOOK_S)
        assert await marked_in(tree) == {} and holder.asked == [0]
        store.interpose = None
        await asyncio.sleep(REFETCH_LOOK_S)
        assert await marked_in(tree) == {0: 1}
        await looks.stop()
        asked = len(holder.asked)
        await asyncio.sleep(10 * REFETCH_LOOK_S)
        assert len(holder.asked) == asked, "it was stopped"

    run_in_virtual_time(main())


class Paged(Holder):
    """A bookie that lacks two stretches of ledger 0, and tells one range a page of what it has."""

    def __init__(self, held: list[tuple[int, int]]) -> None:
        super().__init__(range(1))
        self.held = held
        self.stretches = [
            Lack(LedgerId(0), EntryId(first), EntryId(last), 1) for first, last in ((0, 3), (6, 9))
        ]

    def ledgers(self) -> list[LedgerId]:
        return [LedgerId(0)] if self.stretches else []

    def of(self, ledger_id: LedgerId) -> tuple[Lack, ...]:
        return tuple(self.stretches)

    def refetched(self, lacks: list[Lack], is_whole: Callable[[Lack], bool]) -> int:
        gone = list(filter(is_whole, lacks))
        for each in gone:
            self.stretches.remove(each)
        return len(gone)

    def copies_of(self, lack: Lack) -> list[Range]:
        behind = [(low, high) for low, high in self.held if high >= lack.first]
        return [(EntryId(low), EntryId(high)) for low, high in behind if low <= lack.last]

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        behind = [(max(low, first), high) for low, high in self.held if high >= first]
        ranges = [(EntryId(low), EntryId(high)) for low, high in behind[:1]]
        return EntryPage(ranges, EntryId(behind[0][1] + 1) if behind[1:] else None)


@pytest.mark.parametrize(
    ("held", "lacks"),
    [
        ([(0, 1), (2, 3), (6, 6), (7, 8), (9, 9)], []),
        ([(0, 1), (2, 3), (6, 8)], [6]),
        ([(0, 2), (6, 8), (9, 9)], [0]),
        ([(1, 3), (7, 9)], [0, 6]),
        ([(0, 9)], []),
        ([], [0, 6]),
    ],
)
def test_stretch_is_whole_once_all_of_its_entries_are_here_on_any_page(
    held: list[tuple[int, int]], lacks: list[int]
) -> None:
    async def main() -> None:
        holder, tree = Paged(held), MemoryTree()
        store = tree.open_session()
        fragment = Fragment(EntryId(0), (ME, BookieId("b1")))
        made = LedgerMetadata(LedgerId(0), Quorums(2, 2, 1), (fragment,))
        ledger = await LedgerStore(store).create(made)
        looks = Refetch(holder, store, ME)
        await looks.look()
        assert len(holder.stretches) >= len(lacks) and await marked_in(tree) == {}, "it is written"
        closed = {"state": LedgerState.CLOSED, "last_entry_id": EntryId(9), "length": 100}
        await LedgerStore(store).compare_and_set(
            ledger.value.with_changes(**closed), ledger.version
        )
        await looks.look()
        assert [each.first for each in holder.stretches] == lacks
        assert await marked_in(tree) == ({0: 1} if lacks else {})

    asyncio.run(main())
