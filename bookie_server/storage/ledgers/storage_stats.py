"""What a bookie tells of its ledger directories in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from bookie_server.storage.ledgers.compaction import CompactionStats
from bookie_server.storage.ledgers.scrub import ScrubStats


@dataclass(frozen=True, slots=True)
class LedgerStorageStats:
    """Counters since the start; bytes and seconds."""

    ledgers: int
    cache_bytes: int
    entry_log_bytes_written: int
    flushes: int
    flush_time_s: float
    last_flush_s: float
    block_cache_bytes: int
    index_memory_bytes: int
    ledger_record_bytes: int
    compaction: CompactionStats
    scrub: ScrubStats
