"""Whoever deletes ledgers has bookies look soon: the keeper, a client, and a deleted stream."""

from __future__ import annotations

import asyncio

from spark_ledger.metadata.deletions import read_sign
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes, task

SOON_S = 3.0


async def signs(world: World) -> int:
    await asyncio.sleep(SOON_S)
    return await read_sign(MemoryMetadataStore(world.tree)) + 1


def test_dropped_rows_and_unnamed_ledgers_have_signs() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 3)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 60)
        assert await signs(world) == 0, "nothing was deleted"
        await stream.retention.truncate((2,))
        await passes(cared, clock, 180)
        assert await signs(world) == 1
        await task(world, 9)
        await passes(cared, clock, 60)
        assert cared.done["deleted"] == 1 and await signs(world) == 2

    run_virtually(test)


def test_deleted_ledger_and_deleted_stream_have_signs() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger() as writer:
            await writer.append(b"x")
        assert await signs(world) == 0
        await client.delete_ledger(writer.ledger_id)
        assert await signs(world) == 1
        await closed_commits(world, await new_stream(client), 3)
        deleting = await world.client()
        await StreamCatalog(deleting).delete("s")
        await deleting.close()
        assert await read_sign(MemoryMetadataStore(world.tree)) == 1, "at once, as it is closed"

    run_virtually(test)
