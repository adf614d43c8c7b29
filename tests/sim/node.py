"""A simulated bookie: the real Bookie without threads, on a simulated disk, through crashes.

Every answer of the bookie passes through here, so that ``promises.py`` knows what it has promised.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bookie_server.bookie import Bookie
from bookie_server.opening import open_bookie
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.fs.vfs import FileSystem
from bookie_server.storage.index.base import HeldLedger, IndexRow
from bookie_server.storage.index.memory_index import MemoryIndex
from bookie_server.storage.journal.files import journal_path
from bookie_server.storage.journal.mark import Mark
from spark_ledger.bookie_api import Done, EntryPage, Refusal, refuse_reader
from spark_ledger.errors import ConfigurationError, CorruptionError, LedgerError
from spark_ledger.lab.simulation.loop import Process
from spark_ledger.limits import KIB
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import frame_last_add_confirmed
from tests.sim.announcing import Announcement
from tests.sim.base import SimBase
from tests.sim.copies import Arrival
from tests.sim.disk import JOURNAL, LEDGERS, Disk, PowerCut
from tests.sim.keys import SimKeys
from tests.sim.promises import GOES_ON_S, Promises
from tests.sim.witness import Witness

if TYPE_CHECKING:
    from tests.sim.transport import Connection
    from tests.sim.zookeeper import SimZookeeper

_RANGES_PER_PAGE = 2
"""Of the list of a ledger's entries: so few that there is a next page."""


