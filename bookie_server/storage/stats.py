"""StorageStats: what a bookie's storage counts and measures, for metrics and status."""

from __future__ import annotations

from dataclasses import dataclass

from bookie_server.storage.disks import DiskStates
from bookie_server.storage.journal.waiting import JournalStats
from bookie_server.storage.ledgers.storage_stats import LedgerStorageStats


@dataclass(frozen=True, slots=True)
class StorageStats:
    """Counters and sizes at about one moment. ``failure``: see ``Bookie.failure``."""

    journal: JournalStats
    ledger_storage: LedgerStorageStats
    append_bytes_in_flight: int
    adds_waiting: int
    failure: str
    disks: DiskStates
    directories: tuple[str, ...]
