"""What an index of a ledger directory does: blocks by entry, ledger records, the checkpoint mark.

Implementations: ``lmdb_index`` and, for simulation and crash tests, ``memory_index``; one contract
test covers both. Changes go through one update (a transaction) that is durable after ``commit``,
or leaves no trace. Every method raises OSError if the disk fails (ENOSPC if there is no room), and
CorruptionError if what is stored is damaged. "None" is an answer that was proved (rule S9).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.journal.mark import Mark
from bookie_server.storage.records import RECORD_HEADER_BYTES
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import EntryId, LedgerId

_RUN_LOG: Final = 1 << 31


class BlockLocation(NamedTuple):
    """Where a block is: log, offset of its record, length of its body.

    Entry logs have ids from 1 on; with the highest of 32 bits set the rest is the number of a file
    of the run log.
    """

    log_id: int
    offset: int
    length: int

    @property
    def run_log_file(self) -> int:
        """The number of the run log's file; 0 if the block is in an entry log."""
        return self.log_id ^ _RUN_LOG if self.log_id & _RUN_LOG else 0


def run_log_id(file_number: int) -> int:
    """What a file of the run log is called among the logs."""
    assert 0 < file_number < _RUN_LOG, f"file {file_number} of a run log: the index has 31 bits"
    return file_number | _RUN_LOG


def run_log_location(file_number: int, offset: int, length: int) -> BlockLocation:
    """Where a block of the run log is."""
    assert 0 < offset < 1 << 32, f"run at offset {offset}: the index has 32 bits for it"
    return BlockLocation(run_log_id(file_number), offset, length)


def refuse_another(path: Path, found: str | None, owner: str) -> None:
    """Raise ConfigurationError if an index that says whose it is says somebody else."""
    if found not in (None, owner):
        raise ConfigurationError(
            f"index {path} is that of {found}, and not of {owner}: check what is mounted there, "
            "and where links lead"
        )


class NotCommittedError(OSError):
    """A commit that failed, and of which nothing can appear later: what it named may be removed."""


class IndexLostError(OSError):
    """The index takes and gives nothing more before it is opened anew, whatever the disk does."""


class IndexRow(NamedTuple):
    """Entries from ``first_entry`` up to the next row are in this block, or not stored.

    ``last_entry`` is the last one of the block; ``is_sparse`` says that the block has gaps.
    ``is_part``: an earlier row has begun the block. Rows of older programs never say so.
    """

    first_entry: EntryId
    last_entry: EntryId
    location: BlockLocation
    is_sparse: bool
    is_part: bool = False

    @property
    def byte_count(self) -> int:
        """Bytes of the record that the row keeps alive."""
        return RECORD_HEADER_BYTES + self.location.length


class LogUse(NamedTuple):
    """How many rows name a log, and the bytes of the records that they name (rule S18).

    A block that several rows name, as entries came into its gaps later, counts with the first.
    """

    rows: int = 0
    byte_count: int = 0

    def with_row(self, row: IndexRow, sign: int) -> LogUse:
        """The use with one row more (1) or less (-1)."""
        byte_count = 0 if row.is_part else row.byte_count
        return LogUse(self.rows + sign, self.byte_count + sign * byte_count)


class HeldLedger(NamedTuple):
    """A ledger of which a bookie holds something; the hash is empty without an access key, and for
    rows whose record never became durable."""

    ledger_id: LedgerId
    access_key_hash: bytes


class RowsInRange(NamedTuple):
    """Rows that decide about a range, ascending, and the key of the row behind them, if any."""

    rows: list[IndexRow]
    end: EntryId | None


