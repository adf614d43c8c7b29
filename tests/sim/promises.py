"""What a simulated bookie has promised, compared with what it answers, and after each restart with
what its disk holds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from spark_ledger.errors import CorruptionError
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId
from tests.listed import Kept, listed
from tests.sim.witness import Witness

if TYPE_CHECKING:
    from tests.sim.node import BookieNode


GOES_ON_S: Final = 1.0
"""Within so long a disk that goes on has given room to every add that waited for it."""
_A_MOMENT_S: Final = 0.001


class Promises:
    """The promises of one bookie, through all its runs."""

    def __init__(self, node: BookieNode, witness: Witness) -> None:
        self.acknowledged: dict[LedgerId, dict[int, bytes]] = {}
        """Frames that it has acknowledged, by ledger and entry."""
        self.left: dict[LedgerId, frozenset[int]] = {}
        """Of ledgers whose collection failed: what it had acknowledged, and holds still."""
        self.fenced: set[LedgerId] = set()
        """Ledgers whose fence it has answered."""
        self._collected: Counter[LedgerId] = Counter()
        self._node = node
        self._witness = witness

    def times_collected(self, ledger_id: LedgerId) -> int:
        """How often the ledger was collected so far: a promise is of the time between two."""
        return self._collected[ledger_id]

    def collect(self, ledger_id: LedgerId) -> None:
        """The bookie deletes a ledger that nothing names: what was promised of it is taken back,
        and what is accepted, and not yet answered, is no promise."""
        self._collected[ledger_id] += 1
        self.acknowledged.pop(ledger_id, None)
        self.left.pop(ledger_id, None)
        self.fenced.discard(ledger_id)

    def note(self, run: EntryRun, collected: int) -> None:
        """An add is acknowledged that was accepted when the ledger was collected so often."""
        self._witness.stored(self._node, run, collected)
        if collected != self._collected[run.ledger_id]:
            return
        frames = self.acknowledged.setdefault(run.ledger_id, {})
        for entry_id, frame in run.split():
            frames[entry_id] = bytes(frame)

    def note_fence(self, ledger_id: LedgerId, collected: int) -> None:
        """The same of a fence."""
        if collected == self._collected[ledger_id]:
            self.fenced.add(ledger_id)

    def check_served(self, ledger_id: LedgerId, run: EntryRun) -> None:
        """Check I4 before any client verifies digests: a bookie serves what it was given, or
        nothing."""
        known = self.acknowledged.get(ledger_id, {})
        for entry_id, frame in run.split():
            if known.get(entry_id, frame) != frame:
                text = f"{self._node.name} serves another entry {entry_id} of ledger {ledger_id}"
                self._node.world.violate("I4", "served damaged", f"{text} than it acknowledged")

    def check_denial(self, ledger_id: LedgerId, entry_id: EntryId | None) -> None:
        """Check I10: an acknowledged entry is never denied."""
        held = self.acknowledged.get(ledger_id)
        if self._node.weak or not held or (entry_id is not None and entry_id not in held):
            return
        what = f"ledger {ledger_id}" + ("" if entry_id is None else f" entry {entry_id}")
        self._node.world.violate(
            "I10",
            "denial",
            f"{self._node.name} denies {what}, for which it has said that it is durable",
        )

    def check_nothing_waits(self) -> None:
        """Check I13: once the disk of the ledgers has gone on, and the process has run for a while,
        no add waits for room that came before."""
        bookie, node = self._node.bookie, self._node
        if node.process is not None:
            ran_s = node.world.loop.now - node.process.resumed_at
            if ran_s < GOES_ON_S:  # it stood still: what it missed has only begun to run
                wait_s = GOES_ON_S - ran_s + _A_MOMENT_S
                node.world.loop.later(wait_s, node.process, self.check_nothing_waits)
                return
        if bookie is None or node.ledgers_hang or node.disk.full or node.disk.error_in:
            return
        if (
            bookie.failure
            or not bookie._waiting
            or bookie._storage.is_full(bookie._waiting.first.run.ledger_id)
        ):
            return
        text = f"{node.name} has room again, and {len(bookie._waiting)} adds wait all the same"
        node.world.violate("I13", "add waits", text)

    def check_restart(self) -> None:
        """Check I11 and I12 after a restart."""
        if self._node.weak:
            return
        assert self._node.bookie is not None
        for ledger_id in sorted(self.fenced):
            if not self._node.bookie.end_of_ledger(ledger_id, access_key=b"").fenced:
                text = (
                    f"{self._node.name} has restarted and forgotten the fence of ledger {ledger_id}"
                )
                self._node.world.violate("I12", "fence lost", text)
        for ledger_id, frames in sorted(self.acknowledged.items()):
            held = self.held(ledger_id)
            for entry_id, frame in frames.items():
                if held.get(entry_id) != frame:
                    text = (
                        f"{self._node.name} has restarted without entry {entry_id} of ledger "
                        f"{ledger_id}, which it had acknowledged"
                    )
                    self._node.world.violate("I11", "acknowledged add lost", text)
                    break

    def held(self, ledger_id: LedgerId) -> dict[int, bytes]:
        """Every entry of a ledger that this bookie can read, with its frame."""
        bookie = self._node.bookie
        found: dict[int, bytes] = {}
        if bookie is None:
            return found
        try:
            ranges = listed(Kept(bookie), ledger_id) or []
        except (OSError, CorruptionError):
            return found
        for first, last in ranges:
            wanted = first
            while wanted <= last:
                outcome = bookie.read(ledger_id, wanted, last, stride=1, max_bytes=1 << 30)
                for run in outcome.runs:
                    found.update((entry_id, bytes(frame)) for entry_id, frame in run.split())
                wanted = EntryId(outcome.entry_id + 1)
        return found
