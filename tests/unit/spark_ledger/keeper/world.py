"""Writers that die, streams that are committed to, and keepers that may be killed anywhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.unsettled import OPEN_PATH, UNNAMED_PATH, pages
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Segment
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.client.world import World

SCHEMA = pa.schema([("n", pa.int64())])

CONFIG = KeeperConfig(
    pass_s=10.0,
    owner_grace_s=30.0,
    unnamed_grace_s=100.0,
    replaced_grace_s=0.0,
    recoveries_per_s=1e6,
    deletes_per_s=1e6,
)


class Clock:
    """The keeper's clock; a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def keeper(world: World, clock: Clock, **config: Any) -> Keeper:
    """A keeper over a connection of its own, not elected yet."""
    return Keeper(await world.client(), replace(CONFIG, **config), clock=clock)


async def passes(keeper: Keeper, clock: Clock, seconds: float) -> None:
    """Passes every ten seconds for so long."""
    for _ in range(round(seconds / 10)):
        clock.now += 10.0
        await keeper.run_pass()


async def new_stream(client: LedgerClient, name: str = "s") -> Stream:
    return await StreamCatalog(client).create(name, SCHEMA)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)}, SCHEMA)


async def task(world: World, *numbers: int, name: str = "s", closes: bool = True) -> list[Segment]:
    """What a worker writes that dies before the driver commits; it may close its ledger before."""
    client = await world.client()
    writer = (await StreamCatalog(client).open(name)).writer()
    await writer.write(rows(*numbers))
    segments = await writer.finish()
    if closes:
        await writer.close()
    await client.close()
    return segments


async def unsettled(world: World) -> tuple[list[int], list[int]]:
    """The ledgers that are listed as open, and as unnamed."""
    store = MemoryMetadataStore(world.tree)

    async def listed(root: str) -> list[int]:
        return [each async for page in pages(store, root) for each in page.ids]

    return await listed(OPEN_PATH), await listed(UNNAMED_PATH)


async def read(stream: Stream) -> list[int]:
    async with asyncio.timeout(5):
        return [int(str(n)) async for batch in stream.read() for n in batch.column("n").to_pylist()]
