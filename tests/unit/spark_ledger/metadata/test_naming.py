"""What a client knows of named ledgers: those named last, and none after another connection."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from spark_ledger.errors import ConflictError, MetadataRestoredError, NotFoundError
from spark_ledger.metadata import naming
from spark_ledger.metadata.base import Create, Delete, parent_of
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.metadata.unsettled import UNNAMED_PATH, id_path
from spark_ledger.types import LedgerId, Versioned
from tests.unit.spark_ledger.metadata.test_unsettled import listed, owned


def ids(*numbers: int) -> list[LedgerId]:
    return [LedgerId(number) for number in numbers]


def test_named_ledgers_kept_are_those_named_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "NAMED_LEDGERS_KEPT", 3)

    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        known = naming.Naming(store)
        known.named(ids(1, 2))
        known.named(ids(3, 4, 5))
        assert known.unsettled(ids(5, 4, 3, 2, 1)) == ids(1, 2)
        store.reconnect()
        assert known.unsettled(ids(5, 4)) == ids(4, 5), "the ids may be others' ledgers now"
        known.named(ids(4))
        assert known.unsettled(ids(5, 4)) == ids(5), "until the next connection"

    asyncio.run(main())


def test_ledgers_that_were_not_named_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is refused leaves nothing behind for as long as its client runs."""
    monkeypatch.setattr(naming, "NAMED_LEDGERS_KEPT", 3)

    async def main() -> None:
        store = MemoryTree().open_session()
        known = naming.Naming(store)
        for number in range(40):
            await LedgerStore(store).create(owned(number), until_named=True)
            await known.operations(ids(number))
        assert len(known._found) <= 4

    asyncio.run(main())


@pytest.mark.parametrize("was_named", [False, True])
def test_ledger_that_was_deleted_meanwhile_is_not_named(was_named: bool) -> None:
    """Its unnamed node may be there still, or have gone when it was named before."""

    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers, known = LedgerStore(store), naming.Naming(store)
        for each in ids(1, 2):
            await ledgers.create(owned(each), until_named=True)
        if was_named:
            await store.transaction(await known.operations(ids(1, 2)))
        operations = await known.operations(ids(1, 2))
        await ledgers.delete(LedgerId(2))
        with pytest.raises(NotFoundError):
            await store.transaction(operations)
        assert await listed(store, UNNAMED_PATH) == ([] if was_named else [1, 2])

    asyncio.run(main())


@pytest.mark.parametrize("is_page_there", [True, False])
def test_ledger_that_was_named_before_is_named_again(is_page_there: bool) -> None:
    """The keeper takes pages away on which nothing is left."""

    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers, known = LedgerStore(store), naming.Naming(store)
        await ledgers.create(owned(1), until_named=True)
        await store.transaction(await known.operations(ids(1)))
        if not is_page_there:
            await store.delete(parent_of(id_path(UNNAMED_PATH, LedgerId(1))))
        await store.transaction(await naming.Naming(store).operations(ids(1)))
        assert await listed(store, UNNAMED_PATH) == []

    asyncio.run(main())


def test_operations_of_many_ledgers_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "METADATA_READS_IN_FLIGHT_MAX", 2)

    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers = LedgerStore(store)
        for each in ids(1, 2, 3, 4, 5):
            await ledgers.create(owned(each), until_named=True)
        await store.transaction(await naming.Naming(store).operations(ids(1, 2, 3, 5)))
        assert await listed(store, UNNAMED_PATH) == [4]

    asyncio.run(main())


@pytest.mark.parametrize("exists", [True, False])
def test_ledger_whose_unnamed_node_a_server_that_lags_does_not_know_is_not_named(
    exists: bool,
) -> None:
    """It would stay, and the keeper delete a ledger that a commit names."""

    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers, known = LedgerStore(store), naming.Naming(store)
        await ledgers.create(owned(1), until_named=exists)
        get = store.get

        async def lags(path: str) -> NoReturn:
            raise NotFoundError(path)

        store.get = lags  # type: ignore[method-assign]
        operations = await known.operations(ids(1))
        if exists:
            with pytest.raises(ConflictError):
                await store.transaction(operations)
            store.get = get  # type: ignore[method-assign]
            operations = await known.operations(ids(1))
        await store.transaction(operations)
        assert await listed(store, UNNAMED_PATH) == []

    asyncio.run(main())


