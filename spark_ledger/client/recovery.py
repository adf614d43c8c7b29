"""Runs a recovery: performs the commands of a RecoveryMachine over transport and store."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial

from spark_ledger.client.appenders import Appenders
from spark_ledger.client.context import ClientContext
from spark_ledger.client.found_entries import Found, FoundEntries
from spark_ledger.client.lane_reader import LaneReader, verify_chunk
from spark_ledger.client.last_confirmed import unless_busy
from spark_ledger.client.machine_loop import MachineLoop, crash_error
from spark_ledger.errors import LedgerError
from spark_ledger.limits.client import BUSY_PAUSE_S, BUSY_PAUSE_S_MAX, RECOVERY_READ_BYTES_MAX
from spark_ledger.protocol.events import (
    CancelRead,
    ChooseBookies,
    CloseAppender,
    Command,
    DeliverEntries,
    Done,
    EntriesRead,
    Event,
    Failed,
    LastConfirmedAnswer,
    LengthRead,
    LengthUnknown,
    OpenAppender,
    ReadEnded,
    ReadEntries,
    ReadLastConfirmed,
    ReadLength,
    SendEntries,
    TellLength,
    WriteMetadata,
)
from spark_ledger.protocol.quorum import lanes
from spark_ledger.protocol.recovery import RecoveryMachine
from spark_ledger.types import NO_ENTRY, BookieStatus, Entry, EntryId, LedgerMetadata, Versioned
from spark_ledger.wire.frame import Digest


class Recovery:
    """Fences, recovers and closes one ledger; used once."""

    def __init__(
        self,
        context: ClientContext,
        ledger: Versioned[LedgerMetadata],
        *,
        access_key: bytes,
        digest: Digest,
    ) -> None:
        self._context = context
        self._ledger = ledger
        self._ledger_id = ledger.value.ledger_id
        self._access_key = access_key
        self._digest = digest
        self._loop = asyncio.get_running_loop()
        self._machine = RecoveryMachine(
            ledger.value,
            ledger.version,
            now=self._loop.time(),
            add_timeout_s=context.config.add_timeout_s,
        )
        self._reads: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._fetched: dict[tuple[int, int], list[Found]] = {}
        """What a replica has brought just now."""
        self._lanes = lanes(ledger.value.quorums)
        self._found_entries: FoundEntries | None = None
        self._outcome: asyncio.Future[Versioned[LedgerMetadata]] = self._loop.create_future()
        self._machine_loop = MachineLoop(
            self._machine,
            self._perform,
            timer=context.timer,
            busy=lambda: not self._outcome.done(),
            crashed=self._on_crash,
            after=self._on_progress,
        )
        self._appenders = Appenders(
            context,
            self._ledger_id,
            self._machine_loop,
            access_key=access_key,
            recovery=True,
        )

    async def run(self) -> Versioned[LedgerMetadata]:
        """The closed metadata.

        Raises RecoveryError if too few bookies answer or store, UnauthorizedError if the password
        is wrong, FencedError if another client changed the last fragment meanwhile,
        BookieUnavailableError, NoSuchEntryError or DigestMismatchError if the entry that says the
        length cannot be read, NoSuchLedgerError if the ledger was deleted meanwhile,
        MetadataUnavailableError if the metadata store cannot be reached, CorruptionError if what it
        holds cannot be read, LedgerClosedError if the connection is closed meanwhile.
        """
        with self._context.ledgers.keep(self._ledger):
            try:
                self._machine_loop.start(self._machine.start())
                return await self._outcome
            finally:
                self._appenders.close_all()  # first: who is left once more waits for nothing
                await self._machine_loop.stop()

    def _perform(self, command: Command) -> None:
        match command:
            case ReadLastConfirmed():
                self._machine_loop.answer(partial(self._read_last_confirmed, command))
            case ReadEntries():
                key = (command.bookie_index, command.lane)
                self._reads[key] = self._machine_loop.spawn(self._read(command))
            case CancelRead():
                task = self._reads.pop((command.bookie_index, command.lane), None)
                if task is not None:
                    task.cancel()
            case DeliverEntries():
                self._deliver(command)
            case SendEntries():
                runs = self._found.runs(command.bookie_index, command.first, command.last)
                self._appenders.send(command.bookie_index, runs)
            case OpenAppender():
                self._appenders.open(command)
            case CloseAppender():
                self._appenders.close(command.bookie_index)
            case ChooseBookies():
                self._machine_loop.answer(partial(self._context.replacements, command))
            case WriteMetadata():
                self._machine_loop.answer(partial(self._context.write_metadata, command))
            case ReadLength():
                self._machine_loop.answer(partial(self._read_length, command))
            case TellLength():
                self._machine_loop.answer(partial(self._tell_length, command))
            case Done():
                self._finish(Versioned(command.metadata, command.version))
            case Failed():
                self._fail(command.error)
            case _:
                raise AssertionError(f"not a command of a recovery: {command!r}")

    # -- finding -----------------------------------------------------------------------------------

    async def _read_last_confirmed(self, command: ReadLastConfirmed) -> Event:
        timeout_s = self._context.config.read_timeout_s
        reply = await unless_busy(
            self._context,
            lambda: self._context.transport.read_last_confirmed(
                command.bookie_id,
                self._ledger_id,
                fence=command.fence,
                access_key=self._access_key,
                timeout_s=timeout_s,
            ),
            timeout_s,
        )
        return LastConfirmedAnswer(
            command.bookie_index, reply.status, reply.last_add_confirmed, reply.message
        )

    @property
    def _found(self) -> FoundEntries:
        if self._found_entries is None:  # the first read begins behind what is confirmed
            machine = self._machine
            self._found_entries = FoundEntries(
                machine.metadata, self._digest, machine.last_add_confirmed
            )
        return self._found_entries

    async def _read(self, command: ReadEntries) -> None:
        key, me = (command.bookie_index, command.lane), asyncio.current_task()
        await self._found.wait_for_room(self._lanes[command.lane])
        busy_wait_s, pause_s = self._context.config.read_timeout_s, BUSY_PAUSE_S
        deadline = self._loop.time() + busy_wait_s
        ended = await self._read_once(command)
        while (
            ended is not None
            and ended.status is BookieStatus.TOO_MANY_REQUESTS
            and self._loop.time() + pause_s < deadline
        ):  # nothing was decided: the same is asked again, later and later
            await asyncio.sleep(pause_s * self._context.random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, BUSY_PAUSE_S_MAX)
            ended = await self._read_once(command._replace(first=ended.entry_id))
        if ended is not None and self._reads.get(key) is me:
            del self._reads[key]
            self._machine_loop.feed(ended)

    async def _read_once(self, command: ReadEntries) -> ReadEnded | None:
        """One call; how it ended, or None if nobody wants to know any more."""
        key, me = (command.bookie_index, command.lane), asyncio.current_task()
        expected, ended = int(command.first), None
        chunks = self._context.transport.read(
            command.bookie_id,
            self._ledger_id,
            command.first,
            command.last,
            stride=command.stride,
            max_bytes=RECOVERY_READ_BYTES_MAX,
            fence=command.fence,
            access_key=self._access_key,
            timeout_s=self._context.config.read_timeout_s,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                if self._reads.get(key) is not me:
                    return None
                entries, ended = verify_chunk(
                    self._ledger_id, self._digest, command, expected, chunk
                )
                if entries and chunk.run is not None:
                    frames = zip(chunk.run.split(), entries, strict=False)  # damaged ones follow
                    self._fetched[key] = [
                        Found(int(entry_id), bytes(frame), entry.length)
                        for (entry_id, frame), entry in frames
                    ]
                    last = EntryId(entries[-1].entry_id)
                    expected = last + command.stride
                    self._machine_loop.feed(EntriesRead(*key, last))
                    del self._fetched[key]
                if ended is not None:
                    break
        return ended or ReadEnded(*key, status=BookieStatus.OK, entry_id=EntryId(expected))

    def _deliver(self, command: DeliverEntries) -> None:
        fetched = self._fetched[command.bookie_index, command.lane]
        self._found.add(
            entry for entry in fetched if command.first <= entry.entry_id <= command.last
        )

    def _on_progress(self) -> None:
        if self._found_entries is not None:
            machine = self._machine
            self._found_entries.release(min(machine.held_by_all, machine.last_add_confirmed))

    async def _tell_length(self, _command: TellLength) -> Event:
        return LengthRead(self._found.length, NO_ENTRY)  # the end is stored, so it is in order

    async def _read_length(self, command: ReadLength) -> Event:
        reader = LaneReader(
            self._context,
            Versioned(self._machine.metadata, 0),
            self._digest,
            command.wanted,
            replica_hint=0,
            access_key=self._access_key,
        )
        entries: list[Entry] = []
        try:
            async for chunk in reader.chunks():
                entries.extend(chunk)
        except LedgerError as error:
            return LengthUnknown(error)
        return LengthRead(entries[0].length, entries[0].last_add_confirmed)

    # -- the end -----------------------------------------------------------------------------------

    def _finish(self, closed: Versioned[LedgerMetadata]) -> None:
        if not self._outcome.done():
            self._outcome.set_result(closed)

    def _fail(self, error: LedgerError) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def _on_crash(self, error: BaseException) -> None:
        self._fail(crash_error(self._ledger_id, error))
