"""Promises that are checked at every event, with a view of every disk and all metadata.

These are the checks that a history of clients cannot make, or only at the end of a schedule.
``tests.history`` makes the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.runs import EntryRun
from spark_ledger.stream.manifest.format import decode_root
from spark_ledger.types import (
    TAG_STREAM_ID,
    BookieId,
    EntryId,
    LedgerId,
    LedgerMetadata,
    LedgerState,
)
from tests.sim.base import SimBase
from tests.sim.node import BookieNode
from tests.sim.repairing import check_repair, is_repair
from tests.sim.restoring import Owners
from tests.sim.witness import Witness

_ROOT_PATH = re.compile(r"streams/[^/]+/manifests")
_LEDGER_PATH = re.compile(r"ledgers/(\d{2})/(\d{4})/L(\d{4})")


@dataclass(slots=True)
class LedgerTruth:
    """What is known about one ledger."""

    metadata: LedgerMetadata | None = None
    confirmed: int = -1
    """The highest entry that the writer's application was told is confirmed."""
    pushed: int = -1
    frames: dict[int, bytes] = field(default_factory=dict)
    """The content of each entry, as first acknowledged."""
    deleted: bool = False
    of_stream: bool = False
    """A stream's writer has made it, which says nothing of what was confirmed."""
    untold: bool = False
    """So it is with one whose writer tells nobody: nothing of it is in the history."""
    disturbed: bool = False
    """ZooKeeper was restored to a time at which the ledger was not closed, see ``restoring``."""


