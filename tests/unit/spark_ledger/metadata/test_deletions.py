"""Signs that ledgers were deleted: one for many, soon, and none is worth an error."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.metadata.deletions import DELETIONS_PATH, Deletions, give_sign, read_sign
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from tests.unit.cut_off import cut_off, cut_off_at_each_wait
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
