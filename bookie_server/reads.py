"""Reading what a bookie holds of a ledger. Any thread: nothing here is changed.

Only what the storage proves is missing is denied (rule S9). An error on the way to an entry is
IO_ERROR for that entry, whatever else was found: a recovery takes a denial for evidence that the
entry was never confirmed, and may close the ledger below it (rule P14).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.index.base import IndexRow
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from bookie_server.storage.ledgers.slicing import slice_run
from spark_ledger.bookie_api import EntryPage, LedgerDisks, ReadOutcome, Refusal
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.bookie import (
    BOOKIE_RANGES_PER_PAGE,
    BOOKIE_READ_QUICK_S,
    JOURNAL_STALLED_S,
)
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId


def find_record(
    storage: LedgerStorage, failure: str | None, ledger_id: LedgerId
) -> LedgerRecord | Refusal | None:
    """The ledger's record as it is now, or why nothing is decided; None if there is none.

    Once the journal has failed (``failure``) nothing is: a change would stay in memory for ever and
    be served to readers, though no restart could bring it back (rule S3).
    """
    if failure is not None:
        return Refusal(BookieStatus.IO_ERROR, failure)
    try:
        return storage.ledger_record(ledger_id)
    except (OSError, CorruptionError) as error:
        return Refusal(BookieStatus.IO_ERROR, str(error))


def read_entries(
    storage: LedgerStorage,
    ledger_id: LedgerId,
    first_entry: EntryId,
    last_entry: EntryId,
    *,
    stride: int,
    max_bytes: int,
) -> ReadOutcome:
    """Entries first, first + stride, ... up to last, both included.

    ``max_bytes`` bounds the frames; one entry is returned whatever its size. A stored run that is
    not likely to fit is left for the next read: cut, it would be looked up and copied twice. One
    behind a slow disk as well: a thread that is taken for long waits for one run, and not for many.
    """
    began = time.monotonic()
    assert stride >= 1 and max_bytes >= 1, "the service puts in its defaults"
    runs: list[EntryRun] = []
    room = max_bytes
    entry_id = first_entry
    while entry_id <= last_entry and room > 0:
        try:
            run = storage.read(ledger_id, entry_id, last_entry, stride=stride, max_bytes=room)
            if run is None:
                return _missing(storage, ledger_id, entry_id, runs)
        except (OSError, CorruptionError) as error:
            return ReadOutcome(runs, BookieStatus.IO_ERROR, entry_id, str(error))
        if runs and len(run.frames) > room:
            break
        runs.append(run)
        room -= len(run.frames)
        entry_id = EntryId(run.last_entry + stride)
        if room < len(run.frames):  # the runs of a writer are much alike
            break
        if time.monotonic() - began >= BOOKIE_READ_QUICK_S:
            break
    return ReadOutcome(runs, BookieStatus.OK, entry_id, "")


def ledger_disks(storage: LedgerStorage, names: Sequence[str]) -> LedgerDisks:
    """The directories of a storage, with their ``names``."""
    return LedgerDisks(names, storage.number_of, partial(_read_in_memory, storage))


class _NotInMemoryError(LookupError):
    """The disk has to be asked."""


def _read_in_memory(
    storage: LedgerStorage,
    ledger_id: LedgerId,
    first: EntryId,
    last: EntryId,
    stride: int,
    max_bytes: int,
) -> ReadOutcome | None:
    """See ``LedgerDisks``. It denies nothing: for that the index is asked, which is on the disk."""
    try:
        run = storage.store_of(ledger_id).run_with(ledger_id, first, _ask_no_disk)
    except (_NotInMemoryError, OSError, CorruptionError):  # the disk says it again
        return None
    if run is None:
        return None
    part = slice_run(run, first, last, stride=stride, max_bytes=max_bytes)
    return ReadOutcome([part], BookieStatus.OK, EntryId(part.last_entry + stride), "")


def _ask_no_disk(_ledger_id: LedgerId, _row: IndexRow) -> EntryRun:
    raise _NotInMemoryError


def why_unsynced(journal: Journal) -> str:
    """Why what is in memory may not be synced for long, or ever; "" while it is. Any thread."""
    if journal.failure or journal.keeps_refused:
        return journal.failure or journal.no_room
    waited_s = journal.unsynced_s
    stalls = waited_s >= JOURNAL_STALLED_S
    return f"the journal has not synced for {waited_s:.1f} s" if stalls else ""


def entry_page(
    storage: LedgerStorage, ledger_id: LedgerId, first: EntryId, unsynced: str = ""
) -> EntryPage | None:
    """What is held of the entries from ``first`` on; None when the ledger is not known.

    ``unsynced``: see ``why_unsynced``. Who asks counts copies: what is in memory then may be lost
    with the journal's queue, and is not said to be held (rule S15).

    Raises OSError or CorruptionError if that cannot be read, or said.
    """
    page = storage.entry_page(ledger_id, first, BOOKIE_RANGES_PER_PAGE)
    # Behind the page: what was flushed in between is stored.
    if unsynced and storage.store_of(ledger_id).cache.runs_of(ledger_id):
        raise OSError(f"{unsynced}: which entries of ledger {ledger_id} are stored is not known")
    is_empty = not page.ranges and page.next_entry is None
    return None if is_empty and storage.ledger_record(ledger_id) is None else page


def _missing(
    storage: LedgerStorage, ledger_id: LedgerId, entry_id: EntryId, runs: list[EntryRun]
) -> ReadOutcome:
    """The answer at the first entry that is not held. Raises as ``entry_page`` does."""
    if not runs and storage.ledger_record(ledger_id) is None:
        message = f"ledger {ledger_id} is not known here"
        return ReadOutcome(runs, BookieStatus.NO_SUCH_LEDGER, entry_id, message)
    message = f"ledger {ledger_id} entry {entry_id} is not held here"
    return ReadOutcome(runs, BookieStatus.NO_SUCH_ENTRY, entry_id, message)
