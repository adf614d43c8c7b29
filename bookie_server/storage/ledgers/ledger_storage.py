"""LedgerStorage: the ledger directories of a bookie as one store, and their checkpoints.

A ledger lives in the directory of its id modulo the number of directories. A checkpoint takes
the journal's durable mark for the checkpoint mark of every directory, flushes each up to it, and
removes journal files that all of them have checkpointed (rule S6). Adds go to memory before they go
to the journal, so whatever a mark covers was in memory when the flush began (rule S2).
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from itertools import chain

from bookie_server.core.ledger_record import LedgerRecord
from bookie_server.storage.blocks import Block
from bookie_server.storage.fs.vfs import is_no_space
from bookie_server.storage.index.base import HeldLedger, LogUse
from bookie_server.storage.journal.journal import Journal
from bookie_server.storage.journal.logs import DurableMarks
from bookie_server.storage.journal.waiting import RunPlace
from bookie_server.storage.ledgers.compaction import Compactor
from bookie_server.storage.ledgers.dead_blocks import DeadBlocks
from bookie_server.storage.ledgers.directory_store import DirectoryStore
from bookie_server.storage.ledgers.flush_stats import FlushFailure, FlushStats
from bookie_server.storage.ledgers.lacking import LackingLedgers
from bookie_server.storage.ledgers.scrub import Scrubber
from bookie_server.storage.ledgers.storage_stats import LedgerStorageStats
from bookie_server.storage.ledgers.write_cache import CachedRun
from spark_ledger.bookie_api import EntryPage
from spark_ledger.errors import CorruptionError
from spark_ledger.limits import GIB
from spark_ledger.limits.storage import DELETED_LEDGERS_AT_ONCE, SCRUB_INTERVAL_S
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId

logger = logging.getLogger(__name__)

_Error = OSError | CorruptionError


class LedgerStorage:
    """All ledger directories.

    The *service thread* adds runs and sets ledger records; *any thread* reads. Checkpoints run on
    the *flush thread* once it is started, and on any thread that calls ``flush``: the flush lock
    lets one of them through at a time.
    """

    def __init__(
        self,
        stores: Sequence[DirectoryStore],
        journal: Journal,
        *,
        write_cache_bytes: int,
        flush_interval_s: float,
        write_once_bytes: int = 0,
        entry_log_bytes: int = GIB,
        compaction_bytes_per_s: int = 0,
        scrub_bytes_per_s: int = 0,
        scrub_interval_s: float = SCRUB_INTERVAL_S,
        on_flushed: Callable[[], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """Runs of ``write_once_bytes`` and more get a place (0: none does). ``on_flushed`` runs on
        the flush thread after every attempt, good or not, ``on_fatal`` if that thread ends by a bug
        of ours, or an index is lost until a restart."""
        assert stores, "a ledger lives in one of the directories"
        assert write_cache_bytes >= 2 * len(stores), "each directory has room for two generations"
        assert flush_interval_s > 0, f"a checkpoint every {flush_interval_s} s"
        # Any thread: never changed, or with locks of their own.
        self._stores = tuple(stores)
        self._store_count = len(stores)
        self._journal = journal
        self._generation_bytes = write_cache_bytes // 2 // len(stores)
        self._flush_interval_s = flush_interval_s
        self._write_once_bytes = write_once_bytes
        self._on_flushed = on_flushed
        self._on_fatal = on_fatal
        self._flush_lock = threading.Lock()
        # Held by whoever deletes, before the flush lock.
        self._delete_lock = threading.Lock()
        self._wanted = threading.Event()
        self.compactor = Compactor(
            [store.space for store in stores],
            self._flush_lock,
            log_bytes=entry_log_bytes,
            bytes_per_s=compaction_bytes_per_s,
            on_fatal=on_fatal,
        )
        self.lacking = LackingLedgers(
            [store.lacking for store in stores],
            lambda lack: self.store_of(lack.ledger_id).scrub.copies_of(lack),
        )
        self.scrubber = Scrubber(
            [store.scrub for store in stores],
            self._flush_lock,
            bytes_per_s=scrub_bytes_per_s,
            interval_s=scrub_interval_s,
            on_fatal=on_fatal,
        )
        # Replaced whole under _flush_lock; any thread reads.
        self._flush_stats = FlushStats(failures=(None,) * len(stores))
        # Changed under _flush_lock; any thread reads it.
        self._flushing: DirectoryStore | None = None
        # Since when which thread flushes, or waits to. Each sets its own; any reads all.
        self._waits_since: dict[int, float] = {}
        # Flush thread.
        self._is_lost = False
        # Set once by whoever stops the flush thread, which only reads it.
        self._stopping = False
        # Whoever starts and closes the storage: one thread, before and after all others.
        self._thread: threading.Thread | None = None

    def store_of(self, ledger_id: LedgerId) -> DirectoryStore:
        """The directory a ledger lives in."""
        return self._stores[ledger_id % self._store_count]

    def number_of(self, ledger_id: LedgerId) -> int:
        """The number of that directory in the configuration, from 0."""
        return ledger_id % self._store_count

    @property
    def failure(self) -> str | None:
        """Why the last flush failed, unless for want of space; None when it did not. Any thread."""
        flushed = self._flush_stats
        failed = [each.message for each in flushed.failures if each and not each.no_space]
        return next(iter(failed), flushed.other_failure)

    @property
    def space_refusals(self) -> tuple[str, ...]:
        """Of each directory: why its last flush found no space; "" if it did. Any thread."""
        failures = self._flush_stats.failures
        return tuple(each.message if each and each.no_space else "" for each in failures)

    @property
    def unmoved(self) -> tuple[str, float]:
        """The directory that is being flushed, and for how long it has made no progress; "" and 0
        while none is. All of them, while a flush waits, or is at the journal's part. Any thread."""
        store, waits_since = self._flushing, list(self._waits_since.values())
        if store is not None:
            return str(store.directory), max(0.0, time.monotonic() - store.moved_at)
        if waits_since:
            directories = ", ".join(str(each.directory) for each in self._stores)
            moved_at = max(min(waits_since), *(each.moved_at for each in self._stores))
            return directories, max(0.0, time.monotonic() - moved_at)
        return "", 0.0

    def flush_failure(self, ledger_id: LedgerId) -> FlushFailure | None:
        """Why the last flush of the ledger's directory failed; None when it did not. Any thread."""
        return self._flush_stats.failures[self.number_of(ledger_id)]

    def is_full(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger's directory takes no run before its flush has ended.

        Service thread. A yes may be out of date, as the flush can end at any moment. Then
        ``on_flushed`` is still to come, and whoever waits is looked at again.
        """
        return self.store_of(ledger_id).cache.is_full(self._generation_bytes)

    def place_for(self, ledger_id: LedgerId, block: Block) -> RunPlace | None:
        """What the journal settles for a run that is written once; None if it is too small."""
        if not 0 < self._write_once_bytes <= block.length:
            return None
        return RunPlace(self.number_of(ledger_id))

    def add(self, cached: CachedRun, ledger_record: LedgerRecord, *, is_held: bool = False) -> None:
        """Keep a run, and with it the record of its ledger; of a run whose entries are all held
        already the record only. Once that is durable, all that came before it is (rule S8).

        Before the run is appended to the journal (rule S2). A flush may come between the two
        lines; it stores a run without its record then, which is harmless: the journal has nothing
        of the run yet, so no mark covers it, and the next flush or replay stores the record.
        """
        run = cached.run
        ledger_id = run.ledger_id
        assert ledger_record.last_entry >= run.last_entry, "the ledger record covers the run"
        store = self.store_of(ledger_id)
        # No ``is_full``: a flush may have begun since, and then what was asked before still holds.
        room_bytes = 2 * self._generation_bytes
        fresh_bytes = 0 if is_held else store.cache.add(cached, room_bytes)
        store.set_ledger_record(ledger_id, ledger_record)
        if fresh_bytes >= self._generation_bytes:
            self._wanted.set()

    def ledger_record(self, ledger_id: LedgerId) -> LedgerRecord | None:
        """See ``DirectoryStore.ledger_record``."""
        return self.store_of(ledger_id).ledger_record(ledger_id)

    def set_ledger_record(self, ledger_id: LedgerId, ledger_record: LedgerRecord) -> None:
        """See ``DirectoryStore.set_ledger_record``."""
        self.store_of(ledger_id).set_ledger_record(ledger_id, ledger_record)

    def read(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId, *, stride: int, max_bytes: int
    ) -> EntryRun | None:
        """See ``DirectoryStore.read``. What is lacking is never denied (rule S22)."""
        store = self.store_of(ledger_id)
        # Before and after: it may come back, or be found damaged, while the index is asked.
        lacked = store.lacking.of(ledger_id)
        found = store.read(ledger_id, first, last, stride=stride, max_bytes=max_bytes)
        if found is None:
            for lack in (*lacked, *store.lacking.of(ledger_id)):
                if lack.first <= first <= lack.last:
                    raise CorruptionError(
                        f"{store.directory}: entry {first} of ledger {ledger_id} is damaged, and "
                        "awaits a copy from another bookie"
                    )
        return found

    def run_with(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """See ``DirectoryStore.run_with``."""
        return self.store_of(ledger_id).run_with(ledger_id, entry_id)

    def entry_page(self, ledger_id: LedgerId, first: EntryId, limit: int) -> EntryPage:
        """See ``DirectoryStore.entry_page``."""
        return self.store_of(ledger_id).entry_page(ledger_id, first, limit)

    def flush(self) -> None:
        """One checkpoint of all directories; any thread.

        A directory that meets a full disk keeps everything in memory and journal, and is flushed
        again by the next call (rule S14). One whose index is damaged is healed, and flushed once
        more if that helped: else one bad row would hold up all ledgers (rule S24). Raises OSError
        or CorruptionError of the first that fails; the others are flushed all the same.
        """
        errors, damaged = self._checkpoint()
        unhealed: list[_Error] = []
        if sum(self._heal(store, error, unhealed) for store, error in damaged):
            errors, _ = self._checkpoint()
        if errors:
            raise (unhealed or errors)[0]

    def _checkpoint(self) -> tuple[list[_Error], list[tuple[DirectoryStore, CorruptionError]]]:
        """Flush every directory; what failed, and where stored data were found damaged."""
        started = time.perf_counter()
        errors: list[_Error] = []
        damaged: list[tuple[DirectoryStore, CorruptionError]] = []
        failures: list[FlushFailure | None] = []
        other_failure = None
        self._waits_since[threading.get_ident()] = time.monotonic()
        with self._flush_lock, ExitStack() as at_end:  # the journal's part may hang as well
            at_end.callback(self._waits_since.pop, threading.get_ident())
            for number, store in enumerate(self._stores):
                # Before its cache is frozen (rule S2), and not before a slow one is flushed: all
                # that comes meanwhile would be stored behind the marks.
                unwritten = self._journal.unwritten_of(store.covered.seen_behind)
                mark, run_log_mark = self._journal.durable_marks.of(number)
                try:
                    if mark is not None:  # else there was never room for a journal file
                        store.moves()
                        self._flushing = store
                        store.flush(mark, run_log_mark, unwritten)
                except (OSError, CorruptionError) as error:
                    errors.append(error)
                    damaged += [(store, error)] if isinstance(error, CorruptionError) else []
                    failures.append(FlushFailure(str(error), is_no_space(error)))
                else:
                    failures.append(None)
                finally:
                    self._flushing = None
                    store.moves()  # for those who wait
            stored = [store.mark for store in self._stores]
            if all(mark is not None for mark in stored):
                # The directory that is furthest behind decides: after a restart it needs all
                # that lies behind its mark.
                try:
                    self._journal.remove_before(min(mark.file_number for mark in stored if mark))
                except OSError as error:
                    errors.append(error)
                    other_failure = str(error)
            self._journal.prepare()
            self._stores[-1].moves()
            # Within the lock: the outcome that stays must be that of the last checkpoint. An
            # earlier one that failed would otherwise refuse adds although the disk is well again.
            elapsed_s = time.perf_counter() - started
            self._flush_stats = self._flush_stats.after(elapsed_s, tuple(failures), other_failure)
        return errors, damaged

    def held_ledgers(self, after: int, limit: int) -> list[HeldLedger]:
        """Ledgers of which the index has something, ids above ``after``, ascending, at most
        ``limit``; any thread. One that no flush has stored yet is not among them.

        Raises OSError or CorruptionError.
        """
        pages = [store.index.held_ledgers(after, limit) for store in self._stores]
        return sorted(chain.from_iterable(pages))[:limit]

    def delete_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, named: bool = False, reused: bool = False
    ) -> int:
        """Forget all that is held of ledgers; the bytes that nothing needs any more (rule S17).

        Any thread but the service's: it waits for a flush that runs. It is durable on return, in
        index transactions of bounded size, with flushes between them. The caller knows that the
        metadata have these ledgers no more, and that their ids are never given again. A journal
        that is replayed after a crash may bring parts of one back: then it is deleted once more.

        ``named``: the metadata have these ledgers, elsewhere (rule G9). A deletion that fails or a
        crash in the middle of it would leave one without what the index lacks of its record, and
        that may be its fence. ``reused``: the metadata have others of these ids (rule G2). A replay
        would bring the one to the other's record. So of both kinds the caller lets nothing in
        meanwhile. Of one that a start may bring something back of its directory is flushed first,
        and it stays if that fails, or while the journal still has to write of it.

        Raises OSError or CorruptionError of the first that fails; what was deleted, also in other
        directories, stays so, and the call is made again. A ledger that is damaged keeps no other.
        Once the storage stops, it ends behind the step that runs (ECANCELED).
        """
        freed, ids, by_store = 0, list(ledger_ids), dict[int, list[LedgerId]]()
        comes_again, stay = named or reused, dict[int, set[LedgerId]]()
        # Before the marks: those are behind all that came of the others.
        waiting = self._journal.unwritten_of({*ids}) if comes_again else set[LedgerId]()
        marks = self._journal.durable_marks
        errors: list[_Error] = self._why_they_stay(waiting)
        for ledger_id in ids:
            if ledger_id not in waiting:
                by_store.setdefault(self.number_of(ledger_id), []).append(ledger_id)
        with self._delete_lock:
            if comes_again:
                stay = self._cover(by_store, marks)
            for number, asked in by_store.items():
                store, staying = self._stores[number], stay.get(number, set())
                if staying:
                    failure = self._flush_stats.failures[number]
                    why = f"a start may bring ledger {min(staying)} back"
                    errors.append(OSError(failure.message if failure else why))
                try:
                    with self._flush_lock:
                        left = store.forget([x for x in asked if x not in staying], named=named)
                    freed += self._delete_from(store, left, errors)
                except (OSError, CorruptionError) as error:
                    errors.append(error)  # a full disk must not keep what is on the others
                finally:
                    store.forgotten()
        self.compactor.look_soon()
        if errors:
            raise errors[0]
        return freed

    def _why_they_stay(self, waiting: Set[LedgerId]) -> list[_Error]:
        """What is said of ledgers that logs may bring back; first where somebody has to act."""
        doubt = waiting & self._journal.in_doubt
        failed = "its run log failed and may have some of it: it goes after a restart of the bookie"
        late = "the journal has not written all that came of it"
        whys = [(x, failed) for x in sorted(doubt)] + [(x, late) for x in sorted(waiting - doubt)]
        return [OSError(f"ledger {ledger_id} stays: {why}") for ledger_id, why in whys]

    def _delete_from(
        self, store: DirectoryStore, left: list[LedgerId], errors: list[_Error]
    ) -> int:
        """Delete ledgers that memory has forgotten; the bytes. ``errors`` gets what is said of
        those that are damaged, and stay."""
        freed, dead, stay = 0, DeadBlocks(), list[_Error]()
        at_once = DELETED_LEDGERS_AT_ONCE
        while left:
            if self._stopping:  # to close the stores waits for the step that runs, and no longer
                raise OSError(errno.ECANCELED, "nothing more is deleted: the bookie stops")
            try:
                with self._flush_lock:
                    gone, use = store.delete_some(left[:at_once], dead)
                    store.moves()
            except CorruptionError as error:
                if at_once > 1:  # what can be healed goes with the others; what cannot is found
                    self._heal(store, error, [])
                    at_once = 1
                    continue
                stay.append(error)
                gone, use = 1, LogUse()
            left, freed = left[gone:], freed + use.byte_count
        if not stay:
            store.space.dead.take_from(dead)  # only now no row names them (rule S25)
        errors += stay
        return freed

    def start(self) -> None:
        """Flush on a thread of its own from now on: when a cache is full, and at intervals."""
        assert self._thread is None, "started twice"
        assert not self._stopping, "started after it was stopped"
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()
        self.compactor.start()
        self.scrubber.start()

    def request_flush(self) -> None:
        """Have the thread flush soon."""
        self._wanted.set()

    def stop(self) -> None:
        """End the threads, after the flush that runs."""
        self._stopping = True
        self.scrubber.stop()
        self.compactor.stop()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop, flush what is left, close the files."""
        self.stop()
        try:
            if self._journal.failure is None:
                self.flush()
        finally:
            # LMDB waits for a transaction of another thread, which it does not let end any more.
            with self._delete_lock, ExitStack() as closing:
                for store in self._stores:
                    closing.callback(store.close)

    @property
    def objects_held(self) -> int:
        """See ``DirectoryStore.objects_held``; any thread."""
        return sum(store.objects_held for store in self._stores)

    def stats(self) -> LedgerStorageStats:
        """Counters; any thread."""
        flushed = self._flush_stats
        kept = [store.memory_bytes() for store in self._stores]
        return LedgerStorageStats(
            ledgers=sum(store.ledger_count for store in self._stores),
            cache_bytes=sum(store.cache.byte_count for store in self._stores),
            entry_log_bytes_written=sum(store.logs.bytes_written for store in self._stores),
            flushes=flushed.flushes,
            flush_time_s=flushed.flush_time_s,
            last_flush_s=flushed.last_flush_s,
            block_cache_bytes=sum(each["blocks"] for each in kept),
            index_memory_bytes=sum(each["index"] for each in kept),
            ledger_record_bytes=sum(each["ledger_records"] for each in kept),
            compaction=self.compactor.stats,
            scrub=self.scrubber.stats,
        )

    def next_ledger_id(self) -> int:
        """An id above all ledgers of which there is a record; any thread."""
        highest = -1
        for store in self._stores:  # memory before the index (rule S7)
            highest = max(highest, *store.dirty_ledgers(), store.index.highest_ledger())
        return max(1, highest + 1)

    def _cover(
        self, by_store: Mapping[int, list[LedgerId]], marks: DurableMarks
    ) -> dict[int, set[LedgerId]]:
        """Flush until the indexes have all that came of these ledgers, and the stored marks have
        passed it, as far as ``marks``; by directory, those of which that could not be reached.

        Twice at most: behind a flush that failed, the next one stores only what that set apart.
        """
        for flushes in range(3):
            with self._flush_lock:
                failures = self._flush_stats.failures
                left = {
                    number: self._stores[number].uncovered(marks.of(number)).intersection(asked)
                    for number, asked in by_store.items()
                }
            again = (left[each] and not (flushes and failures[each]) for each in left)
            if flushes == 2 or not any(again):
                break
            with suppress(OSError, CorruptionError):  # ``failures`` has it
                self.flush()
        return left

    def _heal(self, store: DirectoryStore, met: CorruptionError, unhealed: list[_Error]) -> bool:
        """Take damage out of a directory's index; whether any was. ``unhealed`` gets why that was
        not possible."""
        try:
            return store.scrub.heal(self._flush_lock, met)
        except (OSError, CorruptionError) as error:
            logger.warning("%s cannot be healed: %s", store.directory, error)
            unhealed.append(error)
            return False

    def _tell_what_is_lost(self) -> None:
        """Have the process end if an index has given up: no flush, read or deletion would ever work
        in its directory again, also when the disk is well (rule S3)."""
        for store in self._stores:
            lost = "" if self._is_lost else store.index.why_lost()
            if lost:
                self._is_lost = True
                self._on_fatal(f"{lost}; this bookie must restart")

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wanted.wait(self._flush_interval_s)
                self._wanted.clear()
                if self._stopping:
                    break
                try:
                    self.flush()
                except (OSError, CorruptionError) as error:
                    logger.warning("flush failed, it is tried again: %s", error)
                self._on_flushed()
                self._tell_what_is_lost()
        finally:
            if not self._stopping:  # the traceback follows; adds would wait for room for ever
                self._on_fatal("the flush thread ended unexpectedly")
