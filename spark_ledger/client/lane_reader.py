"""Reads one lane of one fragment: performs a ReadMachine's commands, verifies every digest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from spark_ledger.client.context import ClientContext
from spark_ledger.client.entry_batch import EntryBatch, open_batch
from spark_ledger.client.machine_loop import MachineLoop, crash_error
from spark_ledger.errors import LedgerError
from spark_ledger.limits.client import READ_CHUNKS_AHEAD_MAX, READ_PARK_S
from spark_ledger.limits.entries import READ_REQUEST_BYTES_MAX
from spark_ledger.protocol.ensemble import LaneRange
from spark_ledger.protocol.events import (
    CancelRead,
    Command,
    ConsumerReady,
    DeliverEntries,
    Done,
    EntriesRead,
    Failed,
    ReadEnded,
    ReadEntries,
)
from spark_ledger.protocol.placement import read_order
from spark_ledger.protocol.read import ReadMachine
from spark_ledger.runs import EntryRun, run_error
from spark_ledger.tasks import wait_at_most
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import (
    BookieStatus,
    EntryId,
    LedgerId,
    LedgerMetadata,
    ReplicaHint,
    Versioned,
)
from spark_ledger.wire.frame import Digest


class LaneReader:
    """An iterator over batches of verified entries, in the lane's order."""

    def __init__(
        self,
        context: ClientContext,
        ledger: Versioned[LedgerMetadata],
        digest: Digest,
        wanted: LaneRange,
        *,
        replica_hint: ReplicaHint,
        access_key: bytes,
    ) -> None:
        self._context = context
        self._access_key = access_key
        self._ledger = ledger.value
        self._digest = digest
        self._bookies = wanted.bookies
        loop = asyncio.get_running_loop()
        directory = context.directory
        order = read_order(
            wanted.lane.indexes,
            wanted.bookies,
            replica_hint,
            slow=context.slow_now(),
            gone=[b for b in wanted.bookies if directory.get(b) is None],
            distances=context.distances(wanted.bookies),
        )
        self._machine = ReadMachine(
            ledger,
            wanted,
            order=order,
            speculative_delay_s=context.config.speculative_read_delay_s,
            now=loop.time(),
            busy_wait_s=context.config.read_timeout_s,
            jitter=context.random.random(),
        )
        self._reads: dict[int, asyncio.Task[None]] = {}
        self._asked_last: int | None = None
        self._fetched: dict[int, EntryBatch] = {}
        """What each replica brought last, until the machine says whether it is wanted."""
        self._ready: deque[EntryBatch] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        """Whether more is read ahead: not from when the bound is reached until half is taken."""
        self._room.set()
        self._ended = False
        self._error: LedgerError | None = None
        self._machine_loop = MachineLoop(
            self._machine,
            self._perform,
            timer=context.timer,
            busy=lambda: not self._ended and self._room.is_set(),
            crashed=self._on_crash,
        )

    async def chunks(self) -> AsyncGenerator[EntryBatch, None]:
        """The entries.

        Raises NoSuchEntryError if every replica denies one, BookieUnavailableError if a replica
        that may have it cannot be asked, DigestMismatchError if all copies are damaged.
        """
        self._machine_loop.start(self._machine.start(asyncio.get_running_loop().time()))
        try:
            while True:
                while self._ready:
                    chunk = self._ready.popleft()
                    if not self._room.is_set() and len(self._ready) <= READ_CHUNKS_AHEAD_MAX // 2:
                        self._room.set()
                        self._machine_loop.feed(ConsumerReady())
                    yield chunk
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._ended = True
            await self._machine_loop.stop()
            for bookie_index in self._machine.slow_indexes:
                self._context.slow(self._bookies[bookie_index])

    def _perform(self, command: Command) -> None:
        match command:
            case ReadEntries():
                self._count(command.bookie_index)
                self._reads[command.bookie_index] = self._machine_loop.spawn(self._read(command))
            case CancelRead():
                task = self._reads.pop(command.bookie_index, None)
                if task is not None:
                    task.cancel()
            case DeliverEntries():
                self._deliver(command)
            case Done():
                self._end(None)
            case Failed():
                self._end(command.error)
            case _:
                raise AssertionError(f"not a command of a reader: {command!r}")

    def _count(self, bookie_index: int) -> None:
        """A replica is asked: as before, because another is slow, or because another failed."""
        counters = self._context.counters
        counters.read_requests += 1
        if self._asked_last not in (None, bookie_index):
            if self._reads.keys() - {bookie_index}:
                counters.speculative_reads += 1
            else:
                counters.read_failovers += 1
        self._asked_last = bookie_index

    def _deliver(self, command: DeliverEntries) -> None:
        entries = self._fetched[command.bookie_index].between(command.first, command.last)
        counters = self._context.counters
        counters.entries_read += len(entries)
        counters.bytes_read += entries.payload_bytes
        self._ready.append(entries)
        if len(self._ready) >= READ_CHUNKS_AHEAD_MAX:
            self._room.clear()
        self._changed.set()

    def _end(self, error: LedgerError | None) -> None:
        self._ended, self._error = True, error
        self._changed.set()

    def _on_crash(self, error: BaseException) -> None:
        self._end(crash_error(self._ledger.ledger_id, error))

    async def _read(self, command: ReadEntries) -> None:
        """One request to one replica; every chunk is an event, and so is the end."""
        me = asyncio.current_task()
        expected = int(command.first)
        ended: ReadEnded | None = None
        chunks = self._context.transport.read(
            command.bookie_id,
            self._ledger.ledger_id,
            command.first,
            command.last,
            stride=command.stride,
            max_bytes=READ_REQUEST_BYTES_MAX,
            access_key=self._access_key,
            timeout_s=self._context.config.read_timeout_s,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                if self._reads.get(command.bookie_index) is not me:
                    return
                entries, ended = verify_chunk(
                    self._ledger.ledger_id, self._digest, command, expected, chunk
                )
                if entries is not None:
                    last = entries.last_entry
                    expected = last + command.stride
                    self._fetched[command.bookie_index] = entries
                    self._machine_loop.feed(EntriesRead(command.bookie_index, command.lane, last))
                if ended is not None or not await self._is_wanted_soon():
                    break
        # The call is over. A consumer that has stopped holds nothing at the bookie, however long;
        # when it goes on, the machine asks for the rest.
        await self._room.wait()
        if self._reads.get(command.bookie_index) is not me:
            return
        del self._reads[command.bookie_index]
        self._machine_loop.feed(
            ended
            or ReadEnded(
                command.bookie_index, command.lane, BookieStatus.OK, EntryId(expected), "early end"
            )
        )

    async def _is_wanted_soon(self) -> bool:
        """Wait for room; False if the consumer seems to have stopped."""
        if not self._room.is_set():
            await wait_at_most(self._room, READ_PARK_S)
        return self._room.is_set()


def verify_chunk(
    ledger_id: LedgerId, digest: Digest, command: ReadEntries, expected: int, chunk: ReadChunk
) -> tuple[EntryBatch | None, ReadEnded | None]:
    """The good entries of a chunk if there are any, and the end of the read if it ends here.

    A reply is believed only if it brings the very entries asked for, in order, with digests that
    match; the first that is not so counts as damaged on that replica (IO_ERROR).
    """
    bookie_index, lane = command.bookie_index, command.lane
    run, ended = wanted_run(ledger_id, command, expected, chunk)
    if run is None:
        return None, ended
    entries, damage = open_batch(digest, run)
    if damage is not None:
        at = EntryId(expected + (len(entries) if entries else 0) * command.stride)
        return entries, ReadEnded(bookie_index, lane, BookieStatus.IO_ERROR, at, str(damage))
    return entries, None


def wanted_run(
    ledger_id: LedgerId, command: ReadEntries, expected: int, chunk: ReadChunk
) -> tuple[EntryRun | None, ReadEnded | None]:
    """The run of a chunk if it has the very entries asked for, in order, or the end of the read.

    Their digests are not looked at.
    """
    bookie_index, lane, run = command.bookie_index, command.lane, chunk.run
    if run is None:
        ended_at = max(int(chunk.entry_id), expected)
        if chunk.status is BookieStatus.TOO_MANY_REQUESTS:
            ended_at = expected  # the read goes on there: a later one would leave entries out
        return None, ReadEnded(bookie_index, lane, chunk.status, EntryId(ended_at), chunk.message)
    problem = run_error(run) or _not_wanted(run, ledger_id, command, expected)
    if not problem:
        return run, None
    return None, ReadEnded(bookie_index, lane, BookieStatus.IO_ERROR, EntryId(expected), problem)


def _not_wanted(run: EntryRun, ledger_id: LedgerId, command: ReadEntries, expected: int) -> str:
    """How the entries of a run differ from those asked for; empty when they do not.

    Without a password the digests of another ledger's frames match as well.
    """
    wanted = range(expected, expected + run.count * command.stride, command.stride)
    ids = wanted if run.entry_ids is None else list(wanted)
    is_wanted = run.ids() == ids and wanted[-1] <= command.last
    if is_wanted and run.ledger_id == ledger_id:
        return ""
    return (
        f"asked for ledger {ledger_id} entry {expected}, got ledger {run.ledger_id} "
        f"{run.first_entry}..{run.last_entry}"
    )