class BookieNode:
    """One bookie, through all its runs."""

    def __init__(
        self,
        world: SimBase,
        zookeeper: SimZookeeper,
        bookie_id: BookieId,
        witness: Witness,
    ) -> None:
        self.world = world
        self.bookie_id = bookie_id
        self.name: str = bookie_id
        self.disk = Disk(world, bookie_id)
        self.process: Process | None = None
        self.bookie: Bookie | None = None
        self.connections: list[Connection] = []
        self.runs = 0
        self.slow = 1.0
        """Factor by which the disk is slower than usual."""
        self.hangs = False  # the journal's disk completes nothing now
        self.ledgers_hang = False  # nor does that of the ledgers
        self._waiting_reads: list[Callable[[], None]] = []
        self.weak = False
        """Whether this is the one bookie of the schedule whose disk is not trusted."""
        self.may_refuse = False
        """Whether its journal may be damaged: then it may refuse to start, and nothing else."""
        self.announcement = Announcement(self)
        self.broken = ""
        """Why it cannot be started any more; empty if it can."""
        self.promises = Promises(self, witness)
        self.arrival = Arrival(self, zookeeper)
        self._zookeeper = zookeeper
        self._witness = witness
        self._draw: random.Random = world.random_for(f"node {bookie_id}")
        self._commit_due = False
        self._flush_due = False
        self._batches: deque[Mark] = deque(maxlen=6)
        """Marks at the ends of the newest journal batches."""
        self._inbox: deque[Callable[[], None]] = deque()
        """Adds that have arrived but are not handled yet."""

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start on the disk as it is. If the start fails, the bookie stays down."""
        if self.process is not None or self.arrival.starting is not None or self.broken:
            return
        self.runs += 1
        rate = self._draw.uniform(0.8, 1.25) if self.world.options.drift else 1.0
        process = Process(f"{self.name}#{self.runs}", rate=rate)
        files = self.disk.attach()
        self._commit_due = self._flush_due = False
        self._inbox.clear()
        self._batches.clear()
        if self.world.options.copies:
            self.arrival.begin(process, files)
            return
        bookie = self.open(process, files)
        if bookie is not None:
            self._zookeeper.connect(process)
            self.serve(process, bookie)
            self.arrival.register(process)

    def open(self, process: Process, files: FileSystem) -> Bookie | None:
        """Open the storage; None if that fails."""
        options = self.world.options
        config = StorageConfig(
            JOURNAL,
            LEDGERS,
            self.bookie_id,
            journal_file_bytes=64 * KIB,
            journal_batch_bytes_max=16 * KIB,
            write_cache_bytes=options.write_cache_bytes,
            entry_log_bytes=16 * KIB,
            block_cache_bytes=4 * KIB,
            write_once_bytes=options.write_once_bytes,
        )
        try:
            return open_bookie(
                config,
                post=partial(self._post, process),
                on_fatal=partial(self._fatal, process),
                on_state_changed=self.announcement.changed.set,
                keys=SimKeys(self._zookeeper, process, self._go_on),
                file_system=files,
                open_index=lambda path: MemoryIndex(files, path),
                threads=False,
            )
        except PowerCut:
            self.disk.crash("lottery")
            self.restart_later()
            return None
        except (ConfigurationError, CorruptionError) as error:
            self.disk.crash("process")
            self.start_failed(error)
            return None

    def serve(self, process: Process, bookie: Bookie) -> None:
        """From now on this run answers."""
        self.bookie, self.process = bookie, process
        self.world.say(f"{self.name} starts, run {self.runs}")
        self.world.counts["bookie starts"] += 1
        self.promises.check_restart()
        self.announcement.watch_disk()

    def crash(self, kind: str) -> None:
        """Kill the process, with its machine or without it."""
        process = self.process or self.arrival.starting
        if process is None:
            return
        self.arrival.starting = None
        self.arrival.end_rivals()  # what nobody can tell from the original must not follow it
        self.world.say(f"{self.name} is down ({kind})")
        self._waiting_reads.clear()
        self.world.loop.bury(process)
        self.process = None
        self.bookie = None
        self.disk.crash(kind)
        self._zookeeper.died(process, self._draw.uniform(0.05, 1.0))
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.server_died()

    def pause(self) -> None:  # its connections stay open
        if self.process is not None:
            self.process.paused = True

    def resume(self) -> None:
        if self.process is not None and self.process.paused:
            self.world.loop.resume(self.process)

    def say(self, line: str) -> None:
        self.world.say(line)

    def start_failed(self, error: LedgerError) -> None:
        if isinstance(error, ConfigurationError) and isinstance(error.__cause__, OSError):
            self.announcement.start_failed(error.__cause__)
            return self.restart_later()  # an I/O error: the next start may succeed
        self.broken = str(error)
        self.world.say(f"{self.name} refuses to start: {error}")
        if not (self.weak or self.may_refuse):
            self.world.violate("I11", "restart", f"{self.name} cannot start: {error}")

    def restart_later(self) -> None:
        self.world.loop.later(self._draw.uniform(0.05, 0.5), None, self.start)

    def _post(self, process: Process, work: Callable[[], None]) -> None:
        """Post work to the service thread: in order, a moment later."""
        self.world.loop.later(0.0, process, self.guarded, work)

    def _fatal(self, process: Process, message: str) -> None:
        """The journal has failed: the process exits within a moment, and starts again."""
        if self.process is process:
            self.world.counts["bookie gave up"] += 1
            self.world.loop.later(self._draw.uniform(0, 0.05), process, self._exit, process)

    def _exit(self, process: Process) -> None:
        if self.process is process:
            self.crash("power")
            self.restart_later()

    def guarded(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run a piece of the bookie; a power cut in it ends the process."""
        try:
            return work(*args)
        except PowerCut:
            self.crash("lottery")
            self.restart_later()
            return None

    # -- disk --------------------------------------------------------------------------------------

    def _go_on(self, work: Callable[[], None]) -> None:
        """Run requests that waited for a ledger's key."""
        self.guarded(work)
        self.commit_soon()

    def commit_soon(self) -> None:
        if not self._commit_due and self.process is not None:
            self._commit_due = True
            delay_s = self._draw.uniform(0.0001, 0.004) * self.slow
            self.world.loop.later(delay_s, self.process, self.guarded, self._commit)
            self._flush_later()

    def _commit(self) -> None:
        self._commit_due = False
        if self.bookie is not None and not self.hangs and self.bookie.commit_pending():
            mark = self.bookie._journal.durable_mark
            if mark not in self._batches:  # a write that failed makes nothing durable
                self._batches.append(mark)
            self.commit_soon()

    def _flush_later(self) -> None:
        if not self._flush_due and self.process is not None:
            self._flush_due = True
            delay_s = self.world.options.flush_s * self._draw.uniform(0.2, 1.8)
            self.world.loop.later(delay_s, self.process, self.guarded, self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self.flush_now()

    def flush_now(self) -> None:
        """Make one checkpoint, as the flush thread does."""
        bookie = self.bookie
        if bookie is None:
            return
        if self.ledgers_hang:  # ``ledgers_go_on`` does the rest
            self._begin_flush(bookie)
            return
        self.disk.meanwhile = self._meanwhile
        try:
            bookie.flush()
            if self.world.options.compacts:  # as the compaction thread does on a full disk
                bookie._storage.compactor.run_once(full=True, paced=False)
            if self.world.options.scrubs:
                before = bookie._storage.scrubber.stats.bad
                bookie._storage.scrubber.run_once()
                found = bookie._storage.scrubber.stats.bad - before
                self.world.counts["damaged blocks found"] += found
        except (OSError, CorruptionError) as error:
            self.say(f"{self.name} cannot flush: {error}")
            bookie._post(bookie.on_flushed)
            if self.process is not None:  # the flush thread tries again, also when nothing comes
                self.world.loop.later(0.3, self.process, self.guarded, self.flush_now)
        finally:
            self.disk.meanwhile = None

    def _begin_flush(self, bookie: Bookie) -> None:
        """The part of a flush that comes before the disk: what is added from now on waits for the
        next one, and has half of the write cache."""
        (store,) = bookie._storage._stores
        unwritten = bookie._journal.unwritten_of(store.covered.seen_behind)
        mark, run_log_mark = bookie._journal.durable_marks.of(0)
        if store.cache.frozen is None and store.cache.active_bytes and mark is not None:
            store._freeze(mark, run_log_mark, unwritten)

    def ledgers_go_on(self) -> None:
        """The disk of the ledgers hangs no longer: what waited for it goes on (rule S15)."""
        if not self.ledgers_hang:
            return
        self.ledgers_hang = False
        reads, self._waiting_reads = self._waiting_reads, []
        process = self.process
        if process is None:
            return
        for read in reads:
            self.world.loop.later(0.0, process, read)
        self.world.loop.later(0.0, process, self.guarded, self.flush_now)
        self.world.loop.later(GOES_ON_S, process, self.promises.check_nothing_waits)

    def when_ledgers_move(self, read: Callable[[], None]) -> None:
        """Read now, or when the disk of the ledgers completes something again."""
        if self.ledgers_hang:
            self._waiting_reads.append(read)
        else:
            read()

    def _meanwhile(self) -> None:
        """Run the service and the journal while the flush waits for the disk."""
        if not self._inbox or self._draw.random() < 0.5:
            return
        self.disk.meanwhile = None
        self.world.counts["adds during a flush"] += 1
        self._take_next()
        if self.bookie is not None and self._draw.random() < 0.7 and not self.hangs:
            self.bookie.commit_pending()
        self.disk.meanwhile = self._meanwhile

    def blocks(self) -> list[IndexRow]:
        """The index rows of everything in the entry logs."""
        if self.bookie is None:
            return []
        (store,) = self.bookie._storage._stores
        index = store.index
        assert isinstance(index, MemoryIndex)
        return [row for rows in index.content.rows.values() for row in rows.values()]

    def rot_journal(self) -> str:
        """Flip a bit of a journal batch that has another one behind it. That is no torn tail, so
        replay has to refuse it. Returns where, or "" if there is no such batch yet."""
        marks = list(self._batches)
        places = [
            (start, end)
            for start, end in pairwise(marks[:-1])
            if start.file_number == end.file_number == marks[-1].file_number
        ]
        if not places or self.process is None:
            return ""
        start, end = self._draw.choice(places)
        path = journal_path(JOURNAL, end.file_number)
        where = self.disk.flip_at(path, self._draw.randrange(start.offset, end.offset))
        self.crash(self._draw.choice(["process", "power"]))
        self.restart_later()
        return where

    # -- requests ----------------------------------------------------------------------------------

    def add(self, run: EntryRun, *, access_key: bytes, recovery: bool, done: Done) -> None:
        """See ``Bookie.add``."""
        bookie = self.bookie
        assert bookie is not None, "a dead process hears nothing"
        was_fenced = run.ledger_id in self.promises.fenced and not recovery
        collected = self.promises.times_collected(run.ledger_id)
        process = self.process

        def answer(status: BookieStatus, text: str) -> None:
            if self.process is not process:
                return
            self.say(
                f"{self.name} add {run.ledger_id}/{run.first_entry}..{run.last_entry}"
                f"{' recovery' if recovery else ''}: {status.name}"
            )
            if status is BookieStatus.OK:
                if was_fenced:
                    self.world.violate(
                        "I12",
                        "fence",
                        f"{self.name} stored entry {run.last_entry} of ledger {run.ledger_id} for "
                        "its writer, which came after a fence was answered",
                    )
                self.promises.note(run, collected)
            done(status, text)

        self._inbox.append(partial(self._add, bookie, run, access_key, recovery, answer))
        self.world.loop.later(self._draw.uniform(0, 0.0005), process, self.guarded, self._take_next)
        if self._draw.random() < 0.03:
            self.guarded(self.flush_now)

    def _take_next(self) -> None:
        if self._inbox:
            self._inbox.popleft()()

    def _add(
        self, bookie: Bookie, run: EntryRun, access_key: bytes, recovery: bool, done: Done
    ) -> None:
        bookie.add(
            run,
            access_key=access_key,
            recovery=recovery,
            last_add_confirmed=frame_last_add_confirmed(run),
            done=done,
        )
        if bookie._waiting and self.process is not None:
            self.world.loop.later(0.001, self.process, self.guarded, self.flush_now)
        self.commit_soon()

    def fence(self, ledger_id: LedgerId, *, access_key: bytes, done: Done) -> None:
        """See ``Bookie.fence``."""
        bookie = self.bookie
        assert bookie is not None, "a dead process hears nothing"
        process = self.process
        collected = self.promises.times_collected(ledger_id)

        def answer(status: BookieStatus, text: str) -> None:
            if self.process is not process:
                return
            self.say(f"{self.name} fence {ledger_id}: {status.name}")
            if status is BookieStatus.OK:
                self.promises.note_fence(ledger_id, collected)
            done(status, text)

        while self._inbox:  # requests of one connection keep their order
            self.guarded(self._take_next)
        if self.bookie is None:
            return
        self.guarded(partial(bookie.fence, ledger_id, access_key=access_key, done=answer))
        self.commit_soon()

    def write_last_confirmed(
        self, ledger_id: LedgerId, last_add_confirmed: EntryId, *, access_key: bytes, done: Done
    ) -> None:
        """See ``Bookie.write_last_confirmed``."""
        assert self.bookie is not None, "a dead process hears nothing"
        self.guarded(
            partial(
                self.bookie.write_last_confirmed,
                ledger_id,
                last_add_confirmed,
                access_key=access_key,
                done=done,
            )
        )
        self.commit_soon()

    def last_confirmed(self, ledger_id: LedgerId, access_key: bytes) -> LastConfirmed:
        """Answer a request for the last add confirmed."""
        assert self.bookie is not None, "a dead process hears nothing"
        end = self.bookie.end_of_ledger(ledger_id, access_key=access_key)
        if end.status is BookieStatus.OK:
            self._witness.told(self, ledger_id, end.last_add_confirmed)
        elif end.status is BookieStatus.NO_SUCH_LEDGER:
            self.promises.check_denial(ledger_id, None)
        return LastConfirmed(
            end.status, end.last_add_confirmed, end.last_entry, end.fenced, end.message
        )

    def refuse_reader(self, ledger_id: LedgerId, access_key: bytes) -> Refusal | None:
        """See ``bookie_api.refuse_reader``."""
        return refuse_reader(self.bookie, ledger_id, access_key) if self.bookie else None

    def read(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId, stride: int, limit: int
    ) -> list[ReadChunk]:
        """Answer a read, in the chunks that a bookie would send."""
        assert self.bookie is not None, "a dead process hears nothing"
        chunks: list[ReadChunk] = []
        wanted = first
        while wanted <= last and limit > 0:
            size = min(limit, self.world.options.chunk_bytes)
            outcome = self.bookie.read(ledger_id, wanted, last, stride=stride, max_bytes=size)
            for run in outcome.runs:
                self.promises.check_served(ledger_id, run)
                chunks.append(ReadChunk(BookieStatus.OK, run, run.first_entry))
                limit -= len(run.frames)
                wanted = EntryId(run.last_entry + stride)
            if outcome.status is not BookieStatus.OK:
                if outcome.status.is_denial:
                    self.promises.check_denial(ledger_id, outcome.entry_id)
                chunks.append(ReadChunk(outcome.status, None, outcome.entry_id, outcome.message))
                break
        return chunks

    def watch(
        self, ledger_id: LedgerId, above: EntryId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """See ``Bookie.watch_last_confirmed``."""
        assert self.bookie is not None, "a dead process hears nothing"
        return self.bookie.watch_last_confirmed(ledger_id, above, callback)

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        """See ``Bookie.entry_page``. Pages are short, as ledgers are."""
        assert self.bookie is not None, "a dead process hears nothing"
        page = self.bookie.entry_page(ledger_id, first)
        if page is None or len(page.ranges) <= _RANGES_PER_PAGE:
            return page
        return EntryPage(page.ranges[:_RANGES_PER_PAGE], page.ranges[_RANGES_PER_PAGE][0])

    def held_ledgers(self, after: int, limit: int) -> list[HeldLedger]:
        """See ``Bookie.held_ledgers``."""
        assert self.bookie is not None, "a dead process hears nothing"
        return self.bookie.held_ledgers(after, limit)
