"""Ledgers whose bookies are lost, and auditors and workers that may be cut off anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.metadata.unsettled import pages
from spark_ledger.repair.auditor import Auditor, AuditorConfig
from spark_ledger.repair.nodes import PRIORITIES, mark_root
from spark_ledger.repair.plan import final_fragments, lane_copies
from spark_ledger.repair.worker import Worker, WorkerConfig
from spark_ledger.types import BookieId, LedgerId
from tests.listed import listed
from tests.unit.spark_ledger.client.world import World
from tests.unit.spark_ledger.keeper.world import Clock

AUDIT = AuditorConfig(lost_bookie_delay_s=100.0, pass_s=10.0, reads_per_s=1e6)
WORK = WorkerConfig(bytes_per_s=1e12, open_grace_s=200.0)


class Crew:
    """An auditor and a worker, on a clock that a test moves."""

    def __init__(self, world: World, auditing: LedgerClient, working: LedgerClient) -> None:
        self.world = world
        self.clock = Clock()
        self.auditor = Auditor(auditing, AUDIT, clock=self.clock)
        self.worker = Worker(working, WORK, clock=self.clock)

    async def passes(self, seconds: float) -> None:
        """A look of each, every ten seconds."""
        for _ in range(round(seconds / 10)):
            self.clock.now += 10.0
            await self.auditor.run_pass()
            await self.worker.run_pass()


async def crew(world: World, **config: Any) -> Crew:
    made = Crew(world, await world.client(), await world.client())
    made.worker._config = replace(WORK, **config)
    return made


async def give_cookies(world: World) -> None:
    """Let the cluster remember its bookies when they are gone."""
    store = MemoryMetadataStore(world.tree)
    for bookie_id in world.bookies:
        await BookieRegistry(store).create_cookie(bookie_id, b"{}")
    await store.close()


async def lose(world: World, name: str) -> None:
    """The bookie is gone for good, and its session has ended."""
    world.kill(name)
    await world._registries[BookieId(name)].deregister()


async def marked(world: World) -> dict[int, int]:
    """The marked ledgers, each with the copies that it had left."""
    return await marked_in(world.tree)


async def marked_in(tree: MemoryTree) -> dict[int, int]:
    """The same of a tree of metadata."""
    store = MemoryMetadataStore(tree)
    try:
        return {
            ledger_id: copies
            for copies in PRIORITIES
            async for page in pages(store, mark_root(copies))
            for ledger_id in page.ids
        }
    finally:
        await store.close()


async def lacking(world: World, client: LedgerClient, ledger_id: int) -> list[tuple[int, int, str]]:
    """Entries that a bookie which the metadata name does not hold: counted on the bookies."""
    ledger = await client.ledger_metadata(ledger_id)
    found: list[tuple[int, int, str]] = []
    for fragment in final_fragments(ledger):
        for index, bookie_id in enumerate(fragment.bookies):
            held = listed(world.bookies[bookie_id], LedgerId(ledger_id)) or []
            lanes = lane_copies(ledger, fragment, index, lost=())
            wanted = {e for each in lanes for e in range(each.first, each.last + 1, each.stride)}
            if bookie_id in world.alive:
                wanted -= {entry_id for low, high in held for entry_id in range(low, high + 1)}
            found += [(fragment.first, entry_id, bookie_id) for entry_id in sorted(wanted)]
    return found


async def contents(client: LedgerClient, ledger_id: int) -> list[bytes]:
    """All confirmed payloads."""
    reader = await client.open_ledger(ledger_id)
    if reader.last_add_confirmed < 0:
        return []
    return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]
