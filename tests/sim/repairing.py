"""Simulated repair: so impatient that each bookie that dies for a moment has its copies made again,
beside writers, recoveries and readers of the same ledgers; and what must hold at each change."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError
from spark_ledger.metadata.cookies import leaving_path
from spark_ledger.repair.auditor import AuditorConfig
from spark_ledger.repair.balance import Balance
from spark_ledger.repair.checker import CheckerConfig
from spark_ledger.repair.plan import FinalFragment, final_fragments, lane_copies
from spark_ledger.repair.rebalance import Rebalance, RebalanceConfig, Rebalanced
from spark_ledger.repair.service import RepairConfig, run_repair
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.types import LedgerId, LedgerMetadata
from tests.sim.serving import ServiceClient

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from spark_ledger.types import BookieId
    from tests.sim.base import SimBase
    from tests.sim.node import BookieNode

CONFIG: Final = RepairConfig(
    AuditorConfig(lost_bookie_delay_s=0.1, pass_s=0.1, reads_per_s=1e4, mass_loss_share=0.8),
    WorkerConfig(bytes_per_s=1e6, pass_s=0.1, open_grace_s=1.0),
    CheckerConfig(members_per_s=1e4, closed_pass_s=0.3),
)
REBALANCE: Final = RebalanceConfig(tolerance=0.01, bytes_per_s=1e6, reads_per_s=1e4)

_SLOW_BYTES_PER_S: Final = 2e3
_SLOWEST_COPY_S: Final = 20.0
"""Of a whole ledger: all copies that a schedule needs are made in the time that it has to heal."""

_CHANGES_ITS_MIND: Final = 0.05


class _Whims(Rebalance):
    """A rebalance that finds another bookie empty each time, so that there is much to do."""

    def __init__(
        self,
        client: LedgerClient,
        config: RebalanceConfig,
        draw: random.Random,
        told: Callable[[Rebalanced], None],
    ) -> None:
        super().__init__(client, config, told=told)
        self._draw = draw

    async def _look(self) -> Balance:
        found = await super()._look()
        held = {name: share.held_bytes for name, share in found.shares.items()}
        empty = self._draw.choice(sorted(held)) if held else ""
        bookies = [
            replace(info, free_bytes=10**9 if info.bookie_id == empty else 1)
            for info in self._context.directory.all()
            if info.bookie_id in held
        ]
        return Balance(bookies, held, self._config.tolerance)


class RepairClient(ServiceClient):
    """An auditor and a worker; and an operator who takes bookies out, and lets them stay."""

    crash_fault = "repairer crash"
    _leaving = ""
    """The node that says who is to leave."""

    async def serve(self, client: LedgerClient, stop: asyncio.Event) -> None:
        """See ``ServiceClient``."""
        moving = asyncio.ensure_future(self._rebalance(client))
        try:
            await run_repair(client, self._config(), stop)
        finally:
            moving.cancel()

    def _config(self) -> RepairConfig:
        """Half of the workers are so slow that each copy waits for seconds."""
        largest = max((each.entries * each.size for each in self.world.options.ledgers), default=0)
        slow = max(_SLOW_BYTES_PER_S, largest / _SLOWEST_COPY_S)
        rate = self.world.random_for(f"rate of {self.name}").choice([slow, 1e6])
        return replace(CONFIG, worker=replace(CONFIG.worker, bytes_per_s=rate))

    async def _rebalance(self, client: LedgerClient) -> None:
        """An operator evens out what bookies hold, again and again, beside everybody else."""
        draw = self.world.random_for(f"rebalance {self.name}")
        while True:
            await asyncio.sleep(draw.uniform(0.1, 1.5))
            config = replace(REBALANCE, moves_max=draw.choice([1, 3, None]))
            with contextlib.suppress(LedgerError):
                await _Whims(client, config, draw, told=self._moved).run()

    def _moved(self, so_far: Rebalanced) -> None:
        self.world.counts["copies moved"] += so_far.moves > 0

    def recovers(self, ledger_id: int) -> None:
        """No writer loses its ledger before it had time."""
        assert self.world.marks is not None, "this schedule has repairers"
        self.world.marks.recovers(LedgerId(ledger_id))

    async def look(self, client: LedgerClient) -> None:
        """An operator takes out a bookie that is well, or lets it stay."""
        if self.draw.random() >= _CHANGES_ITS_MIND:
            return
        with contextlib.suppress(LedgerError):
            if self._leaving:
                await client.store.delete(self._leaving)
                self._leaving = ""
                return
            path = leaving_path(self.draw.choice(sorted(self.world.nodes)))
            await client.store.create(path, b"")
            self.world.fault("bookie taken out", path)
            self._leaving = path


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
            promises = nodes[bookie_id].promises
            held = {*promises.acknowledged.get(ledger_id, ()), *promises.left.get(ledger_id, ())}
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
