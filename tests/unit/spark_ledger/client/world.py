"""The world of the client tests: scripted bookies, with metadata and transport in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.config import ClientConfig
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import DEFAULT_RACK, BookieId, BookieInfo, BookieState
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.virtual_time import run_in_virtual_time


class World:
    """Bookies b0, b1, ... and a metadata tree; clients are sessions on it."""

    def __init__(self, bookies: int, racks: int = 0) -> None:
        """``racks``: deal the bookies out to so many racks, /r0, /r1, ..."""
        self.racks = racks
        self.tree = MemoryTree()
        self.bookies = {BookieId(f"b{i}"): ScriptedBookie() for i in range(bookies)}
        self.alive = dict(self.bookies)
        self._registries: dict[BookieId, BookieRegistry] = {}
        self._transports: list[MemoryTransport] = []
        self._clients: list[LedgerClient] = []

    async def start(self) -> None:
        for bookie_id in self.bookies:
            await self.register(bookie_id)

    async def register(self, name: str, state: BookieState = BookieState.WRITABLE) -> None:
        bookie_id = BookieId(name)
        registry = BookieRegistry(MemoryMetadataStore(self.tree))
        self._registries[bookie_id] = registry
        await registry.register(
            BookieInfo(bookie_id, f"memory:{bookie_id}", state, rack=self.rack(bookie_id))
        )

    def rack(self, name: str) -> str:
        """Where a bookie is."""
        return f"/r{int(name[1:]) % self.racks}" if self.racks else DEFAULT_RACK

    async def client(self, **options: Any) -> LedgerClient:
        transport = MemoryTransport(self.alive)
        self._transports.append(transport)
        client = await LedgerClient.over(
            MemoryMetadataStore(self.tree), transport, ClientConfig(**options)
        )
        self._clients.append(client)
        return client

    def kill(self, name: str) -> None:
        """The bookie answers nobody any more; its registration stays, as after kill -9."""
        self.alive.pop(BookieId(name), None)
        for transport in self._transports:
            transport.disconnect(BookieId(name))

    def revive(self, name: str) -> None:
        self.alive[BookieId(name)] = self.bookies[BookieId(name)]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for registry in self._registries.values():
            await registry.deregister()


@asynccontextmanager
async def world(bookies: int = 3, racks: int = 0) -> AsyncIterator[World]:
    made = World(bookies, racks)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def run(test: Callable[[World], Awaitable[None]], *, bookies: int = 3) -> None:
    """Run an async test against a fresh world, in at most 20 seconds of real time.

    For what works in threads, as passwords do, and for bugs that would ask again and again: virtual
    time would stand still then. All others are quicker with ``run_virtually``.
    """
    asyncio.run(_tested(test, bookies))


def run_virtually(
    test: Callable[[World], Awaitable[None]], *, bookies: int = 3, racks: int = 0
) -> None:
    """The same on a clock that only waits move: for tests in which somebody is late or slow, and
    nobody must be so because the machine is busy."""
    run_in_virtual_time(_tested(test, bookies, racks))


async def _tested(test: Callable[[World], Awaitable[None]], bookies: int, racks: int = 0) -> None:
    async with world(bookies, racks) as made:
        await asyncio.wait_for(test(made), 20)
