"""Clients that follow a ledger lose ZooKeeper: they see what its bookies tell all the same.

Nothing else goes wrong in such a schedule (``options``). As long as the ledger has the fragments
that the client has read, it needs nothing of the metadata: what all members of the last one know to
be confirmed has to be delivered soon. That nothing more is delivered is checked as ever (I5).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from spark_ledger.client.reader import LedgerReader

if TYPE_CHECKING:
    from tests.sim.clients import ReaderClient
    from tests.sim.world import World

_LOOK_S: Final = 0.25
_SOON_S: Final = 2.5
"""A tail that is begun again looks for the metadata first, for a second. One that stands still is
begun again after two seconds, so that it would be given something after three."""


class LonelyTail:
    """One client that follows a ledger without ZooKeeper."""

    def __init__(self, world: World, client: ReaderClient, reader: LedgerReader) -> None:
        self._world = world
        self._client = client
        self._reader = reader
        draw: random.Random = world.random_for(f"lonely {client.name}")
        world.loop.later(draw.uniform(0.05, 0.8), None, self._begin)

    def _begin(self) -> None:
        world = self._world
        if world.healing or self._client.is_done:
            return
        name = self._client.process.name
        world.zookeeper.cut_off.add(name)
        world.zookeeper.expire(name)  # the client is told, and looks in vain for what has changed
        world.fault("tail without zookeeper", self._client.name)
        self._look()

    def _look(self) -> None:
        """Note what the bookies tell now, and look later whether it was delivered."""
        world = self._world
        if world.healing or self._client.is_done:
            return
        told = self._told()
        if told >= 0:
            world.loop.later(_SOON_S, None, self._check, told)
            world.loop.later(_LOOK_S, None, self._look)
        elif self._is_current():
            world.loop.later(_LOOK_S, None, self._look)

    def _is_current(self) -> bool:
        stored = self._world.invariants.of(self._reader.ledger_id).metadata
        return stored is not None and stored.fragments == self._reader.metadata.fragments

    def _told(self) -> int:
        """What every member of the last fragment knows; -1 if that is nothing, or the client knows
        another fragment."""
        if not self._is_current():
            return -1
        told: list[int] = []
        for bookie_id in self._reader.metadata.last_fragment.bookies:
            bookie = self._world.nodes[bookie_id].bookie
            if bookie is None:
                return -1
            end = bookie.end_of_ledger(self._reader.ledger_id, access_key=b"")
            told.append(end.last_add_confirmed)
        return min(told)

    def _check(self, told: int) -> None:
        client, world = self._client, self._world
        if world.healing or client.is_done or client.delivered > told:
            return
        text = (
            f"{client.name} was given ledger {self._reader.ledger_id} up to {client.delivered - 1} "
            f"without ZooKeeper, and its bookies have told up to {told} for {_SOON_S} s"
        )
        world.violate("I13", "tail stands still", text)
