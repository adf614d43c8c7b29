"""A bookie that speaks of fences that are not there: it is replaced, and new ledgers do without.

Nothing else goes wrong with bookies in such a schedule (``options``). So a member that told a
writer of a false fence and was replaced was replaced for that, and for two minutes no new ledger of
this client may use it, since there are enough others (rule P18).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import LedgerError
from spark_ledger.limits.client import BOOKIE_LIED_S
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, LedgerId

if TYPE_CHECKING:
    from tests.sim.clients import Client
    from tests.sim.node import BookieNode
    from tests.sim.world import World

_MORE_LEDGERS: Final = 4
_RATE: Final = 0.3


class FalseFences:
    """Who speaks of fences that are not there, and of which ledgers it did."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._draw: random.Random = world.random_for("false fences")
        self._fencer = BookieId(f"b{self._draw.randrange(world.options.bookies)}")
        self._told: dict[LedgerId, float] = {}

    def strikes(self, node: BookieNode, run: EntryRun) -> bool:
        """Whether an add is refused for a fence that is not there."""
        if node.bookie_id != self._fencer or self._world.healing:
            return False
        if self._draw.random() >= _RATE or run.ledger_id in node.promises.fenced:
            return False
        self._told[run.ledger_id] = self._world.loop.now
        self._world.fault("false fence", f"{node.name} says that ledger {run.ledger_id} is fenced")
        return True

    def found_out(self, writer: LedgerWriter) -> bool:
        """Whether a writer has replaced the bookie for what it said."""
        first, *later = writer.metadata.fragments
        return (
            writer.ledger_id in self._told
            and self._fencer in first.bookies
            and bool(later)
            and self._fencer not in later[-1].bookies
        )

    def check_new_ledger(self, client: Client, writer: LedgerWriter, since: float) -> None:
        """Check rule P18 for a ledger that a client has made which knows better since then."""
        world = self._world
        if world.loop.now - since >= BOOKIE_LIED_S * 0.5:
            return  # clocks may run at other speeds
        if self._fencer in writer.metadata.fragments[0].bookies:
            text = f"{client.name} makes ledger {writer.ledger_id} on {self._fencer}, which lied"
            world.violate("I13", "liar used again", text)


async def write_more(client: Client, connected: LedgerClient, writer: LedgerWriter) -> None:
    """Make more ledgers of the same shape, as a process does that rolls over."""
    world = client.world
    fences = world.misbehaviour.false_fences
    assert fences is not None, "More ledgers are made where fences are false."
    quorums, since = writer.metadata.quorums, -1.0
    for _ in range(_MORE_LEDGERS):
        if since < 0 and fences.found_out(writer):
            since = world.loop.now
        try:
            writer = await connected.create_ledger(
                ensemble_size=quorums.ensemble_size,
                write_quorum=quorums.write_quorum,
                ack_quorum=quorums.ack_quorum,
            )
            world.invariants.of(writer.ledger_id).untold = True
            if since >= 0:
                world.counts["ledgers made beside a known liar"] += 1
                fences.check_new_ledger(client, writer, since)
            await writer.append(b"more")
            await writer.close()
        except LedgerError as error:
            world.say(f"{client.name} makes no more ledgers: {type(error).__name__}: {error}")
            return
