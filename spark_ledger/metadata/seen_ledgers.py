"""What a client has seen of ledgers' metadata, so that older metadata do not pass for newer ones.

Versions only grow and a closed ledger never changes, except in a store that was restored from a
backup. There a ledger may be open again, with other bookies, and have another end next time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from spark_ledger.errors import MetadataRestoredError
from spark_ledger.limits.metadata import LEDGERS_SEEN_BYTES_MAX
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned

_LEDGER_BYTES: Final = 1_000
_FRAGMENT_BYTES: Final = 200
_MEMBER_BYTES: Final = 70
"""About what the objects of a ledger's metadata take, names of bookies included."""


class _Seen(NamedTuple):
    ledger: Versioned[LedgerMetadata]
    restored: str
    """What the store said of itself then."""
    connection: int
    """How many connections the store had had then."""


class SeenLedgers:
    """The ledgers that were read or changed last, and those that are kept. Belongs to the loop of
    the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._seen: OrderedDict[LedgerId, _Seen] = OrderedDict()
        self._bytes = 0
        self._kept: dict[LedgerId, _Seen] = {}
        """Of the ledgers that somebody has open who changes them, who has these metadata too."""
        self._keepers: Counter[LedgerId] = Counter()

    def note(self, ledger: Versioned[LedgerMetadata]) -> None:
        """Remember the newest metadata of a ledger."""
        seen = self._seen_now(ledger)
        if ledger.value.ledger_id in self._kept:
            self._kept[ledger.value.ledger_id] = seen
        else:
            self._remember(seen)

    @contextmanager
    def keep(self, ledger: Versioned[LedgerMetadata]) -> Iterator[None]:
        """Remember a ledger as long as this lasts, however many others are seen meanwhile: whoever
        changes it later may meet metadata that went back."""
        ledger_id = ledger.value.ledger_id
        self._keepers[ledger_id] += 1
        if ledger_id not in self._kept:
            self._kept[ledger_id] = self._seen.get(ledger_id) or self._seen_now(ledger)
        try:
            yield
        finally:
            self._keepers[ledger_id] -= 1
            if not self._keepers[ledger_id]:
                del self._keepers[ledger_id]
                self._remember(self._kept.pop(ledger_id))

    def _seen_now(self, ledger: Versioned[LedgerMetadata]) -> _Seen:
        return _Seen(ledger, self._store.restored, self._store.connections)

    def _find(self, ledger_id: LedgerId) -> _Seen | None:
        return self._kept.get(ledger_id) or self._seen.get(ledger_id)

    def _remember(self, seen: _Seen) -> None:
        ledger_id = seen.ledger.value.ledger_id
        before = self._seen.pop(ledger_id, None)
        if before is not None:
            self._bytes -= _size_bytes(before.ledger.value)
        self._seen[ledger_id] = seen
        self._bytes += _size_bytes(seen.ledger.value)
        while self._bytes > LEDGERS_SEEN_BYTES_MAX and len(self._seen) > 1:
            _, oldest = self._seen.popitem(last=False)
            self._bytes -= _size_bytes(oldest.ledger.value)

    @property
    def size_bytes(self) -> int:
        """What is remembered, about, without what is kept."""
        return self._bytes

    def is_older(self, found: Versioned[LedgerMetadata]) -> bool:
        """Whether these are not the metadata that were seen, and cannot have come after them."""
        seen = self._find(found.value.ledger_id)
        if seen is None:
            return False
        before, now = seen.ledger.value, found.value
        if found.version == seen.ledger.version:
            return now != before
        return (
            found.version < seen.ledger.version
            or now.incarnation != before.incarnation
            or (before.is_closed and _end(now) != _end(before))
        )

    def is_doubtful(self, ledger_id: LedgerId) -> bool:
        """Whether the store may have gone back in time since this ledger was seen.

        A store is restored between two connections. Whether it went back does not show where its
        changes have newer numbers already, after a new leader was elected, or after many changes;
        and a session that is in the backup is not lost by it.
        """
        seen = self._find(ledger_id)
        if seen is None:
            return False
        now = self._store.restored, self._store.connections
        return (seen.restored, seen.connection) != now

    def refuse_older(self, found: Versioned[LedgerMetadata]) -> None:
        """Raises MetadataRestoredError if they are older than what was seen."""
        ledger_id = found.value.ledger_id
        seen = self._find(ledger_id)
        if seen is None or not self.is_older(found):
            return
        raise MetadataRestoredError(
            f"ledger {ledger_id}: its metadata have version {found.version}, and this process has "
            f"seen version {seen.ledger.version} or other ones: ZooKeeper was "
            "restored from a backup. Run `ledger cluster restored`, and start this process anew to "
            "use the ledger as it is now"
        )


def _size_bytes(metadata: LedgerMetadata) -> int:
    members = len(metadata.fragments) * metadata.quorums.ensemble_size
    tags = sum(len(key) + len(value) for key, value in metadata.custom_metadata.items())
    fragments = _FRAGMENT_BYTES * len(metadata.fragments) + _MEMBER_BYTES * members
    return _LEDGER_BYTES + fragments + tags


def _end(metadata: LedgerMetadata) -> tuple[bool, int, int]:
    return metadata.is_closed, metadata.last_entry_id, metadata.length
