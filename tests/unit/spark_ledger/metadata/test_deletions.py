"""Signs that ledgers were deleted: one for many, soon, and none is worth an error."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import OutcomeUnknownError
from spark_ledger.metadata.deletions import DELETIONS_PATH, Deletions, give_sign, read_sign
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.metadata.naming import Naming
from spark_ledger.metadata.unsettled import OPEN_PATH, id_path
from spark_ledger.types import LedgerId, Versioned
from tests.unit.cut_off import cut_off, cut_off_at_each_wait
from tests.unit.spark_ledger.metadata.test_unsettled import owned, unsettled
from tests.unit.virtual_time import run_in_virtual_time


def test_many_deletions_share_a_sign() -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        deletions = Deletions(store)
        assert await read_sign(store) == -1
        for _ in range(100):
            deletions.note()
        await asyncio.sleep(3)
        assert await read_sign(store) == 0
        for _ in range(100):
            deletions.note()
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        assert 3 <= await read_sign(store) <= 6, "ten seconds of deletions"
        before = await read_sign(store)
        await deletions.close()
        assert await read_sign(store) == before, "nothing was due"

    run_in_virtual_time(main())


def test_connection_that_is_closed_gives_the_sign_that_is_due() -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        await give_sign(store)
        deletions = Deletions(store)
        deletions.note()
        await deletions.close()
        assert await read_sign(store) == 1
        deletions.note()
        await asyncio.sleep(5)
        assert await read_sign(store) == 1, "it is closed"

    run_in_virtual_time(main())


def test_sign_that_is_refused_or_hangs_holds_up_nobody() -> None:
    async def main() -> None:
        fault = Fault(Outcome.UNAVAILABLE)
        tree = MemoryTree()
        store = MemoryMetadataStore(tree, interpose=lambda _name, _path: fault)
        deletions, tasks = Deletions(store), asyncio.all_tasks()
        deletions.note()
        await asyncio.sleep(3)
        assert DELETIONS_PATH not in tree.children("")
        fault = Fault(delay_s=1e6)
        deletions.note()
        await asyncio.sleep(3)
        deletions.note()
        before = asyncio.get_running_loop().time()
        await deletions.close()
        assert asyncio.get_running_loop().time() - before < 5
        assert asyncio.all_tasks() == tasks, "nothing is left behind"

    run_in_virtual_time(main())


@pytest.mark.parametrize("closes", [False, True])
def test_deletion_beside_a_sign_whose_answer_takes_its_time_has_a_sign_of_its_own(
    closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie may have looked for the one before already."""

    async def main() -> None:
        store = MemoryMetadataStore()
        await give_sign(store)
        real, deletions = store.put, Deletions(store)

        async def slow(path: str, data: bytes, version: int) -> int:
            written = await real(path, data, version)
            await asyncio.sleep(0.4 if closes else 5.0)
            return written

        monkeypatch.setattr(store, "put", slow)
        deletions.note()
        await asyncio.sleep(2.1)
        assert await read_sign(store) == 1
        deletions.note()
        if closes:
            await deletions.close()
        else:
            await asyncio.sleep(30.0)
        assert await read_sign(store) == 2

    run_in_virtual_time(main())


def test_sign_of_two_at_once_is_one_sign() -> None:
    async def main() -> None:
        tree = MemoryTree()
        stores = [MemoryMetadataStore(tree) for _ in range(5)]
        for each in (0, 1):
            await asyncio.gather(*map(give_sign, stores))
            assert await read_sign(stores[0]) >= each

    run_in_virtual_time(main())


def test_close_that_is_left_at_any_moment_leaves_nothing_behind() -> None:
    async def one(wait: int) -> bool:
        deletions = Deletions(MemoryMetadataStore(interpose=lambda *_: Fault(delay_s=1e6)))
        before = asyncio.all_tasks()
        deletions.note()
        was_cut = await cut_off(deletions.close(), wait)
        deletions.note()
        await asyncio.sleep(10.0)
        assert asyncio.all_tasks() == before
        return was_cut

    async def main() -> None:
        await cut_off_at_each_wait(one)

    run_in_virtual_time(main())


MINE, THEIRS = bytes(16), bytes([7]) * 16
ONE = LedgerId(1)


@pytest.mark.parametrize("then", ["nothing", "reconnect", "restore", "named", "gone"])
def test_ledger_that_nothing_names_is_deleted_over_whatever_connection(then: str) -> None:
    """Its maker may live for months, and a keeper waits for its end. Another ledger that has got
    its id behind a restore stays, and so does one that something names after all."""

    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        ledgers, deletions, naming = LedgerStore(store), Deletions(store), Naming(store)
        mine = owned(1)
        if then == "restore":
            mine = mine.with_changes(incarnation=THEIRS)
        if then != "gone":
            await ledgers.create(mine, until_named=True)
        if then == "named":
            await store.transaction(await naming.operations([ONE]))
        if then != "nothing":
            store.reconnect()
        await deletions.delete_unnamed(ONE, MINE)
        stays = then in ("restore", "named")
        assert await ledgers.list() == ([1] if stays else [])
        assert (await unsettled(store))[1] == ([1] if then == "restore" else [])
        await deletions.close()
        assert await read_sign(store) == (0 if then in ("nothing", "reconnect") else -1)

    run_in_virtual_time(main())


def test_ledger_that_has_got_the_id_as_the_other_was_looked_at_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        ledgers, deletions = LedgerStore(store), Deletions(store)
        await ledgers.create(owned(1), until_named=True)
        look = store.get_latest

        async def late(path: str) -> Versioned[bytes]:
            found = await look(path)
            if found.value == MINE:
                await deletions.delete_unnamed(ONE, MINE)
                await store.delete(id_path(OPEN_PATH, ONE))
                store.reconnect()
                other = owned(1).with_changes(incarnation=THEIRS)
                await LedgerStore(store.tree.open_session()).create(other, until_named=True)
            return found

        looks = iter([late])
        monkeypatch.setattr(store, "get_latest", lambda path: next(looks, look)(path))
        await deletions.delete_unnamed(ONE, MINE)
        assert (await unsettled(store))[1] == [1], "it is another's"
        await deletions.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
@pytest.mark.parametrize("lost", [1, 1000])
def test_deletion_without_a_reply_is_looked_at_again(outcome: Outcome, lost: int) -> None:
    async def main() -> None:
        tree, left = MemoryTree(), lost

        def interpose(name: str, _path: str) -> Fault:
            nonlocal left
            left -= name == "transaction"
            return Fault(outcome if name == "transaction" and left >= 0 else Outcome.NORMAL)

        await LedgerStore(tree.open_session()).create(owned(1), until_named=True)
        store = MemoryMetadataStore(tree, interpose=interpose)
        deletions = Deletions(store)
        if outcome is Outcome.LOST_REQUEST and lost > 1:
            with pytest.raises(OutcomeUnknownError, match="ledger 1 may or may not"):
                await deletions.delete_unnamed(ONE, MINE)
        else:
            await deletions.delete_unnamed(ONE, MINE)
            assert await LedgerStore(store).list() == []
        await deletions.close()
        assert await read_sign(store) >= 0, "given also where the reply was lost"

    run_in_virtual_time(main())