class Invariants(Witness):
    """Checks I1, I3, I4 and I6 to I9 when something happens that could break them."""

    def __init__(self, world: SimBase, nodes: dict[BookieId, BookieNode]) -> None:
        self._world = world
        self._nodes = nodes
        self.ledgers: dict[int, LedgerTruth] = {}
        self.owners: Owners | None = None
        """Whose entries bookies hold, in a schedule with a restore."""

    def of(self, ledger_id: int) -> LedgerTruth:
        """The record of a ledger, created when it is first mentioned."""
        truth = self.ledgers.get(ledger_id)
        if truth is None:
            truth = self.ledgers[ledger_id] = LedgerTruth()
            options = self._world.options
            # Its writers make several ledgers, also with ids that they had before the restore.
            truth.disturbed = options.restores and (options.overtakes or options.stream is not None)
        return truth

    def restored(self, nodes: Mapping[str, bytes]) -> None:
        """The metadata are as these nodes say: only what they know as closed is judged in full."""
        for ledger_id, truth in self.ledgers.items():
            path = ledger_path(LedgerId(ledger_id))
            data = nodes.get(path)
            found = None if data is None else decode_ledger(path, LedgerId(ledger_id), data)
            is_final = found is not None and found.is_closed and not truth.deleted
            truth.metadata, truth.disturbed = found, truth.disturbed or not is_final

    @property
    def disturbed(self) -> frozenset[int]:
        """Ledgers of which a restore may have lost something."""
        return frozenset(each for each, truth in self.ledgers.items() if truth.disturbed)

    # -- what bookies say --------------------------------------------------------------------------

    def stored(self, node: BookieNode, run: EntryRun, collected: int) -> None:
        """Check I4: no entry ever has two contents."""
        if self.owners is not None and (mixed := self.owners.mixed(node, run, collected)):
            self._world.violate("restore", "mixed", mixed)
        if self.of(run.ledger_id).disturbed:
            return
        frames = self.of(run.ledger_id).frames
        for entry_id, frame in run.split():
            known = frames.setdefault(entry_id, bytes(frame))
            if known != frame:
                self._world.violate(
                    "I4",
                    "divergence",
                    f"{node.name} stores another entry {entry_id} of ledger {run.ledger_id}",
                )

    def told(self, node: BookieNode, ledger_id: LedgerId, last_add_confirmed: EntryId) -> None:
        """Check I6: no bookie returns a LAC beyond what was confirmed."""
        truth = self.of(ledger_id)
        if truth.disturbed or truth.of_stream or truth.untold:
            return
        proved = truth.confirmed
        if truth.metadata is not None and truth.metadata.is_closed:
            proved = max(proved, truth.metadata.last_entry_id)
        if last_add_confirmed > proved:
            self._world.violate(
                "I6",
                "lac",
                f"{node.name} tells {last_add_confirmed} as last add confirmed of ledger "
                f"{ledger_id}; {proved} is",
            )

    # -- what writers are told ---------------------------------------------------------------------

    def confirmed(self, ledger_id: int, entry_id: int) -> None:
        """The application was told that an entry is confirmed. Check I8, and that AQ bookies of the
        metadata's ensemble store the entry."""
        truth, metadata = self.of(ledger_id), self.of(ledger_id).metadata
        truth.confirmed = max(truth.confirmed, entry_id)
        if metadata is None or truth.disturbed:
            return  # the ledger was deleted
        if metadata.is_closed and entry_id > metadata.last_entry_id:
            self._world.violate(
                "I8",
                "acknowledged after close",
                f"entry {entry_id} of ledger {ledger_id} was acknowledged, which is closed at "
                f"{metadata.last_entry_id}",
            )
            return
        self._check_copies("I2", ledger_id, metadata, entry_id)

    def withdrawn(self, ledger_id: int) -> None:
        """A writer was told that somebody else has its ledger. Check I13: nobody stops a writer
        by his word alone."""
        truth = self.of(ledger_id)
        metadata = truth.metadata
        if metadata is None or truth.disturbed:
            return
        if metadata.state is LedgerState.OPEN:
            text = f"the writer of ledger {ledger_id} stops for a fence, and nobody has fenced it"
            self._world.violate("I13", "false fence", text)

    def _check_copies(
        self, invariant: str, ledger_id: int, metadata: LedgerMetadata, entry_id: int
    ) -> None:
        fragment = next(f for f in reversed(metadata.fragments) if f.first_entry <= entry_id)
        quorums = metadata.quorums
        holders = [
            bookie
            for bookie in (
                fragment.bookies[(entry_id + place) % quorums.ensemble_size]
                for place in range(quorums.write_quorum)
            )
            if entry_id in self._nodes[bookie].promises.acknowledged.get(LedgerId(ledger_id), ())
        ]
        if len(holders) < quorums.ack_quorum:
            self._world.violate(
                invariant,
                "too few copies",
                f"entry {entry_id} of ledger {ledger_id} counts as confirmed, but of the bookies "
                f"that the metadata name only {' '.join(holders) or 'none'} acknowledged it",
            )

    # -- metadata ----------------------------------------------------------------------------------

    def observe(self, path: str, data: bytes | None) -> None:
        """A metadata node has changed: check I7 and I9."""
        match = _LEDGER_PATH.fullmatch(path)
        if match is None:
            if data and _ROOT_PATH.fullmatch(path):
                levels = decode_root(data, path).levels
                self._world.counts["manifests sealed"] += bool(levels)
                self._world.counts["manifests merged"] += len(levels) > 1
            return
        ledger_id = int("".join(match.groups()))
        truth = self.of(ledger_id)
        if data is None:
            truth.metadata, truth.deleted = None, True
            return
        old, new = truth.metadata, decode_ledger(path, LedgerId(ledger_id), data)
        truth.metadata, truth.of_stream = new, TAG_STREAM_ID in new.custom_metadata
        bookies = " | ".join(f"{f.first_entry}: {' '.join(f.bookies)}" for f in new.fragments)
        self._world.say(f"ledger {ledger_id} is {new.state} {new.last_entry_id}, {bookies}")
        if old is not None:
            self._count_change(old, new)
            self._check_change(ledger_id, truth, old, new)

    def _count_change(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if len(new.fragments) > len(old.fragments):
            self._world.counts["ensemble changes"] += 1
        if new.is_closed and not old.is_closed:
            recovered = old.state is LedgerState.IN_RECOVERY
            self._world.counts["closed by recovery" if recovered else "closed by writer"] += 1

    def _check_change(
        self, ledger_id: int, truth: LedgerTruth, old: LedgerMetadata, new: LedgerMetadata
    ) -> None:
        say = self._world.violate
        if old.incarnation != new.incarnation:
            say("restore", "overwritten", f"ledger {ledger_id} was overwritten by an older one")
            return
        if is_repair(old, new):
            if not truth.disturbed:
                check_repair(self._world, self._nodes, old, new)
            return
        if old.is_closed:
            if new == old and ledger_id in self._world.given_back:
                return  # a bookie outdates who has counted on its copy (rule G9)
            # Also with the same end: whoever closes again has not seen the first close, and would
            # have closed at any other end too.
            say("I7", "closed twice", f"ledger {ledger_id} was closed, and is written once more")
            return
        if old.state is LedgerState.IN_RECOVERY:
            if new.state is LedgerState.OPEN:
                say("I7", "reopened", f"ledger {ledger_id} left recovery and is open again")
            if new.state is LedgerState.IN_RECOVERY and new.fragments != old.fragments:
                say("I9", "ensemble", f"ledger {ledger_id}: fragments changed during recovery")
        if truth.disturbed:
            return
        if new.state is LedgerState.OPEN and new.fragments != old.fragments:
            first = new.last_fragment.first_entry
            if first <= truth.confirmed:
                say(
                    "I9",
                    "fragment below the last confirmed",
                    f"ledger {ledger_id}: a fragment from {first} on was written when "
                    f"{truth.confirmed} was confirmed",
                )
        if new.is_closed:
            self._check_end(ledger_id, truth, new)

    def _check_end(self, ledger_id: int, truth: LedgerTruth, metadata: LedgerMetadata) -> None:
        """Check I1 and I3 when a ledger is closed."""
        if truth.confirmed > metadata.last_entry_id:
            self._world.violate(
                "I1",
                "lost",
                f"ledger {ledger_id} is closed at {metadata.last_entry_id}; entry "
                f"{truth.confirmed} was acknowledged",
            )
        for entry_id in range(metadata.last_entry_id + 1):
            self._check_copies("I3", ledger_id, metadata, entry_id)
