"""Where a bookie stores, how much memory it uses for it, and how often it flushes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bookie_server.core.disk_space import WaterMarks
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import GIB, KIB, MIB
from spark_ledger.limits.storage import (
    COMPACTION_BYTES_PER_S,
    SCRUB_BYTES_PER_S,
    SCRUB_INTERVAL_S,
)
from spark_ledger.types import BookieId


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """Settings of the storage; sizes are bytes, intervals seconds.

    ``ledger_directories``: a ledger lives in the directory of its id modulo their number, so the
    list (and its order) is fixed once data are stored; cookies guard it.
    ``journal_file_bytes``: a journal file is preallocated to this and rolled when it is full.
    ``journal_batch_bytes_max``: most bytes one sync covers (a single larger record passes).
    ``write_cache_bytes``: memory for runs not yet in the entry log, over all directories; one half
    takes adds while the other is flushed.
    ``flush_interval_s``: longest time a run stays out of the entry log.
    ``block_cache_bytes``: blocks kept after a partial read, because the next one follows.
    ``write_once_bytes``: what one message brings for one ledger is written once, to the run log of
    its ledger directory, if it is at least so long; 0: everything goes to the journal, and again to
    an entry log. With a journal on a far quicker disk than the ledgers, 0 answers sooner.
    ``entry_log_cached_bytes``: how much of a directory's newest entry log may stay in the page
    cache, for many readers that follow closely. 0: logs are written and read past the page cache,
    which costs the processor far less; the newest entries are in the write cache all the same.
    ``disk_high_water_mark``: share of a disk from which on its directories take no adds of writers;
    1 switches the share off. ``disk_low_water_mark``: share at which they take them again.
    ``disk_reserve_bytes``: a directory with less free takes none either, whatever the share is. It
    is what recoveries, fences and flushes use while the bookie is read-only, so it should hold the
    write cache and a journal file.
    ``disk_check_interval_s``: longest time between two looks at the disks.
    ``compaction_bytes_per_s``: how much live data is copied per second to give back what is dead
    beside it; 0 copies nothing, and only logs without live entries go.
    ``scrub_bytes_per_s``: how much of what is stored is read per second to find damage; 0: none.
    ``scrub_interval_s``: from the end of one such pass to the begin of the next.
    ``index_map_bytes``: address space of one directory's index, the most it can grow to; the file
    itself is as small as its content.
    """

    journal_directory: Path
    ledger_directories: tuple[Path, ...]
    bookie_id: BookieId
    cluster_id: str = ""
    journal_file_bytes: int = 128 * MIB
    journal_batch_bytes_max: int = 16 * MIB
    write_cache_bytes: int = 256 * MIB
    flush_interval_s: float = 10.0
    entry_log_bytes: int = GIB
    entry_log_cached_bytes: int = 0
    block_cache_bytes: int = 32 * MIB
    write_once_bytes: int = 64 * KIB
    compaction_bytes_per_s: int = COMPACTION_BYTES_PER_S
    scrub_bytes_per_s: int = SCRUB_BYTES_PER_S
    scrub_interval_s: float = SCRUB_INTERVAL_S
    index_map_bytes: int = 64 * GIB
    disk_high_water_mark: float = 0.95
    disk_low_water_mark: float = 0.90
    disk_reserve_bytes: int = 512 * MIB
    disk_check_interval_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.ledger_directories:
            raise ConfigurationError("ledger_directories is empty: name at least one directory")
        directories = self.directories
        if len(set(directories)) != len(directories):
            raise ConfigurationError(
                "journal_directory and ledger_directories must all be different directories"
            )
        for directory in directories:
            if not directory.is_absolute():
                raise ConfigurationError(f"directory {directory} must be an absolute path")
        for name, lowest in (
            ("journal_file_bytes", 64 * KIB),
            ("journal_batch_bytes_max", 4 * KIB),
            ("write_cache_bytes", 4 * KIB),
            ("entry_log_bytes", 4 * KIB),
            ("entry_log_cached_bytes", 0),
            ("block_cache_bytes", 0),
            ("write_once_bytes", 0),
            ("compaction_bytes_per_s", 0),
            ("scrub_bytes_per_s", 0),
            ("index_map_bytes", MIB),
        ):
            value = getattr(self, name)
            if value < lowest:
                raise ConfigurationError(f"{name} is {value}: at least {lowest} is needed")
        if self.entry_log_bytes > 2 * GIB:
            raise ConfigurationError(
                f"entry_log_bytes is {self.entry_log_bytes}: at most {2 * GIB} is allowed"
            )
        for name in ("flush_interval_s", "disk_check_interval_s", "scrub_interval_s"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: must be > 0")
        assert self.water_marks, "making them checks them"

    @property
    def water_marks(self) -> WaterMarks:
        """When a directory is full, and when not any more."""
        return WaterMarks(
            self.disk_high_water_mark, self.disk_low_water_mark, self.disk_reserve_bytes
        )

    @property
    def directories(self) -> tuple[Path, ...]:
        """All directories, the journal's first."""
        return (self.journal_directory, *self.ledger_directories)