class IndexUpdate(Protocol):
    """A transaction. It sees its own changes; readers see them after ``commit``."""

    def last_entry(self, ledger_id: LedgerId) -> EntryId:
        """The highest entry of the ledger, NO_ENTRY when there is none."""

    def rows_in_range(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> RowsInRange:
        """The last row at or below ``first``, and all rows above it up to ``last``."""

    def append_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        """Add a row whose entries are all above the ledger's highest one."""

    def put_row(self, ledger_id: LedgerId, row: IndexRow) -> None:
        """Set a row by its first entry."""

    def put_ledger_record(self, ledger_id: LedgerId, ledger_record: LedgerRecord) -> None:
        """Set the ledger's record."""

    def move_row(self, ledger_id: LedgerId, row: IndexRow, moved: IndexRow) -> bool:
        """Have a row name a copy of its block, as ``moved``; False if the row is not as it was."""

    def delete_row(self, ledger_id: LedgerId, row: IndexRow) -> bool:
        """Take out one row; False if it is not as it was."""

    def drop_damaged(self) -> dict[LedgerId, EntryId]:
        """Take out all rows of ledgers whose rows do not add up, before any other change; of each
        the highest entry that a good row named."""

    def delete_rows(self, ledger_id: LedgerId, limit: int) -> list[IndexRow]:
        """Take out the ledger's first rows, at most so many; these. Less than the limit means that
        none is left."""

    def delete_ledger_record(self, ledger_id: LedgerId) -> None:
        """Take out the ledger's record, if there is one; its rows are gone already."""

    def put_mark(self, mark: Mark) -> None:
        """Set the checkpoint mark."""

    def put_run_log_mark(self, mark: Mark) -> None:
        """Set the checkpoint mark of the run log."""

    def commit(self) -> None:
        """Make all changes durable and visible, together."""

    def abort(self) -> None:
        """Forget all changes. Does nothing after a commit or an abort."""


class Index(Protocol):
    """Reading methods may be called by any thread; one update at a time."""

    def row_at(self, ledger_id: LedgerId, entry_id: EntryId) -> IndexRow | None:
        """The row that decides about an entry; None when there is none at or below it."""

    def rows(self, ledger_id: LedgerId) -> list[IndexRow]:
        """All rows of a ledger, ascending."""

    def rows_from(self, ledger_id: LedgerId, entry_id: EntryId, limit: int) -> list[IndexRow]:
        """The row that decides about an entry, and those above it, ascending; at most so many."""

    def rows_of_block(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId, location: BlockLocation
    ) -> list[IndexRow]:
        """The rows that name a block, which holds entries from ``first`` to ``last``."""

    def log_use(self) -> dict[int, LogUse] | None:
        """The use of every log that a row names; None while that is not known for sure, which
        ends with the next commit."""

    def highest_log(self) -> int:
        """The highest id of an entry log that a row has ever named; 0 without any."""

    def held_ledgers(self, after: int, limit: int) -> list[HeldLedger]:
        """Ledgers with rows or a record, ids above ``after``, ascending, at most so many."""

    def ledger_record(self, ledger_id: LedgerId) -> LedgerRecord | None:
        """The ledger's record, None if it has none."""

    def knows(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger has a record, from memory: what was committed before this call."""

    def ledger_records(self) -> Iterator[tuple[LedgerId, LedgerRecord]]:
        """The records of all ledgers, ids ascending."""

    def ledger_count(self) -> int:
        """Number of ledgers."""

    def memory_bytes(self) -> int:
        """What it keeps in memory, about: which ledgers there are, and checked rows."""

    def highest_ledger(self) -> int:
        """The highest id of a ledger, deleted ones included; -1 without any."""

    def mark(self) -> Mark | None:
        """The checkpoint mark; None in an index that was never committed to."""

    def run_log_mark(self) -> Mark | None:
        """Up to where the index has the run log; None before there was one."""

    def claim(self, owner: str) -> None:
        """Have each commit from now on say whose index this is (rule S10). Raises
        ConfigurationError if the index says already that it is another's."""

    def has_lacks(self) -> bool:
        """Whether the last commit has noted that the list of what is lacking has something."""

    def note_lacks(self, has_lacks: bool) -> None:
        """Have each commit from now on note whether that list has something (rule S22)."""

    def why_lost(self) -> str:
        """Why nothing works any more before the index is opened anew; "" while it does."""

    def begin(self) -> IndexUpdate:
        """Start an update."""

    def close(self) -> None:
        """Release the files. Closing twice is allowed."""
