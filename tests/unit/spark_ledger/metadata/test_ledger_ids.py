"""No two clients get the same id, also if the store misjudges a write whose reply was lost."""

from __future__ import annotations

import asyncio

from spark_ledger.errors import ConflictError
from spark_ledger.limits import LEDGER_ID_BLOCK
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree


class Forgetful(MemoryMetadataStore):
    """A store whose next write never arrives. Like the ZooKeeper store, it then reads the node, and
    takes the write for done if the node holds the bytes that were to be written."""

    def __init__(self, tree: MemoryTree, rival: LedgerStore) -> None:
        super().__init__(tree)
        self._rival: LedgerStore | None = rival

    async def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, make_parents: bool = True
    ) -> None:
        if not await self._stands(path, data, 0):
            await super().create(path, data, ephemeral=ephemeral, make_parents=make_parents)

    async def put(self, path: str, data: bytes, version: int) -> int:
        if await self._stands(path, data, version + 1):
            return version + 1
        return await super().put(path, data, version)

    async def _stands(self, path: str, data: bytes, version: int) -> bool:
        rival, self._rival = self._rival, None
        if rival is None:
            return False
        await rival.new_ledger_id()
        found = await self.get(path)
        if (found.value, found.version) != (data, version):
            raise ConflictError("another was there instead")
        return True


def test_id_block_after_lost_reply_is_given_to_one_client() -> None:
    async def scenario(taken_before: int) -> None:
        tree = MemoryTree()
        for _ in range(taken_before):
            await LedgerStore(MemoryMetadataStore(tree)).new_ledger_id()
        rival = LedgerStore(MemoryMetadataStore(tree))
        ours = LedgerStore(Forgetful(tree, rival))
        given = [await ours.new_ledger_id() for _ in range(LEDGER_ID_BLOCK + 1)]
        theirs = [await rival.new_ledger_id() for _ in range(LEDGER_ID_BLOCK + 1)]
        assert not {*given} & {*theirs}

    for taken_before in (0, 1):
        asyncio.run(scenario(taken_before))
