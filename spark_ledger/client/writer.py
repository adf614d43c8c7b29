"""LedgerWriter: the handle that appends to a ledger this client created."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from spark_ledger.client.appenders import Appenders
from spark_ledger.client.completions import Completion, batch_completions, fail_all
from spark_ledger.client.context import ClientContext
from spark_ledger.client.frames import FrameStore
from spark_ledger.client.left_open import LeftOpen
from spark_ledger.client.machine_loop import MachineLoop, crash_error
from spark_ledger.client.payloads import check_batch, check_payload, copy_error
from spark_ledger.client.unclosed import Unclosed, abandoned
from spark_ledger.errors import (
    FencedError,
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    TooManyRequestsError,
)
from spark_ledger.limits.client import (
    APPEND_BATCH_ENTRIES_MAX,
    WRITER_CLOSE_GRACE_S,
    WRITER_ENTRY_BYTES,
    WRITER_QUEUED_BYTES_FACTOR,
)
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.protocol.append import AppendMachine
from spark_ledger.protocol.append_limits import AppendLimits
from spark_ledger.protocol.append_phases import Phase
from spark_ledger.protocol.events import (
    Abandon,
    AnnounceLastConfirmed,
    Append,
    ChooseBookies,
    Close,
    CloseAppender,
    Command,
    ConfirmEntries,
    Done,
    Event,
    Failed,
    FailEntries,
    LastConfirmedTold,
    OpenAppender,
    ReadMetadata,
    SendEntries,
    WriteMetadata,
)
from spark_ledger.types import NO_ENTRY, BookieId, EntryId, LedgerId, LedgerMetadata, Versioned
from spark_ledger.wire.frame import Digest


class LedgerWriter:
    """Appends entries in order; they are durable on AQ bookies once confirmed.

    All methods belong to the loop that made the writer. Leaving ``async with`` closes the ledger.
    """

    def __init__(
        self,
        context: ClientContext,
        ledger: Versioned[LedgerMetadata],
        *,
        access_key: bytes,
        digest: Digest,
        left_open: LeftOpen,
    ) -> None:
        self._context = context
        self._unclosed = Unclosed(context, left_open, access_key=access_key, digest=digest)
        self._access_key = access_key
        self._loop = asyncio.get_running_loop()
        self._kept = ExitStack()
        """Until the writer stops, its metadata cannot go back unnoticed."""
        self._kept.enter_context(context.ledgers.keep(ledger))
        config = context.config
        self.bytes_in_flight_max = config.bytes_in_flight_max
        """The bound that ``wait_for_room`` keeps."""
        self._machine = AppendMachine(
            ledger.value,
            ledger.version,
            now=self._loop.time(),
            limits=AppendLimits(
                add_timeout_s=config.add_timeout_s,
                bytes_in_flight_max=config.bytes_in_flight_max,
                explicit_lac_delay_s=config.explicit_lac_delay_s,
            ),
        )
        self._frames = FrameStore(ledger.value, digest)
        self._confirmed_to: int = NO_ENTRY
        """The last entry whose fate was told."""
        self._pending: deque[Completion] = deque()
        """Fates of the entries that the machine knows and has not confirmed, in entry order."""
        self._queue: list[bytes] = []
        """Payloads that wait for the end of this loop turn, to be added all at once."""
        self._queue_completions: list[Completion] = []
        self._queue_bytes = 0
        """What these take: payload, and ``WRITER_ENTRY_BYTES`` for each."""
        self.has_room = True
        """Whether another append would stay within the bound on bytes in flight. A plain flag, so
        that other threads may look at it."""
        self._room_bytes = self.bytes_in_flight_max
        """What the queue may hold, given what the machine has in flight."""
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._progress: asyncio.Event = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._outcome: asyncio.Future[None] = self._loop.create_future()
        self._machine_loop = MachineLoop(
            self._machine,
            self._perform,
            timer=context.timer,
            busy=lambda: not self._machine.is_idle,
            crashed=self._on_crash,
            after=self._on_progress,
        )
        self._appenders = Appenders(
            context, self.ledger_id, self._machine_loop, access_key=access_key, recovery=False
        )
        self._counted = list(self._machine.bookies)
        """Whom the client counts as used, by index; not all that were chosen come into use."""
        context.use(self._counted, +1)
        context.writers.add(self)
        self._machine_loop.start(self._machine.start())

    # -- state -------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._machine.metadata.ledger_id

    @property
    def incarnation(self) -> bytes:
        """What tells the ledger from another of its id."""
        return self._machine.metadata.incarnation

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last wrote or read them."""
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that is confirmed; -1 when there is none."""
        return self._machine.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        """The last entry that was appended, confirmed or not."""
        return EntryId(self._machine.last_add_pushed + len(self._queue))

    @property
    def length(self) -> int:
        """Payload bytes appended so far."""
        return self._machine.length + self._queued_payload_bytes

    @property
    def _queued_payload_bytes(self) -> int:
        return self._queue_bytes - WRITER_ENTRY_BYTES * len(self._queue)

    @property
    def failed_indexes(self) -> frozenset[int]:
        """Places in the ensemble whose bookie failed and could not be replaced yet."""
        return self._machine.failed_indexes

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be appended."""
        return self._closing is not None or self._machine.error is not None

    @property
    def is_left_open(self) -> bool:
        """Whether the ledger is open though its writer has ended, and nobody else took it over: its
        metadata could not be written. Behind a restore the id may be another one's."""
        taken_over = isinstance(self._machine.error, FencedError | MetadataRestoredError)
        is_closed = self.metadata.is_closed or self._unclosed.is_closed_by_now
        return self._outcome.done() and not (is_closed or taken_over)

    # -- appending ---------------------------------------------------------------------------------

    async def append(self, payload: bytes) -> EntryId:
        """Append one entry and wait until it is confirmed; its id.

        Raises EntryTooLargeError if the payload is above the bound, LedgerClosedError if the writer
        was closed, FencedError if another client took the ledger over, NotEnoughBookiesError if
        failed bookies could not be replaced, AddOutcomeUnknownError if the entry may be stored.
        """
        await self.wait_for_room()
        return EntryId(await self.append_nowait(payload))

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        """Append one entry; a future of its id. Futures complete in entry order.

        Raises TooManyRequestsError if a caller ignores ``wait_for_room``; else as ``append``.
        """
        if type(payload) is not bytes or len(payload) > ENTRY_PAYLOAD_BYTES_MAX:
            payload = check_payload(payload)
        if self._machine.error is not None or self._closing is not None or not self.has_room:
            self._check_accepts()
        future: asyncio.Future[int] = self._loop.create_future()
        queue = self._queue
        queue.append(payload)
        self._queue_completions.append(future)
        self._queue_bytes += len(payload) + WRITER_ENTRY_BYTES
        self.has_room = self._queue_bytes < self._room_bytes
        if len(queue) == 1:
            self._queued_first()
        return future

    async def append_many(self, payloads: Iterable[bytes]) -> range:
        """Append several entries at once and wait until all are confirmed; their ids.

        For small entries: a batch costs little more than one of them. Raises as ``append``, and
        then the first of them may be confirmed; ConfigurationError if the batch has more bytes than
        may be in flight, or too many entries: nothing of it was appended.
        """
        await self.wait_for_room()
        return await self.append_many_nowait(payloads)

    def append_many_nowait(self, payloads: Iterable[bytes]) -> asyncio.Future[range]:
        """Append several entries at once; a future of their ids, in the order of the payloads.

        Raises TooManyRequestsError if a caller ignores ``wait_for_room``; else as ``append_many``.
        """
        checked = check_batch(payloads, self.bytes_in_flight_max)
        self._check_accepts()
        future: asyncio.Future[range] = self._loop.create_future()
        if checked:
            self.submit(checked, batch_completions(future, len(checked)))
        else:
            future.set_result(range(0))
        return future

    def submit(self, payloads: Sequence[bytes], completions: Sequence[Completion]) -> None:
        """Append entries whose payloads were checked; each completion is told its entry's id. Their
        callers have waited for room."""
        self.check_open()
        is_first = not self._queue
        self._queue.extend(payloads)
        self._queue_completions.extend(completions)
        self._queue_bytes += sum(map(len, payloads)) + WRITER_ENTRY_BYTES * len(payloads)
        self.has_room = self._queue_bytes < self._room_bytes
        if is_first:
            self._queued_first()

    def _queued_first(self) -> None:
        """Something is queued: sent now by an idle writer, else with what comes in this turn."""
        if self._pending or self._machine_loop.is_handling:
            self._loop.call_soon(self._add_queued)
        else:
            self._add_queued()

    def _check_accepts(self) -> None:
        self.check_open()
        # Who ignores ``wait_for_room`` must not fill the memory either (rule P11).
        size_bytes, entries = self._queued_payload_bytes, len(self._queue)
        bytes_max = WRITER_QUEUED_BYTES_FACTOR * self.bytes_in_flight_max
        entries_max = WRITER_QUEUED_BYTES_FACTOR * APPEND_BATCH_ENTRIES_MAX
        if size_bytes > bytes_max or entries > entries_max:
            raise TooManyRequestsError(
                f"ledger {self.ledger_id}: {entries} entries of {size_bytes} bytes wait already; "
                "await wait_for_room() between appends"
            )

    def check_open(self) -> None:
        """Check that entries are taken.

        Raises LedgerClosedError if the writer was closed, else the error that ended the ledger.
        """
        error = self._machine.error
        if self._closing is not None and not isinstance(error, FencedError | LedgerClosedError):
            closed = LedgerClosedError(
                f"ledger {self.ledger_id} is closed: nothing can be appended"
            )
            raise closed from error
        if error is not None:
            raise copy_error(error)

    async def wait_for_room(self) -> None:
        """Wait while too many bytes are in flight. Returns at once when the ledger has failed."""
        while not self.has_room and not self.is_closed:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting_for_room.append(future)
            await future

    async def flush(self) -> None:
        """Wait until everything appended so far is confirmed.

        Raises LedgerError if that failed: the same error that the entries failed with.
        """
        target = self.last_add_pushed
        while self.last_add_confirmed < target:
            if self._machine.error is not None:
                raise copy_error(self._machine.error)
            self._progress.clear()
            await self._progress.wait()

    def _add_queued(self) -> None:
        if not self._queue:
            return
        payloads, completions = self._queue, self._queue_completions
        self._queue, self._queue_completions, self._queue_bytes = [], [], 0
        if self._machine.error is not None:
            fail_all(completions, self._machine.error)
            return
        sizes = self._frames.seal(payloads, self._machine.last_add_confirmed)
        self._pending.extend(completions)
        self._machine_loop.feed(Append(sizes))

    # -- commands ----------------------------------------------------------------------------------

    def _perform(self, command: Command) -> None:
        match command:
            case SendEntries():
                runs = self._frames.runs(command.bookie_index, command.first, command.last)
                self._appenders.send(command.bookie_index, runs)
            case ConfirmEntries():
                self._confirm(command.last)
            case OpenAppender():
                self._appenders.open(command)
            case CloseAppender():
                self._appenders.close(command.bookie_index)
            case ChooseBookies():
                self._machine_loop.answer(partial(self._choose, command))
            case WriteMetadata():
                self._machine_loop.answer(partial(self._unclosed.write, command))
            case ReadMetadata():
                self._machine_loop.answer(partial(self._context.read_metadata, self.ledger_id))
            case AnnounceLastConfirmed():
                for bookie_id in command.bookies:
                    self._announce(bookie_id, command.last_add_confirmed)
            case FailEntries():
                self._fail_entries(command.error)
            case Done():
                self._finish(None)
            case Failed():
                self._finish(command.error)
            case _:
                raise AssertionError(f"not a command of a writer: {command!r}")

    def _confirm(self, last: EntryId) -> None:
        pending = self._pending
        for entry_id in range(self._confirmed_to + 1, last + 1):
            completion = pending.popleft()
            if not completion.done():
                completion.set_result(entry_id)
        self._confirmed_to = last

    def _fail_entries(self, error: LedgerError) -> None:
        failed = [*self._pending, *self._queue_completions]
        self._pending.clear()
        self._queue, self._queue_completions, self._queue_bytes = [], [], 0
        fail_all(failed, error)

    async def _choose(self, command: ChooseBookies) -> Event:
        chosen = await self._context.replacements(command)
        self._context.counters.ensemble_changes += bool(chosen.replacements)
        self._context.use(self._counted, -1)
        for bookie_index, bookie_id in chosen.replacements.items():
            self._counted[bookie_index] = bookie_id
        self._context.use(self._counted, +1)
        return chosen

    def _announce(self, bookie_id: BookieId, last: EntryId) -> None:
        self._machine_loop.feed_answer(
            self._context.transport.write_last_confirmed(
                bookie_id,
                self.ledger_id,
                last,
                access_key=self._access_key,
                timeout_s=self._context.config.add_timeout_s,
            ),
            lambda status: LastConfirmedTold(bookie_id, last, status),
        )

    def _on_progress(self) -> None:
        self._progress.set()
        machine = self._machine
        if machine.phase is Phase.CLOSED:
            self._unclosed.hand_over(machine.metadata, machine.error)
        # A busy bookie is sent once more what it has not acknowledged, confirmed or not.
        self._frames.release(min(machine.held_by_all, machine.last_add_confirmed))
        self._room_bytes = self.bytes_in_flight_max - machine.bytes_in_flight
        self.has_room = self._queue_bytes < self._room_bytes
        # Producers, and who closes, wait for what every bookie holds, and not for the quorum alone.
        hurries = self._closing is not None or not self.has_room
        self._machine_loop.answers_wanted = 1 if hurries else machine.answers_wanted
        if self._waiting_for_room and (self.has_room or self.is_closed):
            waiting, self._waiting_for_room = self._waiting_for_room, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def _on_crash(self, error: BaseException) -> None:
        if isinstance(error, LedgerClosedError):  # one that came while the connection was closed
            self._end_here(abandoned(self.ledger_id, str(error)))
            return
        broken = crash_error(self.ledger_id, error)
        self._end_here(Abandon(in_flight=broken, error=broken))

    # -- closing -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for what is in flight, then close the ledger for good. A second call is fine.

        Entries that cannot be confirmed fail; the ledger ends at the last one that was confirmed.
        Raises FencedError if another client took the ledger over and no append has failed with that
        yet, MetadataUnavailableError if ZooKeeper cannot be reached and nothing was changed,
        OutcomeUnknownError if the ledger may be closed, or an entry stored, and nobody can look.
        Behind the latter two this connection closes the ledger as soon as it can.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        if not (self._closing.done() and self._unclosed.is_closed_by_now):
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._machine_loop.answers_wanted = 1
        self._machine_loop.take_in()
        self._add_queued()
        with suppress(LedgerError):  # every append was told its own: what is left is to close
            await self.flush()
            await self._settle()
        if not self._outcome.done():
            self._machine_loop.feed(Close())
        try:
            await self._outcome
        finally:
            self._context.use(self._counted, -1)
            self._context.writers.discard(self)
            await self._stop()
        if (error := self._unclosed.why(self._machine.error)) is not None:
            raise copy_error(error)

    async def abandon(self) -> None:
        """The connection ends: leave the ledger as it is, and tell whoever waits.

        Adds in flight fail with AddOutcomeUnknownError, later ones with LedgerClosedError.
        """
        if not self._outcome.done():
            why = "the connection was closed before its writer"
            self._end_here(abandoned(self.ledger_id, why))
        await self._stop()

    async def end(self, error: LedgerError) -> None:
        """Its ledger is not there any more: what is in flight and what comes later fails with
        ``error``."""
        if not self._outcome.done():
            self._end_here(Abandon(in_flight=error, error=error))
        await self._stop()

    def _end_here(self, event: Abandon) -> None:
        """Give the machine its last event past its loop, which may be what crashed."""
        for command in self._machine.handle(event, self._loop.time()):
            self._perform(command)
        self._on_progress()

    async def _stop(self) -> None:
        self._appenders.close_all()
        await self._machine_loop.stop()
        self._kept.close()

    async def _settle(self) -> None:
        deadline = self._loop.time() + WRITER_CLOSE_GRACE_S
        while self._machine.held_by_all < self._machine.last_add_pushed:
            self._progress.clear()
            left_s = deadline - self._loop.time()
            if left_s <= 0 or self._machine.error is not None:
                return
            try:
                await asyncio.wait_for(self._progress.wait(), left_s)
            except TimeoutError:
                return

    def _finish(self, error: LedgerError | None) -> None:
        if self._outcome.done():
            return
        if error is None:
            self._outcome.set_result(None)
        else:
            self._outcome.set_exception(error)
            self._outcome.exception()  # not an error of the loop when nobody closes the writer

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(self, _type: object, error: object, _traceback: object) -> None:
        with suppress(*(() if error is None else (LedgerError,))):  # its caller's says more
            await self.close()
