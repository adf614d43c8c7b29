"""Simulated keepers with so little patience that they delete what a slow commit is about to name.

They die and come back, and there may be two: one that was paused, and the one elected after it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.keeper.keeper import Keeper, KeeperConfig
from tests.sim.clients import Client

if TYPE_CHECKING:
    from tests.sim.world import World

CONFIG: Final = KeeperConfig(
    pass_s=0.1,
    owner_grace_s=0.2,
    unnamed_grace_s=0.3,
    recoveries_per_s=100.0,
    deletes_per_s=500.0,
)
_GRACES_S: Final = (0.0, 0.0, 1.0)
_GRACES_OF_RACES_S: Final = (0.0, 1.0)
_AUDIT_S: Final = 0.2
_CRASH: Final = 0.02
_LOOK_S: Final = 0.05
_AFTER_HEALING_S: Final = 2.0


def config_of(world: World) -> KeeperConfig:
    """The settings of the keepers of a schedule: rows that were dropped stay for so long, or go
    while a commit is about to name their ledger again."""
    graces_s = _GRACES_OF_RACES_S if world.options.races else _GRACES_S
    grace_s = world.random_for("grace of dropped rows").choice(graces_s)
    audit_s = _AUDIT_S if world.options.audits else 0.0
    return replace(CONFIG, dropped_grace_s=grace_s, audit_s=audit_s)


class KeeperClient(Client):
    """A keeper, until a while after the faults have ended."""

    def __init__(self, world: World, name: str, starts: int = 0) -> None:
        super().__init__(world, f"{name}.{starts}")
        self._keeper_name = name
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
        keeper = Keeper(await self.connect(), config_of(world))
        working = asyncio.get_running_loop().create_task(keeper.run(stop))
        while not world.healing:
            await asyncio.sleep(_LOOK_S)
            if self.draw.random() < _CRASH:
                world.fault("keeper crash", self.name)
                self._count(keeper)
                again_s = self.draw.uniform(0.0, 0.5)
                name, starts = self._keeper_name, self._starts + 1
                world.loop.later(again_s, None, start_keeper, world, name, starts)
                self.crash()
                await asyncio.sleep(0)  # a dead process never returns from here
        await asyncio.sleep(_AFTER_HEALING_S)
        stop.set()
        await working
        self._count(keeper)

    def _count(self, keeper: Keeper) -> None:
        counts = self.world.counts
        counts["ledgers that a keeper deleted"] += keeper.done["deleted"]
        counts["ledgers that a keeper recovered"] += keeper.done["recovered"]
        counts["ledgers that an audit deleted"] += keeper.done["audited"]


def start_keeper(world: World, name: str, starts: int = 0) -> None:
    """Start one more keeper."""
    if not world.healing:
        world.clients.append(KeeperClient(world, name, starts))
