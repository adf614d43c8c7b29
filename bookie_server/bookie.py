"""Bookie: performs what ``core`` decides about requests, over the journal and the ledger storage.

Every change goes the same way: decide, keep in memory, append to the journal, and answer when the
journal has synced it. Memory comes before the journal (rule S2), so that a checkpoint, which takes
the checkpoint mark first and memory second, never trims what memory did not hold. The answer comes
after the sync (rule S1).

An acknowledgement covers all entries of the ledger before it (rule P3). It may: adds are decided,
kept and journalled in the order in which they came, on one thread; the journal keeps its order; a
batch is durable as a whole or fails for good, and nothing behind a failure is ever acknowledged.

Reads see entries that are not durable yet. Only a recovery looks above the last add confirmed, and
it writes what it finds to other bookies before it closes the ledger (rule P16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from bookie_server.core.admission import Admission, BytesInFlight, admit, refuse_for_failed_flush
from bookie_server.core.copies import CopyGrant, refuse_copy
from bookie_server.core.disk_space import refuse_for_space
from bookie_server.core.ledger_record import Change, LedgerRecord
from bookie_server.core.read_only import Stall, stall
from bookie_server.core.transitions import (
    Accepted,
    KnownLedger,
    Step,
    end_of_ledger,
    on_add,
    on_fence,
    on_last_confirmed,
)
from bookie_server.first_contact import LedgerKeys, LookUps, resume
from bookie_server.giving_back import GivingBack
from bookie_server.held_entries import HeldEntries
from bookie_server.reads import entry_page, find_record, ledger_disks, read_entries, why_unsynced
from bookie_server.storage.blocks import RUN_ENTRIES_MAX, RUN_FRAMES_BYTES_MAX, encode_run
from bookie_server.storage.disks import DiskWatch
from bookie_server.storage.fs.vfs import Lock
from bookie_server.storage.index.base import HeldLedger
from bookie_server.storage.journal.changes import encode_change
from bookie_server.storage.journal.journal import Journal, Post
from bookie_server.storage.ledgers.ledger_storage import LedgerStorage
from bookie_server.storage.ledgers.write_cache import CachedRun
from bookie_server.storage.records import RecordType
from bookie_server.storage.stats import StorageStats
from bookie_server.waiting_adds import PendingAdd, WaitingAdds
from bookie_server.watchers import Watchers
from spark_ledger.bookie_api import ASKED_BY, Done, EntryPage, LedgerEnd, ReadOutcome, Refusal
from spark_ledger.limits.bookie import ADDS_GO_ON_AT_ONCE, BOOKIE_FENCES_MAX
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import access_key_hash
from spark_ledger.wire.shown_keys import is_copy_key, shown_hash


class Bookie:
    """One bookie's data. Methods belong to the service thread unless they say "any thread"."""

    leaving = ""  # why an operator takes it out: then it takes no adds of writers; any thread

    def __init__(
        self,
        journal: Journal,
        storage: LedgerStorage,
        disks: DiskWatch,
        locks: Sequence[Lock],
        post: Post,
        keys: LedgerKeys,
    ) -> None:
        """Use ``opening.open_bookie``. All of these belong to the bookie now: ``close`` ends them.

        ``post`` runs a callable on the service thread. ``keys`` are asked there.
        """
        # Any thread: each says for its methods who may call them.
        self._journal = journal
        self._storage = storage
        self.giving_back = GivingBack()
        self.lacking = storage.lacking
        self.ledger_disks = ledger_disks(storage, disks.names[1:])
        self._disks = disks
        self._post = post
        # Changed by the service thread; `stats` reads their sizes from any thread.
        self._bytes_in_flight = BytesInFlight()
        self._waiting = WaitingAdds()
        # Service thread only.
        self._held = HeldEntries(storage)
        self._fences: dict[LedgerId, list[Done]] = {}  # in memory, and not durable yet
        self._refused_fences: set[LedgerId] = set()  # in memory, and refused
        self._watchers = Watchers(post)
        self._first_contacts = LookUps(keys.look_up, post)
        self._copies = LookUps(keys.look_up_copy, post, self._first_contacts.room)
        self._locks = tuple(locks)  # the thread that closes, when no other is left

    def start(self) -> None:
        """Commit and flush on threads of their own from now on."""
        self._journal.start()
        self._storage.start()
        self._disks.start()
        self._held.start()

    # -- changes -------------------------------------------------------------------------------

    @property
    def append_bytes_in_flight(self) -> int:
        """See ``BookieApi``."""
        return self._bytes_in_flight.count - self._first_contacts.room.frames_bytes

    def add(
        self,
        run: EntryRun,
        *,
        access_key: bytes,
        recovery: bool,
        last_add_confirmed: EntryId,
        done: Done,
    ) -> None:
        """Store a well-formed run (``runs.run_error``); ``done(OK)`` once it is durable.

        A refusal may call ``done`` at once. With the write cache full, adds wait in order.
        """
        size = len(run.frames)
        if size > RUN_FRAMES_BYTES_MAX or len(run.sizes) > RUN_ENTRIES_MAX:
            message = f"ledger {run.ledger_id}: {run.count} entries of {size} bytes"
            done(BookieStatus.BAD_REQUEST, f"{message} are too many for one run")
            return
        self._bytes_in_flight.acquire(size)
        key_hash, answer = access_key_hash(access_key), partial(self._answer, size, done)
        add = PendingAdd(run, key_hash, recovery, last_add_confirmed, answer, ASKED_BY.get())
        if recovery and is_copy_key(access_key):
            self._copies.wait(run.ledger_id, partial(self._copy, add), size)
        else:
            self._admit(add)
        self._disks.wrote(size)

    def _copy(self, add: PendingAdd, grant: CopyGrant | Refusal) -> None:
        """Go on with an add of repair: from here on it has the ledger's own key (rule R11)."""
        run = add.run
        if isinstance(grant, CopyGrant):
            refusal = refuse_copy(grant, run.ledger_id, add.key_hash, run.last_entry)
            if refusal is None:
                own = grant.access_key_hash
                self._admit(add._replace(key_hash=own), KnownLedger(own, grant.is_closed))
                return
            grant = refusal
        add.done(*grant)

    def _admit(self, add: PendingAdd, known: KnownLedger | None = None) -> None:
        """Let an add in, or have it wait; again once its ledger is known: room may be taken."""
        add = add if known is None else add._replace(in_metadata=known)
        ledger_id, waiting_bytes = add.run.ledger_id, self._waiting.size_bytes
        is_full = self._storage.is_full(ledger_id)
        admission = admit(
            recovery=add.recovery,
            disk_full=self.leaving or self._disks.reason(ledger_id),
            is_full=is_full,
            others_wait=waiting_bytes > 0,
            waiting_bytes=waiting_bytes,
            flush_failure=self._flush_refusal(ledger_id) if is_full or waiting_bytes else None,
        )
        if admission is Admission.WAIT:
            self._waiting.append(add)
        else:
            self._add(add, admission if isinstance(admission, Refusal) else None)

    def batch(self) -> AbstractContextManager[None]:
        """Adds made within become durable together: the runs of one message."""
        return self._journal.batch()

    def fence(self, ledger_id: LedgerId, *, access_key: bytes, done: Done) -> None:
        """Refuse adds of the ledger's writer from now on, also if it was never heard of (rule P12);
        ``done(OK)`` once that is durable."""
        self._fence(ledger_id, access_key_hash(access_key), done, None)

    def _fence(
        self, ledger_id: LedgerId, key_hash: bytes, done: Done, in_metadata: KnownLedger | None
    ) -> None:
        accepted = self._decide(
            ledger_id,
            lambda now: on_fence(now, ledger_id, key_hash, in_metadata=in_metadata),
            done,
            in_metadata=in_metadata,
            again=partial(self._fence, ledger_id, key_hash, done),
        )
        if accepted is None:
            return
        steps = accepted.steps
        if not steps and ledger_id in self._refused_fences:
            # It holds in memory, and its record waits for room behind others. Once more is safe,
            # and its completion says when the fence is durable.
            steps = (Step(accepted.record, Change(ledger_id, fenced=True)),)
        if ledger_id in self._fences:
            # The fence is in memory and not on the disk: a second recovery that was told so now
            # would trust a fence which a power cut can still take back.
            if len(waiting := self._fences[ledger_id]) < BOOKIE_FENCES_MAX:
                waiting.append(done)
            else:  # the journal hangs, and most of those have left
                done(BookieStatus.TOO_MANY_REQUESTS, f"ledger {ledger_id} is not fenced yet")
        elif not steps:
            done(BookieStatus.OK, "")
        elif not self._refuses_for_room(done):
            self._fences[ledger_id] = [done]
            self._perform(steps, partial(self._fenced, ledger_id))

    def write_last_confirmed(
        self, ledger_id: LedgerId, last_add_confirmed: EntryId, *, access_key: bytes, done: Done
    ) -> None:
        """Learn the last add confirmed from an idle writer; it never goes back."""
        key_hash = access_key_hash(access_key)
        self._write_last_confirmed(ledger_id, last_add_confirmed, key_hash, done, None)

    def _write_last_confirmed(
        self,
        ledger_id: LedgerId,
        last_add_confirmed: EntryId,
        key_hash: bytes,
        done: Done,
        in_metadata: KnownLedger | None,
    ) -> None:
        accepted = self._decide(
            ledger_id,
            lambda now: on_last_confirmed(
                now, ledger_id, key_hash, last_add_confirmed, in_metadata=in_metadata
            ),
            done,
            in_metadata=in_metadata,
            again=partial(
                self._write_last_confirmed, ledger_id, last_add_confirmed, key_hash, done
            ),
        )
        if accepted is None:
            return
        if not accepted.steps:
            done(BookieStatus.OK, "")
            return
        if self._refuses_for_room(done):
            return
        self._perform(accepted.steps, done)
        if accepted.lac_advanced:
            self._watchers.notify(ledger_id, EntryId(accepted.record.last_add_confirmed))

    # -- questions -----------------------------------------------------------------------------

    def end_of_ledger(self, ledger_id: LedgerId, *, access_key: bytes) -> LedgerEnd:
        """Where the ledger ends here. A key that is shown must be right; none is needed."""
        found = find_record(self._storage, None, ledger_id)
        if isinstance(found, Refusal):
            return LedgerEnd.without_end(*found)
        return end_of_ledger(found, ledger_id, shown_hash(access_key))

    def watch_last_confirmed(
        self, ledger_id: LedgerId, above: EntryId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back whenever the ledger's last add confirmed grows, once it is higher than
        ``above``, and once it is fenced, until the callable that is returned is called."""
        return self._watchers.add(ledger_id, above, callback)

    def read(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int,
        max_bytes: int,
    ) -> ReadOutcome:
        """See ``reads.read_entries``; any thread."""
        return read_entries(
            self._storage, ledger_id, first_entry, last_entry, stride=stride, max_bytes=max_bytes
        )

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        """See ``reads.entry_page``, also for what it raises; any thread."""
        is_going, unsynced = ledger_id in self.giving_back, why_unsynced(self._journal)
        return None if is_going else entry_page(self._storage, ledger_id, first, unsynced)

    def next_ledger_id(self) -> int:
        """An id above all ledgers that were heard of here; any thread."""
        return self._storage.next_ledger_id()

    def held_ledgers(self, after: int, limit: int) -> list[HeldLedger]:
        """See ``LedgerStorage.held_ledgers``; any thread."""
        return self._storage.held_ledgers(after, limit)

    def delete_ledgers(
        self, ledger_ids: Iterable[LedgerId], *, named: bool = False, reused: bool = False
    ) -> int:
        """See ``LedgerStorage.delete_ledgers``; any thread but the service's."""
        return self._storage.delete_ledgers(ledger_ids, named=named, reused=reused)

    @property
    def objects_held(self) -> int:
        """About how many objects of the storage a search for cyclic garbage visits; any thread."""
        return self._storage.objects_held

    def stats(self) -> StorageStats:
        """Counters; any thread."""
        return StorageStats(
            self._journal.stats(),
            self._storage.stats(),
            self._bytes_in_flight.count,
            len(self._waiting),
            self.failure,
            self._disks.states,
            self._disks.names,
        )

    @property
    def failure(self) -> str:
        """Why nothing can be stored, for good or for a while; "" for a full disk; any thread."""
        return self._journal.failure or self._storage.failure or ""

    @property
    def stall(self) -> Stall | None:
        """A disk on which nothing moves while adds wait for it (rule S15); any thread."""
        directory, unmoved_s = self._storage.unmoved
        return stall(
            str(self._journal.writing_in),
            self._journal.unsynced_s,
            directory,
            unmoved_s,
            adds_wait=bool(self._waiting),
        )

    @property
    def disks(self) -> DiskWatch:
        """How full the disks are, and whether adds of writers are taken; any thread."""
        return self._disks

    # -- driving and closing -------------------------------------------------------------------

    def commit_pending(self) -> bool:
        """One journal batch, for callers without threads; False when nothing waited."""
        return self._journal.commit_pending()

    def flush(self) -> None:
        """One checkpoint; any thread. Raises OSError or CorruptionError if it fails."""
        try:
            self._storage.flush()
        finally:
            self._disks.check()
        self._post(self.on_flushed)

    def on_flushed(self) -> None:
        """A flush has ended, well or not: adds that wait go on, are refused, or wait for the next.

        In the order in which they came, some at a time, up to the first without room (rule P3).
        """
        self._held.forget()
        with self._journal.batch():
            for _ in range(min(len(self._waiting), ADDS_GO_ON_AT_ONCE)):
                refusal = self._flush_refusal(self._waiting.first.run.ledger_id)
                if refusal is not None:
                    self._waiting.pop().done(*refusal)
                elif self._storage.is_full(self._waiting.first.run.ledger_id):
                    self._storage.request_flush()
                    return
                else:
                    self._add(self._waiting.pop())
        if self._waiting:
            self._post(self.on_flushed)

    def close(self) -> None:
        """Make everything accepted durable, move it to the entry log, release the directories.

        Completions still run through ``post``. Adds that wait for room are refused with IO_ERROR:
        nothing of them was stored. Nothing is lost by a last flush that fails: the next start
        replays the journal.

        Raises OSError or CorruptionError if the last flush fails.
        """
        self._first_contacts.close()
        self._copies.close()
        while self._waiting:
            self._waiting.pop().done(BookieStatus.IO_ERROR, "the bookie is shutting down")
        self._disks.stop()
        self._held.close()
        self._journal.close()
        try:
            self._storage.close()
        finally:
            for lock in self._locks:
                lock.release()

    # -- inside --------------------------------------------------------------------------------

    def _add(self, add: PendingAdd, no_room: Refusal | None = None) -> None:
        """Decide and perform an add. Without room it is refused, unless the ledger's record refuses
        it already: a writer has to hear of a fence, and not only of a full disk."""
        run, ledger_id, in_metadata = add.run, add.run.ledger_id, add.in_metadata
        # As in ``_decide``, without callables: of many ledgers each entry comes through here.
        found = self._find_record(ledger_id)
        if isinstance(found, Refusal):
            add.done(*found)
            return
        if in_metadata is None and (found is None or self._first_contacts.is_waiting(ledger_id)):
            again = partial(resume, partial(self._admit, add), add.done)
            self._first_contacts.wait(ledger_id, again, len(run.frames), add.who)
            return
        accepted = on_add(
            found,
            ledger_id,
            add.key_hash,
            recovery=add.recovery,
            last_entry=run.last_entry,
            last_add_confirmed=add.last_add_confirmed,
            in_metadata=in_metadata,
        )
        if isinstance(accepted, Refusal):
            add.done(*accepted)
            return
        if self._journal.no_room and self._refuses_for_room(add.done):
            return
        if no_room is not None:
            add.done(*no_room)
            return
        is_held = False
        if run.first_entry <= accepted.held_up_to:
            held = self._held.compare(run, accepted.held_up_to)
            if isinstance(held, Refusal):
                add.done(*held)
                return
            is_held = held
        block = encode_run(run, add.last_add_confirmed)
        self._perform(accepted.steps, _ignored)
        place = None if is_held else self._storage.place_for(ledger_id, block)
        cached = CachedRun(run, add.last_add_confirmed, block, place)
        self._storage.add(cached, accepted.record, is_held=is_held)
        self._journal.append(RecordType.RUN, block, add.done, place)
        if accepted.lac_advanced:
            self._watchers.notify(ledger_id, EntryId(accepted.record.last_add_confirmed))

    def _decide(
        self,
        ledger_id: LedgerId,
        rule: Callable[[LedgerRecord | None], Accepted | Refusal],
        done: Done,
        *,
        in_metadata: KnownLedger | None,
        again: Callable[[KnownLedger], None],
    ) -> Accepted | None:
        """What a rule says of the ledger's record as it is now; None if ``done`` was called, or
        ``again`` will be, with what the metadata say."""
        found = self._find_record(ledger_id)
        if isinstance(found, Refusal):
            done(*found)
            return None
        if in_metadata is None and (found is None or self._first_contacts.is_waiting(ledger_id)):
            self._first_contacts.wait(ledger_id, partial(resume, again, done))
            return None
        decision = rule(found)
        if isinstance(decision, Refusal):
            done(*decision)
            return None
        return decision

    def _find_record(self, ledger_id: LedgerId) -> LedgerRecord | Refusal | None:
        refusal = self.giving_back.refuse(ledger_id)
        return refusal or find_record(self._storage, self._journal.failure, ledger_id)

    def _refuses_for_room(self, done: Done) -> bool:
        """Refuse what the journal has no room for, before memory is changed by it (rule S14)."""
        if no_room := self._journal.no_room:
            done(*refuse_for_space(no_room))
        return bool(no_room)

    def _flush_refusal(self, ledger_id: LedgerId) -> Refusal | None:
        """The answer to an add that would have to wait for a flush, if the last one failed."""
        if (failure := self._storage.flush_failure(ledger_id)) is not None:
            return refuse_for_failed_flush(failure.message, disk_full=failure.no_space)
        return None

    def _perform(self, steps: Sequence[Step], done: Done) -> None:
        """Keep and journal all steps at once: neither a crash nor a checkpoint leaves some of them
        on the disk, as a key without its fence (rule P25). ``done`` is told of the last one."""
        if steps:
            self._storage.set_ledger_record(steps[-1].change.ledger_id, steps[-1].record)
            *before, (record_type, body) = [encode_change(step.change) for step in steps]
            self._journal.append(record_type, body, done, before=before)

    def _answer(self, size: int, done: Done, status: BookieStatus, message: str) -> None:
        self._bytes_in_flight.release(size)
        done(status, message)

    def _fenced(self, ledger_id: LedgerId, status: BookieStatus, message: str) -> None:
        # A refused fence is in memory, and not durable: nobody may be told that it is there.
        if status is BookieStatus.OK:
            self._refused_fences.discard(ledger_id)
        else:
            self._refused_fences.add(ledger_id)
        for done in self._fences.pop(ledger_id):
            done(status, message)
        self._watchers.notify(ledger_id)


def _ignored(_status: BookieStatus, _message: str) -> None:
    """For a record whose answer comes with a later record of the same request."""
