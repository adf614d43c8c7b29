"""HeldEntries: compares adds with what is held, and has the service thread wait but a moment.

Who sends entries again may send some that only the disk has: a recovery does, and a writer that
connects anew. The disk may not answer for minutes, and all that is asked of a bookie goes through
one thread. So that looks where an entry is, and compares what is in memory: an entry that is held
nowhere costs no thread. A block that has to be read is read in a thread of its own. If that has
not ended after a moment, the add is told to come again, and so is each further one that needs this
directory's disk, at once. What a late thread has read, or met, is kept for the add that asked. That
is one such thread for each ledger directory, and no add goes on in front of another (rules P3 and
S15).

What is kept are blocks, not answers: a block is never stale (rule S8), and whether the entry is
held there is asked again when the add comes again.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, wait
from functools import partial
from threading import Thread
from typing import Final

from bookie_server.duplicates import compare_with_held
from bookie_server.storage.blocks import RUN_FRAMES_BYTES_MAX
from bookie_server.storage.index.base import BlockLocation, IndexRow
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.bookie_api import Refusal
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.bookie import BOOKIE_READS_END_S, HELD_ENTRIES_WAIT_S
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId

_KEPT_BYTES_MAX: Final = RUN_FRAMES_BYTES_MAX
"""Of the blocks that one late look has read: the largest one fits, and four of those that a sender
makes of many entries. More is left to the block cache."""

_KEPT_S: Final = 60.0
"""What was met longer ago is asked again: who was told to come again is back in seconds."""

logger = logging.getLogger(__name__)


class _NotInMemory(LookupError):
    """The disk has to be asked."""


class _Look:
    """One comparison with what the disk has, in a thread of its own. The thread's, until there is
    an answer."""

    def __init__(self, store: DirectoryStore) -> None:
        self._store = store
        self.answer: Future[bool | Refusal] = Future()
        self.met: dict[BlockLocation, EntryRun | OSError | CorruptionError] = {}
        self.was_late = False
        self.ended_at = 0.0
        self._room = _KEPT_BYTES_MAX

    def start(self, run: EntryRun, last_entry: EntryId) -> None:
        """Raises RuntimeError if the process can have no other thread now."""
        Thread(target=self._work, args=(run, last_entry), name="held-entries", daemon=True).start()

    def _work(self, run: EntryRun, last_entry: EntryId) -> None:
        began = time.monotonic()
        try:
            may_hold = partial(_may_hold, self._store)
            found = compare_with_held(self._run_with, may_hold, run, last_entry)
            self.was_late = time.monotonic() - began >= HELD_ENTRIES_WAIT_S
            self.ended_at = time.monotonic()
            self.answer.set_result(found)
        except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
            self.ended_at = time.monotonic()
            self.answer.set_exception(error)

    def _run_with(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        return self._store.run_with(ledger_id, entry_id, self._read)

    def _read(self, ledger_id: LedgerId, row: IndexRow) -> EntryRun:
        known = self.met.get(row.location)
        if isinstance(known, EntryRun):  # holes of one block are looked for one by one
            return known
        try:
            run = self._store.read_block(ledger_id, row)
        except (OSError, CorruptionError) as error:
            self.met[row.location] = error
            raise
        self._room -= len(run.frames)
        if self._room >= 0:
            self.met[row.location] = run
        return run


def _may_hold(store: DirectoryStore, ledger_id: LedgerId, first: EntryId, last: EntryId) -> bool:
    """See ``MayHold``. Of the index the row that decides about ``first`` is asked for, and the next
    one: as they ascend, no other row reaches further."""
    if store.cache.may_hold(ledger_id, first, last):  # before the index (rule S7)
        return True
    rows = store.index.rows_from(ledger_id, first, 2)
    return any(row.first_entry <= last and first <= row.last_entry for row in rows)


class HeldEntries:
    """Belongs to the service thread; ``close`` to the one that closes, when no other is left."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._has_threads = False
        self._late: dict[int, _Look] = {}
        """By directory: the last look, if nobody had its answer from it."""

    def start(self) -> None:
        """Ask disks in threads from now on."""
        self._has_threads = True

    def compare(self, run: EntryRun, last_entry: EntryId) -> bool | Refusal:
        """See ``compare_with_held``. Refused as busy while the disk does not answer."""
        may_hold = partial(_may_hold, self._storage.store_of(run.ledger_id))
        if not self._has_threads:
            return compare_with_held(self._storage.run_with, may_hold, run, last_entry)
        try:
            return compare_with_held(self._in_memory, may_hold, run, last_entry)
        except _NotInMemory:
            return self._ask_disk(run, last_entry)

    def forget(self) -> None:
        """Let go of what late looks met long ago."""
        ended_before = time.monotonic() - _KEPT_S
        for look in self._late.values():
            if look.answer.done() and look.ended_at < ended_before:
                look.met.clear()

    def close(self) -> None:
        """Wait a while for what is read still: no file is closed under it."""
        wait([look.answer for look in self._late.values()], BOOKIE_READS_END_S)

    def _in_memory(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        return self._storage.store_of(ledger_id).run_with(ledger_id, entry_id, self._kept)

    def _kept(self, ledger_id: LedgerId, row: IndexRow) -> EntryRun:
        """The block of a row as the last look met it, if that was late. An error is met once: the
        next add asks the disk again."""
        late = self._late.get(self._storage.number_of(ledger_id))
        if late is None or not late.answer.done() or row.location not in late.met:
            raise _NotInMemory
        found = late.met[row.location]
        if isinstance(found, EntryRun):
            return found
        del late.met[row.location]
        if time.monotonic() - late.ended_at > _KEPT_S:
            raise _NotInMemory  # the disk may be well by now
        raise found

    def _ask_disk(self, run: EntryRun, last_entry: EntryId) -> bool | Refusal:
        number = self._storage.number_of(run.ledger_id)
        before = self._late.get(number)
        if before is not None and not before.answer.done():
            return self._busy(run.ledger_id)
        look = _Look(self._storage.store_of(run.ledger_id))
        try:
            look.start(run, last_entry)
        except RuntimeError:  # the process can have no other thread now
            return self._busy(run.ledger_id)
        is_slow = before is not None and before.was_late
        try:
            found = look.answer.result(0 if is_slow else HELD_ENTRIES_WAIT_S)
        except TimeoutError:
            self._late[number] = look
            if not is_slow:
                logger.warning("%s", self._busy(run.ledger_id).message)
            return self._busy(run.ledger_id)
        self._late.pop(number, None)
        return found

    def _busy(self, ledger_id: LedgerId) -> Refusal:
        directory = self._storage.store_of(ledger_id).directory
        return Refusal(
            BookieStatus.TOO_MANY_REQUESTS,
            f"{directory} does not answer a read: what it holds of ledger {ledger_id} is not "
            "compared with what is sent again; send it later",
        )
