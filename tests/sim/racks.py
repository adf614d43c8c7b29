"""All bookies of one rack go at once, for good or for a while, and the policy asks for two racks.

Nothing else goes wrong with bookies in such a schedule (``options``), and writers begin once all
are registered. So each entry has its copies in two racks or more, no rack holds as many as
acknowledge it (``min_racks_for_durability``), nothing may be lost, and nobody lacks bookies.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Final

from spark_ledger.errors import NotEnoughBookiesError
from spark_ledger.metadata.cluster import ensure_cluster, set_placement
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.protocol.racks import faults
from spark_ledger.types import LedgerId, PlacementPolicy
from tests.sim.announcing import RACKS, rack_of
from tests.sim.clients import Client

if TYPE_CHECKING:
    from tests.sim.world import World

BEGIN_S: Final = 0.5
"""Bookies and the policy are there by then."""

_LEDGER: Final = re.compile(r"ledgers/(\d{2})/(\d{4})/L(\d{4})")

POLICY: Final = PlacementPolicy(min_racks=2, min_racks_for_durability=2)


class RackLoss:
    """Belongs to the world of a schedule that loses a rack."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._draw: random.Random = world.random_for("rack")
        self._rack = f"/r{self._draw.randrange(RACKS)}"
        self._is_lost = False
        self._lost_for_good = world.options.rack_loss == "for good"
        Operator(world)
        world.loop.later(self._draw.uniform(BEGIN_S + 0.1, BEGIN_S + 1.2), None, self._strike)

    def _strike(self) -> None:
        world = self._world
        if world.healing:
            return
        nodes = [n for n in world.nodes.values() if rack_of(n.bookie_id) == self._rack]
        for node in nodes:
            if node.process is not None:
                node.crash(self._draw.choice(["process", "power", "lottery"]))
            if self._lost_for_good:
                node.broken, node.weak = "its rack burnt down", True
        world.fault("rack lost", f"{self._rack} {world.options.rack_loss}")
        self._is_lost = True
        if not self._lost_for_good:
            for node in nodes:
                world.loop.later(self._draw.uniform(0.5, 4.0), None, node.start)

    # -- what must hold ----------------------------------------------------------------------------

    def observe(self, path: str, data: bytes | None) -> None:
        """A metadata node has changed: until the loss, ledgers adhere to the policy, as the
        argument needs."""
        match = _LEDGER.fullmatch(path)
        if match is None or data is None or self._is_lost:
            return
        ledger = decode_ledger(path, LedgerId(int("".join(match.groups()))), data)
        for fragment in ledger.fragments:
            racks = [rack_of(each) for each in fragment.bookies]
            if against := faults(racks, ledger.quorums, POLICY):
                text = f"ledger {ledger.ledger_id} at {fragment.first_entry}: {against[0]}"
                self._world.violate("I9", "misplaced", text)

    def append_ended(self, name: str, error: BaseException | None) -> None:
        """Two racks are left, and writers go on there."""
        self._world.counts["entries confirmed without a rack"] += error is None and self._is_lost
        if isinstance(error, NotEnoughBookiesError):
            self._world.violate("I13", "writer without bookies", f"{name}: {error}")


class Operator(Client):
    """Sets the placement policy of the cluster, before anybody writes."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "operator")
        world.clients.append(self)
        self.start(self._run())

    async def _run(self) -> None:
        client = await self.connect()
        await ensure_cluster(client.store)
        await set_placement(client.store, POLICY)