MINE, OTHERS = bytes(16), bytes([7]) * 16


@pytest.mark.parametrize("state", ["new", "made by an older version", "named before", "named here"])
def test_ledger_whose_id_was_given_again_is_not_named_for_the_lost_one(state: str) -> None:
    """Rows that were written to the lost one would be looked for in another ledger."""

    async def main() -> None:
        store = MemoryTree().open_session()
        known, path = naming.Naming(store), id_path(UNNAMED_PATH, LedgerId(1))
        await LedgerStore(store).create(owned(1), until_named=True)
        if state == "made by an older version":
            await store.transaction([Delete(path), Create(path, b"")])
        if state.startswith("named"):
            await store.transaction(await known.operations(ids(1)))
            known.named(ids(1))
        if state == "named before":
            store.reconnect()
        unsettled = known.unsettled(ids(1))
        assert bool(unsettled) == (state != "named here")
        with pytest.raises(MetadataRestoredError, match="ledger 1 is another one"):
            await known.operations(unsettled, {(LedgerId(1), MINE), (LedgerId(1), OTHERS)})
        await known.operations(unsettled, {(LedgerId(1), b"")})
        await store.transaction(await known.operations(unsettled, {(LedgerId(1), MINE)}))

    asyncio.run(main())


def test_ledger_that_two_commits_name_at_once_is_known_behind_both() -> None:
    """Also where one has succeeded, or another connection has come, as the other one looks."""

    async def main() -> None:
        store = MemoryTree().open_session()
        known, mine = naming.Naming(store), {(LedgerId(1), MINE)}
        await LedgerStore(store).create(owned(1), until_named=True)
        first = await known.operations(ids(1), mine)
        await known.operations(ids(1), mine)
        await store.transaction(first)
        known.named(ids(1))
        known.named(ids(1))
        assert known.unsettled(ids(1)) == []
        with pytest.raises(MetadataRestoredError, match="ledger 1 is another one"):
            await known.operations([], {(LedgerId(1), OTHERS)})
        await known.operations([], mine)

    asyncio.run(main())


def test_what_was_found_is_compared_though_another_commit_forgets_it_meanwhile() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        known, get = naming.Naming(store), store.get
        for each in ids(1, 2):
            await LedgerStore(store).create(owned(each), until_named=True)

        async def late(path: str) -> Versioned[bytes]:
            found = await get(path)
            if path == id_path(UNNAMED_PATH, LedgerId(2)):
                await asyncio.sleep(0.01)
                known._found.clear()
            return found

        store.get = late  # type: ignore[method-assign]
        with pytest.raises(MetadataRestoredError, match="ledger 1 is another one"):
            await known.operations(ids(1, 2), {(LedgerId(1), OTHERS)})

    asyncio.run(main())


def test_ledger_that_a_server_that_lags_does_not_know_is_compared() -> None:
    """The transaction tells only that there is some ledger of the id."""

    async def main() -> None:
        store = MemoryTree().open_session()
        known = naming.Naming(store)
        await LedgerStore(store).create(owned(1), until_named=True)
        await store.transaction(await known.operations(ids(1)))

        async def lags(path: str) -> NoReturn:
            raise NotFoundError(path)

        store.get = lags  # type: ignore[method-assign]
        with pytest.raises(MetadataRestoredError, match="ledger 1 is another one"):
            await known.operations(ids(1), {(LedgerId(1), OTHERS)})

    asyncio.run(main())


def test_ledger_that_is_gone_and_whose_incarnation_is_meant_fails_in_the_transaction() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        operations = await naming.Naming(store).operations(ids(1), {(LedgerId(1), MINE)})
        with pytest.raises(NotFoundError):
            await store.transaction(operations)

    asyncio.run(main())
