"""Bookies that do not do their part: disks that hang, answers that they are busy, and lies.

One bookie of a schedule lies, and only as far as the promises allow for one (rules P5, P14, P18,
P19): it never denies an entry to a recovery, and never acknowledges what it has not stored. What it
says is changed on its way, so that the checks of what bookies hold see the truth.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId, Quorums
from tests.sim.fences import FalseFences

if TYPE_CHECKING:
    from tests.sim.node import BookieNode
    from tests.sim.world import World

_REFUSALS: Final = (
    BookieStatus.FENCED,
    BookieStatus.FENCED,
    BookieStatus.UNAUTHORIZED,
    BookieStatus.ENTRY_CONFLICT,
    BookieStatus.READ_ONLY,
    BookieStatus.NO_SUCH_LEDGER,
)
STALL_TOLD_S: Final = 0.25
"""How long a journal hangs until its bookie says so: below the clients' add timeout, as it is."""


class Misbehaviour:
    """What stands between clients and bookies in a schedule."""

    def __init__(self, world: World) -> None:
        self.world = world
        options = world.options
        self._draw: random.Random = world.random_for("misbehaviour")
        self._busy = options.busy
        self._liar = BookieId("")
        shapes = [Quorums(*plan.quorums) for plan in (*options.ledgers, options.stream) if plan]
        self._lies_about_ends = options.lies == "ends"
        self._may_deny = all(shape.ack_quorum > 1 for shape in shapes)
        """Where one copy is enough it may be the liar's."""
        if options.lies:
            self._liar = BookieId(f"b{self._draw.randrange(options.bookies)}")
        if options.stalls:
            self._next_stall()
        self._disks: random.Random = world.random_for("disks of ledgers")
        if options.ledger_stalls:
            self._next_ledger_stall()
        self.false_fences = FalseFences(world) if options.false_fences else None

    def is_busy(self, what: str) -> bool:
        """Whether a request is refused as busy."""
        if not self._busy or self.world.healing or self._draw.random() >= self._busy:
            return False
        self.world.fault("busy answer", what)
        return True

    def _lies(self, node: BookieNode, rate: float) -> bool:
        return (
            node.bookie_id == self._liar and not self.world.healing and self._draw.random() < rate
        )

    # -- answers -----------------------------------------------------------------------------------

    def refusal(self, node: BookieNode, run: EntryRun) -> BookieStatus | None:
        """What an add is answered instead of being handled; None if it is handled."""
        if self.is_busy(f"add {run.ledger_id}/{run.first_entry} to {node.name}"):
            return BookieStatus.TOO_MANY_REQUESTS
        if self.false_fences is not None and self.false_fences.strikes(node, run):
            return BookieStatus.FENCED
        if not self._lies_about_ends and self._lies(node, 0.1):
            status = self._draw.choice(_REFUSALS)
            self.world.fault("lie", f"{node.name} says {status.name} to an add")
            return status
        return None

    def invents_news(self, node: BookieNode) -> bool:
        """Whether a long poll is answered at once, with an end that it makes up."""
        return self._lies_about_ends and self._lies(node, 0.3)

    def told(self, node: BookieNode, ledger_id: LedgerId, answer: LastConfirmed) -> LastConfirmed:
        """What a question for the last add confirmed is answered."""
        honest = answer.status is BookieStatus.OK or answer.status.is_denial
        if not honest or not self._lies_about_ends or not self._lies(node, 0.5):
            return answer
        last = EntryId(answer.last_add_confirmed + self._draw.choice([1, 2, 7, 2**62]))
        self.world.fault("lie", f"{node.name} tells {last} as last of ledger {ledger_id}")
        held = EntryId(max(answer.last_entry, self._draw.choice([-1, last])))
        if not self._may_deny:
            held = answer.last_entry
        return LastConfirmed(BookieStatus.OK, last, held)

    def read(
        self, node: BookieNode, chunks: list[ReadChunk], first: EntryId, *, fence: bool
    ) -> list[ReadChunk]:
        """What a read is answered: another payload, or to a reader that there is no such entry."""
        if self._lies_about_ends or not self._lies(node, 0.4):
            return chunks
        what = self._draw.choice(["payload", "payload", "no entry", "no ledger"])
        self.world.fault("lie", f"{node.name} brings {what} for entry {first}")
        if what == "payload":
            return [_changed(chunk, self._draw) for chunk in chunks]
        status = BookieStatus.NO_SUCH_LEDGER if what == "no ledger" else BookieStatus.NO_SUCH_ENTRY
        if fence or not self._may_deny:
            status = BookieStatus.IO_ERROR
        return [ReadChunk(status, None, first, "it lies")]

    # -- a journal that hangs ----------------------------------------------------------------------

    def _next_stall(self) -> None:
        self.world.loop.later(self._draw.uniform(0.1, 1.5), None, self._stall)

    def _stall(self) -> None:
        if self.world.healing:
            return
        self._next_stall()
        node = self._draw.choice(list(self.world.nodes.values()))
        if node.hangs:
            return
        node.hangs = True
        self.world.fault("journal hangs", node.name)
        self.world.loop.later(STALL_TOLD_S, None, self._tell, node)
        self.world.loop.later(self._draw.choice([0.2, 0.6, 3.0]), None, self.go_on, node)

    def _next_ledger_stall(self) -> None:
        self.world.loop.later(self._disks.uniform(0.1, 1.5), None, self._stall_ledgers)

    def _stall_ledgers(self) -> None:
        """The disk of the ledgers hangs. The bookie says so once adds wait for it (rule S15)."""
        if self.world.healing:
            return
        self._next_ledger_stall()
        node = self._disks.choice(list(self.world.nodes.values()))
        if node.ledgers_hang:
            return
        node.ledgers_hang = True
        self.world.fault("ledger disk hangs", node.name)
        self.world.loop.later(STALL_TOLD_S, None, self._tell, node)
        self.world.loop.later(self._disks.choice([0.2, 0.6, 3.0]), None, node.ledgers_go_on)

    def go_on(self, node: BookieNode) -> None:
        """The journal's disk hangs no longer."""
        if node.hangs:
            node.hangs = False
            node.commit_soon()

    def _tell(self, node: BookieNode) -> None:
        """Who waits is told once, and who comes while it hangs (rule S15)."""
        if node.process is None or not (node.hangs or node.ledgers_hang):
            return
        adds_wait = node.bookie is not None and bool(node.bookie._waiting)
        if not node.hangs and not adds_wait:
            self.world.loop.later(STALL_TOLD_S, None, self._tell, node)
            return
        for connection in list(node.connections):
            for appender in connection.appenders:
                appender.note_stall()
        self.world.loop.later(STALL_TOLD_S, None, self._tell, node)


def _changed(chunk: ReadChunk, draw: random.Random) -> ReadChunk:
    if chunk.run is None:
        return chunk
    run, frames = chunk.run, bytearray(chunk.run.frames)
    frames[draw.randrange(len(frames))] ^= 1 << draw.randrange(8)
    changed = EntryRun(run.ledger_id, run.first_entry, run.entry_ids, run.sizes, bytes(frames))
    return chunk._replace(run=changed)
