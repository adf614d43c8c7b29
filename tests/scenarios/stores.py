"""Models of what lies outside a client: a bookie's disk and rules, and the metadata store.

They follow the contract of a bookie (access key, then fence, then store, then answer) and nothing
of its code, and keep one ledger, because a scenario has only one. A disk survives a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_ledger.types import BookieId, BookieStatus, LedgerMetadata


class Stored(NamedTuple):
    """An entry as its writer framed it. Copies made later are equal to it, LAC included."""

    payload: str
    last_add_confirmed: int
    length: int


class Found(NamedTuple):
    """What a bookie says to a read: entries in order, then why it stopped and where."""

    entries: list[tuple[int, Stored]]
    status: BookieStatus
    entry_id: int


@dataclass
class ModelBookie:
    """One bookie. The flags are the faults that a scenario can give it."""

    name: BookieId
    entries: dict[int, Stored] = field(default_factory=dict)
    last_add_confirmed: int = -1
    fenced: bool = False
    knows_ledger: bool = False
    up: bool = True
    read_only: bool = False
    refuses_adds: bool = False
    refuses_recovery_adds: bool = False
    refuses_reads: bool = False
    in_limbo: bool = False
    refuses_password: bool = False
    speaks_of_a_fence: bool = False
    damaged: set[int] = field(default_factory=set)
    hidden: set[int] = field(default_factory=set)
    """Entries that are on the disk, and that the bookie denies."""
    password: str = ""
    read_cap: int = 0
    """Entries after which a read ends early; 0: never."""

    def add(
        self, entries: Sequence[tuple[int, Stored]], *, recovery: bool, password: str
    ) -> BookieStatus:
        """Store entries, or say why not."""
        if not self.up:
            return BookieStatus.UNAVAILABLE
        if password != self.password or self.refuses_password:
            return BookieStatus.UNAUTHORIZED
        if (self.fenced or self.speaks_of_a_fence) and not recovery:
            return BookieStatus.FENCED
        if self.read_only and not recovery:
            return BookieStatus.READ_ONLY
        if self.refuses_adds or (recovery and self.refuses_recovery_adds):
            return BookieStatus.IO_ERROR
        self.knows_ledger = True
        for entry_id, stored in entries:
            self.entries[entry_id] = stored
            self.last_add_confirmed = max(self.last_add_confirmed, stored.last_add_confirmed)
        return BookieStatus.OK

    def read(self, first: int, last: int, stride: int, *, fence: bool, password: str) -> Found:
        """Entries ``first, first + stride, ...`` up to the first that is not there."""
        refused = self._refuses(fence=fence, password=password)
        if refused is not None:
            return Found([], refused, first)
        entries: list[tuple[int, Stored]] = []
        entry_id = first
        while entry_id <= last:
            if self.read_cap and len(entries) == self.read_cap:
                return Found(entries, BookieStatus.OK, entry_id)
            if entry_id in self.damaged:
                return Found(entries, BookieStatus.IO_ERROR, entry_id)
            if entry_id not in self.entries or entry_id in self.hidden:
                return Found(entries, self._absent(), entry_id)
            entries.append((entry_id, self.entries[entry_id]))
            entry_id += stride
        return Found(entries, BookieStatus.OK, entry_id)

    def read_last_confirmed(self, *, fence: bool, password: str) -> tuple[BookieStatus, int]:
        """The highest LAC in any entry or announcement."""
        refused = self._refuses(fence=fence, password=password)
        if refused is not None:
            return refused, -1
        if self.in_limbo or not self.knows_ledger:
            return self._absent(), -1
        return BookieStatus.OK, self.last_add_confirmed

    def write_last_confirmed(self, last_add_confirmed: int) -> BookieStatus:
        """Explicit LAC."""
        if not self.up:
            return BookieStatus.UNAVAILABLE
        if not self.fenced:
            self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)
        return BookieStatus.OK

    def _refuses(self, *, fence: bool, password: str) -> BookieStatus | None:
        """Why a read is not served. Fencing happens here: it comes before the entry is looked up,
        and after the access key, so that a wrong password fences nothing."""
        if not self.up:
            return BookieStatus.UNAVAILABLE
        if password != self.password:
            return BookieStatus.UNAUTHORIZED
        if self.refuses_reads:
            return BookieStatus.IO_ERROR
        if fence:
            self.fenced = True
        return None

    def _absent(self) -> BookieStatus:
        if self.in_limbo:
            return BookieStatus.UNKNOWN_STATE
        return BookieStatus.NO_SUCH_ENTRY if self.knows_ledger else BookieStatus.NO_SUCH_LEDGER


@dataclass
class MetadataStore:
    """One versioned register. ``history`` keeps every value that it ever had."""

    value: LedgerMetadata
    version: int = 0
    refuses: bool = False
    deleted: bool = False
    history: list[LedgerMetadata] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history.append(self.value)

    def compare_and_set(self, value: LedgerMetadata, version: int) -> bool:
        """Set the value if the version is still that; whether it was set."""
        if version != self.version:
            return False
        self.value, self.version = value, version + 1
        self.history.append(value)
        return True

    def holders(self, entry_id: int, bookies: dict[BookieId, ModelBookie]) -> list[BookieId]:
        """Bookies of the entry's write set, by these metadata, that hold it undamaged."""
        fragment = max(
            (f for f in self.value.fragments if f.first_entry <= entry_id),
            key=lambda f: f.first_entry,
        )
        quorums = self.value.quorums
        write_set = [
            fragment.bookies[(entry_id + i) % quorums.ensemble_size]
            for i in range(quorums.write_quorum)
        ]
        return [name for name in write_set if entry_id in bookies[name].entries]
