"""Simulated keepers with so little patience that they delete what a slow commit is about to name.

They die and come back, and there may be two: one that was paused, and the one elected after it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError, NotFoundError
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import CLOCK_PATH, KeeperClock
from spark_ledger.metadata.json_nodes import decode_node
from spark_ledger.stream.catalog import StreamCatalog
from tests.sim.serving import ServiceClient
from tests.sim.streams import NAME, StreamClient

if TYPE_CHECKING:
    from tests.sim.options import StreamPlan
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
_REPLACED_GRACES_S: Final = (0.0, 0.0, 0.5, 3600.0)
"""The last is longer than any schedule: each backup is complete (rule K11)."""
_AUDIT_S: Final = 0.2
_OPTIMIZE_S: Final = 0.2
_SETTLES_S: Final = 60.0


def config_of(world: World) -> KeeperConfig:
    """The settings of the keepers of a schedule: rows that were dropped stay for so long, or go
    while a commit is about to name their ledger again."""
    graces_s = _GRACES_OF_RACES_S if world.options.races else _GRACES_S
    grace_s = world.random_for("grace of dropped rows").choice(graces_s)
    audit_s = _AUDIT_S if world.options.audits else 0.0
    optimize_s = _OPTIMIZE_S if world.options.packs else 0.0
    replaced_s = world.random_for("grace of what was replaced").choice(_REPLACED_GRACES_S)
    return replace(
        CONFIG,
        dropped_grace_s=grace_s,
        dropped_least_s=0.4 * grace_s,
        replaced_grace_s=replaced_s,
        audit_s=audit_s,
        optimize_s=optimize_s,
    )


def time_of(data: bytes) -> int:
    """The time that a keeper has written down."""
    return decode_node(KeeperClock, CLOCK_PATH, data).time_ms


class KeeperClient(ServiceClient):
    """A keeper."""

    crash_fault = "keeper crash"
    _keeper: Keeper

    async def serve(self, client: LedgerClient, stop: asyncio.Event) -> None:
        """See ``ServiceClient``."""
        self._keeper = Keeper(client, config_of(self.world))
        await self._keeper.run(stop)

    def ending(self) -> None:
        """Count what it has done."""
        counts, done = self.world.counts, self._keeper.done
        counts["ledgers that a keeper deleted"] += done["deleted"]
        counts["ledgers that a keeper recovered"] += done["recovered"]
        counts["ledgers that an audit deleted"] += done["audited"]
        counts["packs that a keeper made"] += self._keeper.packed


class LastKeeper(StreamClient):
    """A keeper that comes when all is quiet, and gives back whatever was dropped."""

    def __init__(self, world: World, name: str, plan: StreamPlan) -> None:
        super().__init__(world, name, plan)
        self.start(self._run())

    async def _run(self) -> None:
        client, stop = await self.connect(), asyncio.Event()
        keeper = Keeper(client, config_of(self.world))
        working = asyncio.get_running_loop().create_task(keeper.run(stop))
        loop, left = asyncio.get_running_loop(), "it did not come that far"
        until_s = loop.time() + _SETTLES_S
        while left and loop.time() < until_s:
            await asyncio.sleep(0.5)
            left = await self._left(StreamCatalog(client))
        stop.set()
        await working
        if left and not (self.world.is_beyond_tolerance or self.drops.is_stopped):
            text = f"dropped rows are there after {_SETTLES_S:.0f} s: {left}"
            self.world.violate("retention", "T18", text)

    async def _left(self, streams: StreamCatalog) -> str:
        """What is still to do; "" for nothing."""
        try:
            stream = await streams.open(NAME)
            extent = await stream.retention.extent()
            await stream.close()
        except NotFoundError:
            return ""  # nobody could make it
        except LedgerError as error:
            return f"{type(error).__name__}: {error}"
        dropped, earliest = extent.dropped_commits, extent.head.earliest_commit
        if any(pack.end <= dropped for pack in self.drops.packs.packs):
            return f"a pack of commits below {dropped} is there"
        return "" if dropped >= earliest else f"{dropped} of {earliest} commits are given back"
