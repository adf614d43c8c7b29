"""HeldEntries: compares adds with what is held, and has the service thread wait but a moment.

Who sends entries again may send some that only the disk has: a recovery does, and a writer that
connects anew. The disk may not answer for minutes, and all that is asked of a bookie goes through
one thread. So the disk is asked in a thread of its own. If it has not answered after a moment, the
add is told to come again, and so is each further one that needs this directory's disk, at once,
until the answer is there. That is one such thread for each ledger directory, and no add goes on in
front of another (rules P3 and S15). What is in the write cache asks no disk.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, wait
from functools import partial
from threading import Thread

from bookie_server.duplicates import compare_with_held
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from spark_ledger.bookie_api import Refusal
from spark_ledger.limits.bookie import BOOKIE_READS_END_S, HELD_ENTRIES_WAIT_S
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId

logger = logging.getLogger(__name__)

_Answer = bool | Refusal


class _NotInMemory(LookupError):
    """The disk has to be asked."""


class HeldEntries:
    """Belongs to the service thread; ``close`` to the one that closes, when no other is left."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._has_threads = False
        self._late: dict[int, Future[_Answer]] = {}
        """By directory: the last look, if it was not there in time."""

    def start(self) -> None:
        """Ask disks in threads from now on."""
        self._has_threads = True

    def compare(self, run: EntryRun, last_entry: EntryId) -> bool | Refusal:
        """See ``compare_with_held``. Refused as busy while the disk does not answer."""
        if not self._has_threads:
            return compare_with_held(self._storage.run_with, run, last_entry)
        try:
            return compare_with_held(self._in_memory, run, last_entry)
        except _NotInMemory:
            return self._ask_disk(run, last_entry)

    def close(self) -> None:
        """Wait a while for what is read still: no file is closed under it."""
        wait(self._late.values(), BOOKIE_READS_END_S)

    def _in_memory(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun:
        found = self._storage.store_of(ledger_id).cache.find(ledger_id, entry_id)
        if found is None:
            raise _NotInMemory
        return found

    def _ask_disk(self, run: EntryRun, last_entry: EntryId) -> bool | Refusal:
        number = self._storage.number_of(run.ledger_id)
        late = self._late.get(number)
        if late is not None and not late.done():
            return self._busy(run.ledger_id)
        answer: Future[_Answer] = Future()
        look = partial(compare_with_held, self._storage.run_with, run, last_entry)
        try:
            Thread(target=_look, args=(look, answer), name="held-entries", daemon=True).start()
        except RuntimeError:  # the process can have no other thread now
            return self._busy(run.ledger_id)
        try:
            found = answer.result(HELD_ENTRIES_WAIT_S)
        except TimeoutError:
            self._late[number] = answer
            if late is None:
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


def _look(look: partial[_Answer], answer: Future[_Answer]) -> None:
    try:
        answer.set_result(look())
    except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
        answer.set_exception(error)
