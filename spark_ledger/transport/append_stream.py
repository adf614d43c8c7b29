"""One append stream to one bookie, shared by the appenders of all ledgers of this client.

An append stream is one long gRPC call; it has nothing to do with streams of rows. It has two tasks.
The sender puts everything that is queued into one message, so the busier a client is, the larger
its messages are. The receiver hands each result to the appender with its tag, of a long
message some at a time. An append stream ends with its connection and is never repaired, and an
appender stays with the append stream that it was made for. Otherwise a result, which is cumulative
(rule P3), could cover runs that were sent over another connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from spark_ledger.errors import MalformedMessageError
from spark_ledger.limits import MIB
from spark_ledger.limits.entries import (
    APPEND_MESSAGE_ADDS_MAX,
    APPEND_MESSAGE_BYTES_TARGET,
    FIRST_MESSAGE_BYTES_TARGET,
)
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult
from spark_ledger.transport.channel import failure_of, may_be_of_a_write, said
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import (
    AddCommand,
    append_response_parts,
    encode_append_request,
    status_from_wire,
)

RESULTS_OF_NOTHING_MAX: Final = 1_000
"""Results that say nothing new, beyond those that may be late. An honest bookie sends none."""

LATE_RESULTS_PER_RUN: Final = 4
"""Of a run whose appender ended before its answer: it is stored, waits for a disk that stalls, or
is refused, and a refusal is told again beside a note."""

AppendCall: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
"""The gRPC call below one append stream. Messages are encoded here, so gRPC sees bytes."""


class StreamAppender:
    """One ledger's part of an AppendStream; see ``transport.base.Appender``."""

    __slots__ = (
        "_answered_to",
        "_is_stalled",
        "_on_result",
        "_outstanding",
        "_stream",
        "access_key",
        "has_ended",
        "ledger_id",
        "recovery",
        "tag",
    )

    def __init__(
        self,
        stream: AppendStream,
        tag: int,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> None:
        self._stream = stream
        self.tag = tag
        self.ledger_id = ledger_id
        self.access_key = access_key
        self.recovery = recovery
        self._on_result = on_result
        self._outstanding: deque[tuple[EntryId, int]] = deque()
        self._answered_to = NO_ENTRY
        self._is_stalled = False  # it was told so, and nothing has become durable since
        self.has_ended = False

    @property
    def has_outstanding(self) -> bool:
        """A run was sent, or is queued, that the bookie has not answered."""
        return bool(self._outstanding)

    def send(self, run: EntryRun) -> None:
        assert run.ledger_id == self.ledger_id, "an appender carries one ledger"
        if self.has_ended:
            return
        size = len(run.frames)
        self._outstanding.append((run.last_entry, size))
        self._stream.queue(self, run, size)

    def close(self) -> None:
        if not self.has_ended:
            self._end()

    def report(self, status: BookieStatus, last_entry: EntryId, message: str) -> None:
        """Take a result from the stream and hand it on, unless this appender has ended.

        Raises MalformedMessageError if the bookie sends too many that say nothing new.
        """
        if self.has_ended:
            return
        if status is BookieStatus.OK:
            named, answered = NO_ENTRY, 0
            outstanding = self._outstanding
            while outstanding and outstanding[0][0] <= last_entry:
                named, size = outstanding.popleft()
                answered += size
            self._stream.forget(answered)
            if named != last_entry and last_entry > self._answered_to:
                # An honest bookie names the last entry of a run. To believe any other number would
                # be to count copies that nobody has (rule P3).
                message = f"it acknowledges entry {last_entry}, which it was not sent"
                self.report(BookieStatus.IO_ERROR, last_entry, message)
                return
            if named == NO_ENTRY:
                self._stream.told_nothing()
            else:
                self._answered_to, self._is_stalled = max(self._answered_to, named), False
        elif status is not BookieStatus.STALLED:  # a note: what was sent may become durable yet
            self._end()
        elif self._is_stalled:
            self._stream.told_nothing()
        else:
            self._is_stalled = True
        self._on_result(AddResult(self._stream.bookie_id, status, last_entry, message))

    def fail(self, message: str) -> None:
        """The append stream broke: report so for the first run that has no answer."""
        first = self._outstanding[0][0] if self._outstanding else EntryId(-1)
        self.report(self._stream.broken_by, first, message)

    def _end(self) -> None:
        self.has_ended = True
        self._stream.forget(sum(size for _, size in self._outstanding))
        self._stream.expect_late(len(self._outstanding))
        self._outstanding.clear()
        self._stream.drop(self)


class NewestMessages:
    """The newest encoded messages of a transport. Where E == WQ, every bookie gets the same runs,
    mostly in the same messages, though not at the same time: they are encoded once."""

    _COUNT_MAX = 16
    _BYTES_MAX = 16 * MIB

    def __init__(self) -> None:
        self._messages: deque[tuple[list[AddCommand], bytes]] = deque()
        self.size_bytes = 0

    def encode(self, adds: list[AddCommand]) -> bytes:
        """The adds as one message."""
        for known, encoded in self._messages:
            if known == adds:  # runs are the same objects, or differ in their first fields
                return encoded
        encoded = encode_append_request(adds)
        self._messages.appendleft((adds, encoded))
        self.size_bytes += len(encoded)
        while len(self._messages) > self._COUNT_MAX or self.size_bytes > self._BYTES_MAX:
            self.size_bytes -= len(self._messages.pop()[1])
        return encoded

    def forget(self) -> None:
        """Drop all: nothing is in flight, so no other bookie will be sent one of them."""
        self._messages.clear()
        self.size_bytes = 0


class AppendStream:
    """The append stream of one connection. Made on the loop; its first failure ends it for good."""

    def __init__(
        self,
        bookie_id: BookieId,
        open_call: Callable[[], AppendCall],
        newest_messages: NewestMessages,
        *,
        connect_timeout_s: float,
        broken: str = "",
    ) -> None:
        """``open_call`` starts the call; ``broken`` says why there can be none (then not used)."""
        self.bookie_id = bookie_id
        self.bytes_in_flight = 0
        """Frame bytes queued or sent and not answered yet, over all appenders."""
        self._open_call = open_call
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self._appenders: dict[int, StreamAppender] = {}
        self._tags = count(1)
        self._queue: deque[tuple[StreamAppender, EntryRun]] = deque()
        self._has_ended = False
        """An appender has ended since the queue was looked through."""
        self._newest_messages = newest_messages
        self._idle: asyncio.Future[None] | None = None
        """What the sender waits on while nothing is queued."""
        self._broken = broken
        self.broken_by = BookieStatus.UNAVAILABLE
        """What appenders of a broken stream report: TOO_MANY_REQUESTS if the bookie had no room for
        the stream, or that is not known, and has stored nothing of it (rule P11)."""
        self._of_nothing_left = RESULTS_OF_NOTHING_MAX
        """So many more results may say nothing new."""
        self._is_known = False  # the bookie has stored something of this stream
        self._call: AppendCall | None = None
        self._tasks: list[asyncio.Task[None]] = []
        if not broken:
            self._start(self._send_all())

    @property
    def is_broken(self) -> bool:
        """Nothing can be sent any more; open another append stream."""
        return bool(self._broken)

    def open(
        self,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> StreamAppender:
        """An appender for one ledger."""
        appender = StreamAppender(
            self,
            next(self._tags),
            ledger_id,
            access_key=access_key,
            recovery=recovery,
            on_result=on_result,
        )
        self._appenders[appender.tag] = appender
        return appender

    def queue(self, appender: StreamAppender, run: EntryRun, size: int) -> None:
        """Send a run of so many bytes after those queued before. After a break the appender fails
        soon."""
        self.bytes_in_flight += size
        if self._broken:
            self._loop.call_soon(appender.fail, self._broken)
            return
        self._queue.append((appender, run))
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def forget(self, size_bytes: int) -> None:
        """Count ``size_bytes`` as no longer in flight: they were answered or given up."""
        self.bytes_in_flight -= size_bytes
        assert self.bytes_in_flight >= 0, "each byte is answered or given up once"
        if not self.bytes_in_flight:
            self._newest_messages.forget()

    def expect_late(self, runs: int) -> None:
        """So many runs have no answer, and their appender has ended: it may come yet."""
        self._of_nothing_left += LATE_RESULTS_PER_RUN * runs

    def told_nothing(self) -> None:
        """A result says nothing new. Raises MalformedMessageError if there are too many: a message
        has room for millions, which would keep this loop busy for nothing, again and again."""
        self._of_nothing_left -= 1
        if self._of_nothing_left < 0:
            raise MalformedMessageError("it answers what it was not sent")

    def drop(self, appender: StreamAppender) -> None:
        """The appender has ended: drop what it has queued and the results that still arrive."""
        self._appenders.pop(appender.tag, None)
        if self._queue and not self._has_ended:
            # Once for all that end in this turn: thousands of writers give up one bookie together.
            self._has_ended = True
            self._loop.call_soon(self._has_queued)

    def _has_queued(self) -> bool:
        """Whether something is to be sent. What appenders that have ended had queued is not."""
        if self._has_ended:
            self._has_ended = False
            self._queue = deque(item for item in self._queue if not item[0].has_ended)
        return bool(self._queue)

    def break_off(self, reason: str) -> None:
        """End the append stream. Appenders with a run unanswered fail now, others when used."""
        if self._broken:
            return
        self._broken = reason
        self._queue.clear()
        for task in self._tasks:
            if task is not asyncio.current_task(self._loop):
                task.cancel()
        if self._call is not None:
            self._call.cancel()
        for appender in list(self._appenders.values()):
            if appender.has_outstanding:
                self._loop.call_soon(appender.fail, reason)

    async def close(self) -> None:
        """Break off, fail every open appender, and wait for the tasks."""
        reason = f"the connection to bookie {self.bookie_id} was closed here"
        self.break_off(reason)
        for appender in list(self._appenders.values()):
            appender.fail(reason)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- the two tasks -----------------------------------------------------------------------------

    def _start(self, coroutine: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A bug in a result callback, or here, must not leave appenders waiting for ever. Nor must
        an application that cancels all tasks of its loop to end it."""
        if task.cancelled():
            self._break("its task was cancelled")  # if it was not broken off here
            return
        if task.exception() is None:
            return
        self._loop.call_exception_handler(
            {"message": "append stream failed", "exception": task.exception(), "task": task}
        )
        self._break("internal error")

    async def _send_all(self) -> None:
        try:
            call = self._call = self._open_call()
            async with asyncio.timeout(self._connect_timeout_s):
                await call.wait_for_connection()
            self._start(self._receive_all(call))
            while True:
                while self._has_queued():
                    await call.write(self._next_message())
                self._idle = self._loop.create_future()
                await self._idle
        except TimeoutError:
            self._break(f"no connection within {self._connect_timeout_s} s")
        except asyncio.InvalidStateError as error:
            # The call ended between two writes: if it has a receiver, that one hears why.
            if len(self._tasks) == 1:
                self._break(str(error))
        except grpc.RpcError as error:
            self._ended(error)

    async def _receive_all(self, call: AppendCall) -> None:
        try:
            while True:
                message = await call.read()
                if message is grpc.aio.EOF:
                    self._break("the bookie ended the stream")
                    return
                assert isinstance(message, bytes), "the call has no deserializer"
                parts = append_response_parts(message)
                self._dispatch(next(parts))
                for part in parts:
                    await asyncio.sleep(0)
                    self._dispatch(part)
        except grpc.RpcError as error:
            self._ended(error)
        except (DecodeError, MalformedMessageError) as error:
            self._break(f"its answer is not one: {error}")

    def _ended(self, error: grpc.RpcError) -> None:
        status, details = failure_of(error)
        # A write that fails hides why its stream ended. The next open says it: that the bookie is
        # busy still, or not to be reached. To send the same adds again does no harm.
        is_busy = status is BookieStatus.TOO_MANY_REQUESTS or may_be_of_a_write(error)
        if is_busy and not (self._is_known or self._broken):
            self.broken_by = BookieStatus.TOO_MANY_REQUESTS
            self.break_off(f"bookie {self.bookie_id} is busy: {details}")
        else:
            self._break(details)

    def _break(self, details: str) -> None:
        self.break_off(f"bookie {self.bookie_id} is unavailable: {details}")

    def _next_message(self) -> bytes:
        """What is queued, up to the target size but at least one run."""
        queue = self._queue
        adds: list[AddCommand] = []
        size = 0
        bytes_max = APPEND_MESSAGE_BYTES_TARGET if self._is_known else FIRST_MESSAGE_BYTES_TARGET
        while queue:
            appender, run = queue[0]
            size += len(run.frames)
            is_full = size > bytes_max or len(adds) >= APPEND_MESSAGE_ADDS_MAX
            if adds and is_full:
                break
            queue.popleft()
            adds.append(AddCommand(appender.tag, appender.access_key, appender.recovery, run))
        return self._newest_messages.encode(adds)

    def _dispatch(self, message: bytes) -> None:
        for result in pb.AppendResponse.FromString(message).results:
            appender = self._appenders.get(result.tag)
            if appender is None:
                self.told_nothing()
                continue  # it has ended: a late answer to what was still on its way
            status, problem = result.status, ""
            if result.ledger_id != appender.ledger_id:
                problem = f"it answers for ledger {result.ledger_id} instead"
                appender.report(BookieStatus.IO_ERROR, EntryId(result.last_entry), problem)
            elif not status:  # stored, as nearly all are; what it says beside that is not asked for
                self._is_known = True
                appender.report(BookieStatus.OK, EntryId(result.last_entry), "")
            else:
                problem = said(result.message)
                appender.report(status_from_wire(status), EntryId(result.last_entry), problem)
