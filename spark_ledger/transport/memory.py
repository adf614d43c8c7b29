"""Transport inside one process: the same interface over bookie objects, for tests.

Every message, request or answer, arrives on a later turn of the loop, so a caller never sees an
answer inside of its call. Messages arrive in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TypeVar

from spark_ledger.bookie_api import BookieApi, refuse_reader
from spark_ledger.errors import BookieUnavailableError, LedgerClosedError
from spark_ledger.limits.bookie import BOOKIE_LEDGERS_PER_ANSWER
from spark_ledger.limits.entries import (
    LONG_POLL_S_MAX,
    READ_CHUNK_BYTES_TARGET,
    READ_REQUEST_BYTES_MAX,
)
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import (
    FIRST_ENTRY,
    AddResult,
    BookieDescription,
    LastConfirmed,
    ListedEntries,
    ReadChunk,
)
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import frame_last_add_confirmed

T = TypeVar("T")


class MemoryAppender:
    """One ledger's way to one bookie; see ``transport.base.Appender``."""

    def __init__(
        self,
        transport: MemoryTransport,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> None:
        self._transport = transport
        self._bookie_id = bookie_id
        self._ledger_id = ledger_id
        self._access_key = access_key
        self._recovery = recovery
        self._on_result = on_result
        self._connection = transport.connection(bookie_id)
        self._outstanding: deque[EntryId] = deque()
        self._unanswered: deque[list[AddResult]] = deque()
        self._ended = False
        self._refused = False

    def send(self, run: EntryRun) -> None:
        assert run.ledger_id == self._ledger_id, "an appender carries one ledger"
        if self._ended:
            return
        self._outstanding.append(run.last_entry)
        if not self._is_connected():
            asyncio.get_running_loop().call_soon(self.fail)
            return
        asyncio.get_running_loop().call_soon(self._arrived, run)

    def close(self) -> None:
        self._ended = True
        self._transport.forget(self)

    @property
    def bookie_id(self) -> BookieId:
        """The bookie at the other end."""
        return self._bookie_id

    @property
    def has_outstanding(self) -> bool:
        """A run was sent that has no answer."""
        return bool(self._outstanding)

    def fail(self) -> None:
        """The connection broke: report UNAVAILABLE for the first run that has no answer."""
        first = self._outstanding[0] if self._outstanding else NO_ENTRY
        message = f"bookie {self._bookie_id} is unavailable"
        self._report(AddResult(self._bookie_id, BookieStatus.UNAVAILABLE, first, message))

    def _is_connected(self) -> bool:
        return self._connection == self._transport.connection(self._bookie_id) is not None

    def _arrived(self, run: EntryRun) -> None:
        """A run reached the bookie. Runs behind a refused one are dropped, as a bookie does."""
        bookie = self._transport.bookie(self._bookie_id)
        if bookie is None or not self._is_connected() or self._refused:
            return
        answer: list[AddResult] = []  # filled once, by the bookie's callback
        self._unanswered.append(answer)
        bookie.add(
            run,
            access_key=self._access_key,
            recovery=self._recovery,
            last_add_confirmed=frame_last_add_confirmed(run),
            done=lambda status, text: self._answered(answer, status, run.last_entry, text),
        )

    def _answered(
        self, answer: list[AddResult], status: BookieStatus, last_entry: EntryId, text: str
    ) -> None:
        """Answers leave in the order of the runs, also a refusal known at once (rule P3)."""
        answer.append(AddResult(self._bookie_id, status, last_entry, text))
        self._refused = self._refused or status is not BookieStatus.OK
        while self._unanswered and self._unanswered[0]:
            (result,) = self._unanswered.popleft()
            if self._is_connected():
                asyncio.get_running_loop().call_soon(self._deliver, result)

    def _deliver(self, result: AddResult) -> None:
        if self._is_connected():
            self._report(result)

    def _report(self, result: AddResult) -> None:
        if self._ended:
            return
        if result.status is BookieStatus.OK:
            while self._outstanding and self._outstanding[0] <= result.last_entry:
                self._outstanding.popleft()
        else:
            self.close()
        self._on_result(result)


class MemoryTransport:
    """See ``transport.base.Transport``.

    ``bookies`` may be changed while the transport is in use; a bookie that is not in it is
    unreachable. ``disconnect`` breaks the connection to one, as its crash does.
    """

    def __init__(self, bookies: Mapping[BookieId, BookieApi]) -> None:
        self._bookies = bookies
        self._breaks: dict[BookieId, int] = {}
        self._appenders: set[MemoryAppender] = set()
        self._calls: dict[BookieId, set[Callable[[], None]]] = {}
        """How to break each call that has no answer yet."""
        self._closed = False

    def bookie(self, bookie_id: BookieId) -> BookieApi | None:
        """The bookie, if it can be reached."""
        return None if self._closed else self._bookies.get(bookie_id)

    def connection(self, bookie_id: BookieId) -> int | None:
        """A number that changes when the connection breaks; None when there is none."""
        if self.bookie(bookie_id) is None:
            return None
        return self._breaks.get(bookie_id, 0)

    def disconnect(self, bookie_id: BookieId) -> None:
        """Break the connection to a bookie: what is in flight on it fails or is lost."""
        self._breaks[bookie_id] = self._breaks.get(bookie_id, 0) + 1
        loop = asyncio.get_running_loop()
        for appender in list(self._appenders):
            if appender.bookie_id == bookie_id and appender.has_outstanding:
                loop.call_soon(appender.fail)
        for break_call in self._calls.pop(bookie_id, set()):
            break_call()

    def forget(self, appender: MemoryAppender) -> None:
        """The appender has ended."""
        self._appenders.discard(appender)

    def open_appender(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> MemoryAppender:
        self._check_open()
        appender = MemoryAppender(
            self,
            bookie_id,
            ledger_id,
            access_key=access_key,
            recovery=recovery,
            on_result=on_result,
        )
        self._appenders.add(appender)
        return appender

    async def read(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int = 1,
        max_bytes: int = 0,
        fence: bool = False,
        access_key: bytes = b"",
        timeout_s: float,
    ) -> AsyncGenerator[ReadChunk, None]:
        def answer(bookie: BookieApi, reply: Callable[[list[ReadChunk]], None]) -> None:
            def fenced(status: BookieStatus, text: str) -> None:
                if status is BookieStatus.OK:
                    limit = min(max_bytes or READ_REQUEST_BYTES_MAX, READ_REQUEST_BYTES_MAX)
                    wanted = (ledger_id, first_entry, last_entry, stride, limit)
                    reply(_read_chunks(bookie, *wanted))
                else:
                    reply([ReadChunk(status, None, first_entry, text)])

            if fence:
                bookie.fence(ledger_id, access_key=access_key, done=fenced)
            else:
                refusal = refuse_reader(bookie, ledger_id, access_key)
                fenced(*(refusal or (BookieStatus.OK, "")))

        chunks = await self._call(bookie_id, answer, timeout_s)
        if isinstance(chunks, BookieStatus):
            yield ReadChunk(chunks, None, first_entry, f"bookie {bookie_id}: {chunks.name.lower()}")
            return
        for chunk in chunks:
            yield chunk

    async def read_last_confirmed(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        fence: bool = False,
        access_key: bytes = b"",
        wait_above: EntryId = NO_ENTRY,
        wait_s: float = 0.0,
        timeout_s: float,
    ) -> LastConfirmed:
        def answer(bookie: BookieApi, reply: Callable[[LastConfirmed], None]) -> None:
            def fenced(status: BookieStatus, text: str) -> None:
                if status is not BookieStatus.OK:
                    reply(LastConfirmed(status, message=text))
                elif wait_s > 0:
                    wait = min(wait_s, LONG_POLL_S_MAX)
                    _LongPoll(bookie, ledger_id, access_key, wait_above, reply).start(wait)
                else:
                    reply(_last_confirmed(bookie, ledger_id, access_key))

            if fence:
                bookie.fence(ledger_id, access_key=access_key, done=fenced)
            else:
                fenced(BookieStatus.OK, "")

        answered = await self._call(bookie_id, answer, wait_s + timeout_s)
        return LastConfirmed(answered) if isinstance(answered, BookieStatus) else answered

    async def write_last_confirmed(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        last_add_confirmed: EntryId,
        *,
        access_key: bytes = b"",
        timeout_s: float,
    ) -> BookieStatus:
        def answer(bookie: BookieApi, reply: Callable[[tuple[BookieStatus]], None]) -> None:
            bookie.write_last_confirmed(
                ledger_id,
                last_add_confirmed,
                access_key=access_key,
                done=lambda status, _text: reply((status,)),
            )

        answered = await self._call(bookie_id, answer, timeout_s)
        return answered if isinstance(answered, BookieStatus) else answered[0]

    async def list_entries(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first: EntryId = FIRST_ENTRY,
        *,
        timeout_s: float,
    ) -> ListedEntries:
        def answer(bookie: BookieApi, reply: Callable[[ListedEntries], None]) -> None:
            page = bookie.entry_page(ledger_id, first)
            if page is None:
                reply(ListedEntries(BookieStatus.NO_SUCH_LEDGER, []))
            else:
                reply(ListedEntries(BookieStatus.OK, *page))

        answered = await self._call(bookie_id, answer, timeout_s)
        return ListedEntries(answered, []) if isinstance(answered, BookieStatus) else answered

    async def list_ledgers(
        self, bookie_id: BookieId, first: LedgerId, *, timeout_s: float
    ) -> tuple[BookieStatus, list[LedgerId]]:
        def answer(bookie: BookieApi, reply: Callable[[list[LedgerId]], None]) -> None:
            held = bookie.held_ledgers(first - 1, BOOKIE_LEDGERS_PER_ANSWER)
            reply([each.ledger_id for each in held])

        answered = await self._call(bookie_id, answer, timeout_s)
        return (answered, []) if isinstance(answered, BookieStatus) else (BookieStatus.OK, answered)

    async def describe(self, bookie_id: BookieId, *, timeout_s: float) -> BookieDescription:
        def answer(bookie: BookieApi, reply: Callable[[BookieDescription], None]) -> None:
            reply(BookieDescription(bookie_id, "memory", "memory", "writable", 0, 0, 0, 0, 0.0))

        answered = await self._call(bookie_id, answer, timeout_s)
        if isinstance(answered, BookieStatus):
            raise BookieUnavailableError(f"bookie {bookie_id}: {answered.name.lower()}")
        return answered

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for appender in list(self._appenders):
            appender.fail()
        for calls in self._calls.values():
            for break_call in calls:
                break_call()

    async def _call(
        self,
        bookie_id: BookieId,
        answer: Callable[[BookieApi, Callable[[T], None]], None],
        timeout_s: float,
    ) -> T | BookieStatus:
        """Send a request, have the bookie answer it, bring the answer back; or a status."""
        self._check_open()
        connection = self.connection(bookie_id)
        if connection is None:
            return BookieStatus.UNAVAILABLE
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T | None] = loop.create_future()

        def finish(value: T | None) -> None:
            if not future.done():
                future.set_result(value)

        def reply(value: T) -> None:
            if self.connection(bookie_id) == connection:
                loop.call_soon(finish, value)

        def arrive() -> None:
            bookie = self.bookie(bookie_id)
            if bookie is not None and self.connection(bookie_id) == connection:
                answer(bookie, reply)

        def break_call() -> None:
            finish(None)

        calls = self._calls.setdefault(bookie_id, set())
        calls.add(break_call)
        loop.call_soon(arrive)
        try:
            async with asyncio.timeout(timeout_s):
                value = await future
        except TimeoutError:
            return BookieStatus.TIMEOUT
        finally:
            calls.discard(break_call)
        return BookieStatus.UNAVAILABLE if value is None else value

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosedError("the transport is closed: open a new client")


class _LongPoll:
    """Holds one tail request until the ledger's end moves, it is fenced, or time is up."""

    def __init__(
        self,
        bookie: BookieApi,
        ledger_id: LedgerId,
        access_key: bytes,
        wait_above: EntryId,
        reply: Callable[[LastConfirmed], None],
    ) -> None:
        self._bookie = bookie
        self._ledger_id = ledger_id
        self._access_key = access_key
        self._wait_above = wait_above
        self._reply = reply
        self._cancel_watch = bookie.watch_last_confirmed(ledger_id, wait_above, self._changed)
        self._timer: asyncio.TimerHandle | None = None
        self._answered = False

    def start(self, wait_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._answer)
        self._changed()

    def _look(self) -> LastConfirmed:
        return _last_confirmed(self._bookie, self._ledger_id, self._access_key)

    def _changed(self) -> None:
        end = self._look()
        unknown = end.status is BookieStatus.NO_SUCH_LEDGER
        if end.status is BookieStatus.OK:
            unknown = not end.fenced and end.last_add_confirmed <= self._wait_above
        if not unknown:
            self._answer()

    def _answer(self) -> None:
        if self._answered:
            return
        self._answered = True
        self._cancel_watch()
        if self._timer is not None:
            self._timer.cancel()
        self._reply(self._look())


def _last_confirmed(bookie: BookieApi, ledger_id: LedgerId, access_key: bytes) -> LastConfirmed:
    end = bookie.end_of_ledger(ledger_id, access_key=access_key)
    return LastConfirmed(
        end.status, end.last_add_confirmed, end.last_entry, end.fenced, end.message
    )


def _read_chunks(
    bookie: BookieApi,
    ledger_id: LedgerId,
    first_entry: EntryId,
    last_entry: EntryId,
    stride: int,
    bytes_left: int,
) -> list[ReadChunk]:
    """The whole answer to a read, in the chunks that a bookie would send."""
    chunks: list[ReadChunk] = []
    wanted = first_entry
    while wanted <= last_entry and bytes_left > 0:
        limit = min(bytes_left, READ_CHUNK_BYTES_TARGET)
        outcome = bookie.read(ledger_id, wanted, last_entry, stride=stride, max_bytes=limit)
        for run in outcome.runs:
            chunks.append(ReadChunk(BookieStatus.OK, run, run.first_entry))
            bytes_left -= len(run.frames)
            wanted = EntryId(run.last_entry + stride)
        if outcome.status is not BookieStatus.OK:
            chunks.append(ReadChunk(outcome.status, None, outcome.entry_id, outcome.message))
            break
    return chunks
