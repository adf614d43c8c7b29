"""Simulated repair: so impatient that each bookie that dies for a moment has its copies made again,
beside writers, recoveries and readers of the same ledgers; and what must hold at each change."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import LedgerError
from spark_ledger.metadata.cookies import leaving_path
from spark_ledger.repair.auditor import AuditorConfig
from spark_ledger.repair.plan import FinalFragment, final_fragments, lane_copies
from spark_ledger.repair.service import RepairConfig, run_repair
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.types import LedgerMetadata
from tests.sim.clients import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_ledger.types import BookieId
    from tests.sim.base import SimBase
    from tests.sim.node import BookieNode
    from tests.sim.world import World

CONFIG: Final = RepairConfig(
    AuditorConfig(lost_bookie_delay_s=0.1, pass_s=0.1, reads_per_s=1e4, mass_loss_share=0.8),
    WorkerConfig(bytes_per_s=1e6, pass_s=0.1, open_grace_s=1.0),
)
_CRASH: Final = 0.02
_CHANGES_ITS_MIND: Final = 0.05
_LOOK_S: Final = 0.05
_AFTER_HEALING_S: Final = 2.0


class RepairClient(Client):
    """An auditor and a worker, until a while after the faults have ended."""

    def __init__(self, world: World, name: str, starts: int = 0) -> None:
        super().__init__(world, f"{name}.{starts}")
        self._repairer = name
        self._starts = starts
        self.start(self._run())

    async def connect(self) -> LedgerClient:
        """A client whose recoveries are in the history, as everybody's are."""
        client = await super().connect()
        open_ledger = client.open_ledger

        async def recorded(ledger_id: int, *, recover: bool = False) -> LedgerReader:
            opening = open_ledger(ledger_id, recover=recover)
            if recover and ledger_id in self.world.ledger_ids:
                reader = await self.attempt("recover", opening, ledger_id=ledger_id)
                assert isinstance(reader, LedgerReader), "that is what opening a ledger gives"
                return reader
            return await opening

        client.open_ledger = recorded  # type: ignore[method-assign,assignment]
        return client

    async def _run(self) -> None:
        world, stop = self.world, asyncio.Event()
        client = await self.connect()
        working = asyncio.get_running_loop().create_task(run_repair(client, CONFIG, stop))
        leaving = ""
        while not world.healing:
            await asyncio.sleep(_LOOK_S)
            if self.draw.random() < _CHANGES_ITS_MIND:
                leaving = await self._change_its_mind(client, leaving)
            if self.draw.random() < _CRASH:
                world.fault("repairer crash", self.name)
                again_s = self.draw.uniform(0.0, 0.5)
                name, starts = self._repairer, self._starts + 1
                world.loop.later(again_s, None, start_repairer, world, name, starts)
                self.crash()
                await asyncio.sleep(0)  # a dead process never returns from here
        await asyncio.sleep(_AFTER_HEALING_S)
        stop.set()
        await working

    async def _change_its_mind(self, client: LedgerClient, leaving: str) -> str:
        """An operator takes out a bookie that is well, or lets it stay; who is to leave now."""
        world = self.world
        with contextlib.suppress(LedgerError):
            if leaving:
                await client.store.delete(leaving)
                return ""
            path = leaving_path(self.draw.choice(sorted(world.nodes)))
            await client.store.create(path, b"")
            world.fault("bookie taken out", path)
            return path
        return leaving


def start_repairer(world: World, name: str, starts: int = 0) -> None:
    """Start one more repairer."""
    if not world.healing:
        world.clients.append(RepairClient(world, name, starts))


def is_repair(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Whether a change is one that only repair makes: fragments that were final have other bookies,
    and nothing else has changed (rule R2)."""
    if new.with_changes(fragments=old.fragments) != old:
        return False
    before, after = final_fragments(old), final_fragments(new)
    final, rest = len(before), old.fragments[len(before) :]
    same = [each[:2] for each in before] == [each[:2] for each in after]
    return same and before != after and list(new.fragments[final:]) == list(rest)


def check_repair(
    world: SimBase,
    nodes: Mapping[BookieId, BookieNode],
    old: LedgerMetadata,
    new: LedgerMetadata,
) -> None:
    """Whoever is named for the first time holds all that it should (rules R4 and R5)."""
    world.counts["repairs"] += 1
    ledger_id = new.ledger_id
    for before, after in zip(final_fragments(old), final_fragments(new), strict=True):
        for index, bookie_id in enumerate(after.bookies):
            if before.bookies[index] == bookie_id:
                continue
            held = nodes[bookie_id].promises.acknowledged.get(ledger_id, ())
            lacks = [entry_id for entry_id in _wanted(new, after, index) if entry_id not in held]
            if lacks:
                text = (
                    f"ledger {ledger_id}: {bookie_id} is named for the fragment at {after.first}, "
                    f"and has not acknowledged {lacks}"
                )
                world.violate("I3", "named before it holds", text)


def _wanted(ledger: LedgerMetadata, fragment: FinalFragment, index: int) -> list[int]:
    lanes = lane_copies(ledger, fragment, index, lost=())
    return [e for lane in lanes for e in range(lane.first, lane.last + 1, lane.stride)]
