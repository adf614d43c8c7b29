"""The state after all faults have healed, read afresh, to compare with what clients were told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ledger.types import Fragment, Quorums
from tests.history.model import NO_ENTRY


@dataclass(frozen=True, slots=True)
class FinalLedger:
    """A ledger after healing, opened with recovery by a client that took no part before.

    ``values`` are all its entries as that reader got them, ``end`` its last entry id (-1: empty).
    ``replicas`` says what each bookie itself holds: entry id to the value, or to a digest of the
    frame (digests are compared between bookies only). A bookie that could not be asked is left
    out. A ledger that was deleted has only its id, its quorums and ``deleted``. ``unreadable``
    names the error if the recovery or the read failed, which is a violation after healing unless
    ``beyond_tolerance``: more replicas are gone for good than the ack quorum allows.
    """

    ledger_id: int
    quorums: Quorums
    fragments: tuple[Fragment, ...] = ()
    closed: bool = True
    end: int = NO_ENTRY
    values: tuple[str, ...] = ()
    replicas: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    deleted: bool = False
    unreadable: str = ""
    beyond_tolerance: bool = False

    def write_set(self, entry_id: int) -> tuple[str, ...]:
        """The bookies that must have been sent an entry: its write set (rule P1)."""
        fragment = next(f for f in reversed(self.fragments) if f.first_entry <= entry_id)
        return self.write_set_of(fragment, entry_id)

    def write_set_of(self, fragment: Fragment, entry_id: int) -> tuple[str, ...]:
        """The same for an entry of this fragment."""
        size = self.quorums.ensemble_size
        indexes = ((entry_id + i) % size for i in range(self.quorums.write_quorum))
        return tuple(fragment.bookies[i] for i in indexes if i < len(fragment.bookies))


@dataclass(frozen=True, slots=True)
class FinalCommit:
    """One commit of a stream, with its number and its values in stream order."""

    number: int
    sink_id: str
    transaction_id: int
    values: tuple[str, ...]
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class FinalStream:
    """A stream after healing. ``values`` is one read of it from the beginning to its head; commits
    below ``first`` were dropped."""

    name: str
    commits: tuple[FinalCommit, ...] = ()
    values: tuple[str, ...] = ()
    unreadable: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class Final:
    """Everything at the end. A ledger that only a stream names is judged through the stream."""

    ledgers: Mapping[int, FinalLedger] = field(default_factory=dict)
    streams: Mapping[str, FinalStream] = field(default_factory=dict)

    @classmethod
    def of(cls, *things: FinalLedger | FinalStream) -> Final:
        """A final state from its parts."""
        return cls(
            {thing.ledger_id: thing for thing in things if isinstance(thing, FinalLedger)},
            {thing.name: thing for thing in things if isinstance(thing, FinalStream)},
        )
