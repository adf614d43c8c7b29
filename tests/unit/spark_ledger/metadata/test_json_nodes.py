"""Nodes that are written anew when they are damaged, beside others who change or remove them."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.codec import CounterNode
from spark_ledger.metadata.json_nodes import encode_node, read_or_renew
from spark_ledger.metadata.memory import MemoryTree

EMPTY = CounterNode(next_id=1, token="t")
OTHER = CounterNode(next_id=7, token="t")


@pytest.mark.parametrize("meanwhile", ["nothing", "removed", "replaced", "damaged once more"])
def test_damaged_node_is_written_anew_unless_somebody_else_was_faster(meanwhile: str) -> None:
    async def by_somebody_else(other: MetadataStore) -> None:
        version = (await other.get("node")).version
        match meanwhile:
            case "removed":
                await other.delete("node", version)
            case "replaced":
                await other.put("node", encode_node(OTHER), version)
            case "damaged once more":
                await other.put("node", b"?", version)

    async def main() -> None:
        tree = MemoryTree()
        other = tree.open_session()
        await other.create("node", b"{")
        store = tree.open_session()
        put, is_first = store.put, True

        async def late(path: str, data: bytes, version: int) -> int:
            nonlocal is_first
            if is_first:
                is_first = False
                await by_somebody_else(other)
            return await put(path, data, version)

        store.put = late  # type: ignore[method-assign]
        found = await read_or_renew(store, EMPTY, "node")
        wanted = {"removed": None, "replaced": OTHER}.get(meanwhile, EMPTY)
        assert (None if found is None else found.value) == wanted

    asyncio.run(main())
