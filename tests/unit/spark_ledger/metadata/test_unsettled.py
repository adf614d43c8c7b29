"""The index of ledgers that need somebody: made with a ledger, gone with its reason."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import ConflictError, NotFoundError
from spark_ledger.metadata.base import Delete, parent_of
from spark_ledger.metadata.ledgers import LEDGERS_PATH, LedgerStore
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.metadata.unsettled import (
    OPEN_PATH,
    UNNAMED_PATH,
    id_path,
    newest_pages,
    page_numbers,
    pages,
    pages_in_use,
)
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Versioned,
)
from tests.unit.spark_ledger.metadata.test_ledgers import ledger, script


def owned(ledger_id: int) -> LedgerMetadata:
    return ledger(ledger_id).with_changes(owner="ab", incarnation=bytes(16))


async def listed(store: MemoryMetadataStore, root: str) -> list[int]:
    return [each async for page in pages(store, root) for each in page.ids]


async def unsettled(store: MemoryMetadataStore) -> tuple[list[int], list[int]]:
    return await listed(store, OPEN_PATH), await listed(store, UNNAMED_PATH)


def test_ledger_with_an_owner_is_open_until_its_close() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers = LedgerStore(store)
        await ledgers.create(ledger(1))
        made = await ledgers.create(owned(2))
        await ledgers.create(owned(3), until_named=True)
        assert await unsettled(store) == ([2, 3], [3])
        marked = made.value.with_changes(state=LedgerState.IN_RECOVERY)
        version = await ledgers.compare_and_set(marked, 0)
        assert await unsettled(store) == ([2, 3], [3])
        with pytest.raises(ConflictError):
            await ledgers.compare_and_set(marked.with_changes(state=LedgerState.CLOSED), 0)
        assert await unsettled(store) == ([2, 3], [3]), "all of the close, or nothing"
        closed = marked.with_changes(state=LedgerState.CLOSED)
        assert await ledgers.compare_and_set(closed, version) == 2
        assert (await ledgers.read(LedgerId(2))).value.is_closed
        assert await unsettled(store) == ([3], [3])

    asyncio.run(main())


def test_close_of_a_ledger_that_is_not_listed_is_a_close() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers = LedgerStore(store)
        made = await ledgers.create(owned(2))
        await store.delete(id_path(OPEN_PATH, LedgerId(2)))
        closed = made.value.with_changes(state=LedgerState.CLOSED)
        assert await ledgers.compare_and_set(closed, 0) == 1
        assert (await ledgers.read(LedgerId(2))).value.is_closed

    asyncio.run(main())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_create_after_a_lost_reply_finds_its_own_ledger(outcome: Outcome) -> None:
    async def main() -> None:
        tree = MemoryTree()
        await LedgerStore(tree.open_session()).create(owned(1))
        store = tree.open_session(interpose=script("transaction", [outcome]))
        made = await LedgerStore(store).create(owned(2), until_named=True)
        assert (made.value.ledger_id, made.version) == (2, 0)
        assert await unsettled(store) == ([1, 2], [2])
        with pytest.raises(ConflictError, match="exists already"):
            await LedgerStore(store).create(owned(1))

    asyncio.run(main())


@pytest.mark.parametrize(("closes", "asked"), [(True, ["transaction", "put"]), (False, ["put"])])
def test_change_of_a_closed_ledger_that_is_no_close_costs_one_request(
    closes: bool, asked: list[str]
) -> None:
    """Repair makes one for each ledger of a lost bookie."""

    async def main() -> None:
        tree, requests = MemoryTree(), list[str]()

        def interpose(name: str, _path: str) -> Fault:
            requests.append(name)
            return Fault()

        ledgers = LedgerStore(tree.open_session(interpose=interpose))
        made = await ledgers.create(owned(2))
        closed = made.value.with_changes(state=LedgerState.CLOSED)
        assert await ledgers.compare_and_set(closed, 0) == 1
        requests.clear()
        moved = closed.with_changes(fragments=(Fragment(EntryId(0), (BookieId("z"),)),))
        assert await ledgers.compare_and_set(moved, 1, closes=closes) == 2
        assert requests == asked
        assert await ledgers.read(LedgerId(2)) == Versioned(moved, 2)

    asyncio.run(main())


def test_create_over_the_rest_of_a_deleted_ledger_is_refused() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers = LedgerStore(store)
        await ledgers.create(owned(5))
        await ledgers.delete(LedgerId(5))
        assert await unsettled(store) == ([5], []), "left for the keeper"
        with pytest.raises(ConflictError, match="was deleted"):
            await ledgers.create(owned(5))

    asyncio.run(main())


@pytest.mark.parametrize("taken", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_ledger_is_made_whichever_of_its_pages_are_missing(taken: tuple[int, ...]) -> None:
    """Every ten thousand ids, and when the keeper has taken empty ones away."""

    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers = LedgerStore(store)
        await ledgers.create(owned(1), until_named=True)
        for place, root in enumerate((LEDGERS_PATH, OPEN_PATH, UNNAMED_PATH)):
            path = id_path(root, LedgerId(1))
            await store.delete(path)
            if place in taken:
                await store.delete(parent_of(path))
        await ledgers.create(owned(2), until_named=True)
        assert await unsettled(store) == ([2], [2]) and await ledgers.list() == [2]

    asyncio.run(main())


def test_change_happens_with_all_that_it_is_to_happen_with_or_not_at_all() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers = LedgerStore(store)
        made = await ledgers.create(owned(1))
        await store.create("mark", b"")
        changed = made.value.with_changes(state=LedgerState.IN_RECOVERY)
        for also in ([Delete("mark"), Delete("lock")], [Delete("mark", 1)]):
            with pytest.raises(ConflictError):
                await ledgers.compare_and_set(changed, 0, also=also)
        assert await ledgers.read(LedgerId(1)) == made and (await store.get("mark")).version == 0
        version = await ledgers.compare_and_set(changed, 0, also=[Delete("mark", 0)])
        assert await ledgers.read(LedgerId(1)) == Versioned(changed, version)
        with pytest.raises(NotFoundError):
            await store.get("mark")

    asyncio.run(main())


def test_pages_come_in_order_and_never_all_at_once() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers = LedgerStore(store)
        wanted = [1, 9_999, 10_000, 123_456_789, 9_999_999_999, 10**10, 123_456_789_012]
        for each in reversed(wanted):
            await ledgers.create(owned(each))
        found = [page async for page in pages(store, OPEN_PATH)]
        assert [each for page in found for each in page.ids] == wanted
        assert [len(page.ids) for page in found] == [2, 1, 1, 1, 1, 1]
        assert found[1].path == "unsettled/open/00/0001"

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 9])
def test_newest_pages_are_the_last_ones_also_at_a_border(count: int) -> None:
    """A node has ten thousand pages at most: the one before them is in another."""

    async def main() -> None:
        store = MemoryTree().open_session()
        ids = [7, 99_989_999, 99_990_000, 99_999_999, 100_000_000, 100_020_000]
        ids += [9_999_999_999, 10**10]
        for each in ids:
            await store.create(id_path(OPEN_PATH, LedgerId(each)), b"")
        found = await newest_pages(store, OPEN_PATH, count)
        whole = [[7], [99_989_999], [99_990_000, 99_999_999], [100_000_000], [100_020_000]]
        whole += [[9_999_999_999], [10**10]]
        assert [page.ids for page in found] == whole[-count:]

    asyncio.run(main())


def test_names_that_are_no_pages_are_passed_over() -> None:
    """Whoever puts nodes of his own there stops neither audits nor repair."""

    async def main() -> None:
        store = MemoryTree().open_session()
        await store.create(id_path(LEDGERS_PATH, LedgerId(7)), b"")
        for name in ("tmp", "1", "00/tmp0", "00/1", "00/00000", "tmp0/0000"):
            await store.create(f"{LEDGERS_PATH}/{name}/L0001", b"")
        assert await page_numbers(store, LEDGERS_PATH) == [0]
        assert [page.ids async for page in pages(store, LEDGERS_PATH)] == [[7]]
        assert [page.ids for page in await newest_pages(store, LEDGERS_PATH, 9)] == [[7]]

    asyncio.run(main())


def test_ledgers_that_are_the_first_of_their_pages_at_once_are_all_made() -> None:
    """Each finds that the pages are missing, and makes them."""

    async def main() -> None:
        tree = MemoryTree()
        stores = [tree.open_session() for _ in range(3)]
        await asyncio.gather(
            *(
                LedgerStore(store).create(owned(number), until_named=True)
                for number, store in enumerate(stores, 1)
            )
        )
        assert await unsettled(stores[0]) == ([1, 2, 3], [1, 2, 3])

    asyncio.run(main())


@pytest.mark.parametrize("root", [LEDGERS_PATH, OPEN_PATH, UNNAMED_PATH])
def test_ledger_is_made_though_a_page_that_was_made_for_it_goes_again(root: str) -> None:
    """The keeper takes those away on which nothing is, and comes between the two."""

    async def main() -> None:
        tree, page, goes = MemoryTree(), parent_of(id_path(root, LedgerId(1))), 2

        def interpose(name: str, _path: str) -> Fault:
            nonlocal goes
            if name == "transaction" and goes and tree.children(parent_of(page)):
                goes -= 1
                tree.apply([Delete(page)])
            return Fault()

        store = tree.open_session(interpose=interpose)
        await LedgerStore(store).create(owned(1), until_named=True)
        assert goes == 0 and await unsettled(store) == ([1], [1])

    asyncio.run(main())


def test_pages_without_ids_are_taken_away_but_for_the_newest() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        for number in range(5):
            await store.create(id_path(LEDGERS_PATH, LedgerId(number * 10_000)), b"")
        for number in (0, 2, 4):
            await store.delete(id_path(LEDGERS_PATH, LedgerId(number * 10_000)))
        found = [page.ids async for page in pages_in_use(store, LEDGERS_PATH)]
        assert found == [[], [10_000], [], [30_000], []]
        assert await page_numbers(store, LEDGERS_PATH) == [1, 3, 4]
        await LedgerStore(store).create(owned(20_001))
        assert await page_numbers(store, LEDGERS_PATH) == [1, 2, 3, 4], "made again"

    asyncio.run(main())


def test_page_that_gets_an_id_while_it_is_taken_away_stays() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        first, last = LedgerId(1), LedgerId(10_000)
        for each in (first, last):
            await store.create(id_path(LEDGERS_PATH, each), b"")
        await store.delete(id_path(LEDGERS_PATH, first))
        found = pages_in_use(store, LEDGERS_PATH)
        assert (await anext(found)).ids == []
        await store.create(id_path(LEDGERS_PATH, first), b"")
        assert [page.ids async for page in found] == [[last]]
        assert await listed(store, LEDGERS_PATH) == [first, last]

    asyncio.run(main())
