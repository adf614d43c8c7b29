"""Transport over gRPC (grpc.aio): one channel and one append stream per bookie, made on first use.

The transport belongs to the loop and the process that made it: connections do not survive a fork,
and a child that uses its parent's transport gets an error that says so. gRPC itself does not
survive one either: its threads are gone in the child, and calls there hang or crash. So a child of
a process that has used gRPC can have no transport at all.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import NamedTuple, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from spark_ledger.errors import (
    BookieUnavailableError,
    MalformedMessageError,
)
from spark_ledger.limits.client import READ_CALL_S_MAX
from spark_ledger.transport.answer_timeout import AnswerTimeout
from spark_ledger.transport.answers import (
    LIST_ANSWERS_MAX,
    MessageT,
    decoded,
    description_of,
    ledgers_of,
    page_of,
)
from spark_ledger.transport.append_stream import AppendStream, NewestMessages, StreamAppender
from spark_ledger.transport.base import (
    FIRST_ENTRY,
    AddResult,
    BookieDescription,
    LastConfirmed,
    ListedEntries,
    ReadChunk,
)
from spark_ledger.transport.channel import GrpcOptions, failure_of, is_broken, open_channel, said
from spark_ledger.transport.claimed import check_usable, claim_process
from spark_ledger.transport.confirmations import Confirmations
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.allocator import keep_freed_memory
from spark_ledger.wire.codec import (
    BOOKIE_ID_KEY,
    SERVICE_NAME,
    decode_read_response,
    status_from_wire,
)

UnaryMethod: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[Message, bytes]"
"""A call with one answer. Answers are decoded in ``answers``, so gRPC hands out bytes."""

Resolve = Callable[[BookieId], str | None]
"""The address ``host:port`` at which a bookie is registered now, or None."""


class _Connection:
    """A channel to one address of one bookie, with its calls."""

    def __init__(self, bookie_id: BookieId, address: str, options: GrpcOptions) -> None:
        self.address = address
        self.channel = open_channel(address, options)
        self.made_at = time.monotonic()
        self.metadata = ((BOOKIE_ID_KEY, bookie_id),)
        self.append_stream: AppendStream | None = None
        channel = self.channel
        self.append: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{SERVICE_NAME}/Append"
        )
        self.read: grpc.aio.UnaryStreamMultiCallable[Message, bytes] = channel.unary_stream(
            f"/{SERVICE_NAME}/Read", request_serializer=pb.ReadRequest.SerializeToString
        )
        self.read_last_confirmed: UnaryMethod = channel.unary_unary(
            f"/{SERVICE_NAME}/ReadLastConfirmed",
            request_serializer=pb.ReadLastConfirmedRequest.SerializeToString,
        )
        self.write_last_confirmed: UnaryMethod = channel.unary_unary(
            f"/{SERVICE_NAME}/WriteLastConfirmed",
            request_serializer=pb.WriteLastConfirmedRequest.SerializeToString,
        )
        self.list_entries: grpc.aio.UnaryStreamMultiCallable[Message, bytes] = channel.unary_stream(
            f"/{SERVICE_NAME}/ListEntries",
            request_serializer=pb.ListEntriesRequest.SerializeToString,
        )
        self.describe: UnaryMethod = channel.unary_unary(
            f"/{SERVICE_NAME}/Describe",
            request_serializer=pb.DescribeRequest.SerializeToString,
        )

    async def close(self, reason: str) -> None:
        if self.append_stream is not None:
            self.append_stream.break_off(reason)
        await self.channel.close()

    async def end(self) -> None:
        """The transport is closed: fail every appender, also those that wait for nothing."""
        try:
            if self.append_stream is not None:
                await self.append_stream.close()
        finally:
            await self.channel.close()


class GrpcTransport:
    """See ``transport.base.Transport``. ``resolve`` is asked on every use, so it must be cheap."""

    def __init__(self, resolve: Resolve, options: GrpcOptions | None = None) -> None:
        self._process_id = claim_process()
        self._resolve = resolve
        self._options = options or GrpcOptions()
        self._connections: dict[BookieId, _Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._newest_messages = NewestMessages()
        self._confirmations: dict[BookieId, Confirmations] = {}
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        if self._options.keep_memory_bytes:
            keep_freed_memory(self._options.keep_memory_bytes)

    def open_appender(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> StreamAppender:
        stream = self._append_stream(bookie_id)
        return stream.open(ledger_id, access_key=access_key, recovery=recovery, on_result=on_result)

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
        wanted = first_entry
        connection = self._connection(bookie_id)
        if connection is None:
            yield ReadChunk(BookieStatus.UNAVAILABLE, None, wanted, _unregistered(bookie_id))
            return
        request = pb.ReadRequest(
            ledger_id=ledger_id,
            first_entry=first_entry,
            last_entry=last_entry,
            stride=stride,
            max_bytes=max_bytes,
            fence=fence,
            access_key=access_key,
        )
        call = connection.read(request, timeout=READ_CALL_S_MAX, metadata=connection.metadata)
        bound = AnswerTimeout(timeout_s, call.cancel)
        try:
            while (data := await bound.within(call.read())) is not grpc.aio.EOF:
                assert isinstance(data, bytes), "the call has no deserializer"
                response, run = decode_read_response(data)
                if run is None:
                    status, entry_id = status_from_wire(response.status), response.entry_id
                    yield ReadChunk(status, None, EntryId(entry_id), said(response.message))
                    return
                wanted = EntryId(run.last_entry + stride)
                yield ReadChunk(BookieStatus.OK, run, run.first_entry)
        except grpc.RpcError as error:
            status, message = failure_of(error)
            yield ReadChunk(status, None, wanted, _about(bookie_id, message))
        except asyncio.CancelledError:
            if _is_cancelled_by_caller():
                raise
            status, message = BookieStatus.UNAVAILABLE, _cut(bookie_id)
            if bound.expired:
                message = _about(bookie_id, f"no answer within {timeout_s:g} s")
                status = BookieStatus.TIMEOUT
            yield ReadChunk(status, None, wanted, message)
        except MalformedMessageError as error:
            yield ReadChunk(BookieStatus.IO_ERROR, None, wanted, _about(bookie_id, str(error)))
        finally:
            bound.close()
            call.cancel()

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
        request = pb.ReadLastConfirmedRequest(
            ledger_id=ledger_id,
            fence=fence,
            access_key=access_key,
            wait_above=wait_above,
            wait_ms=round(wait_s * 1000),
        )
        answer = await self._ask(
            bookie_id,
            lambda calls: calls.read_last_confirmed,
            request,
            pb.ReadLastConfirmedResponse,
            wait_s + timeout_s,
        )
        if isinstance(answer, _Failure):
            return LastConfirmed(answer.status, message=answer.message)
        return LastConfirmed(
            status_from_wire(answer.status),
            EntryId(answer.last_add_confirmed),
            EntryId(answer.last_entry),
            answer.fenced,
            said(answer.message),
        )

    def write_last_confirmed(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        last_add_confirmed: EntryId,
        *,
        access_key: bytes = b"",
        timeout_s: float,
    ) -> asyncio.Future[BookieStatus]:
        confirmations = self._confirmations.get(bookie_id)
        if confirmations is None:
            ask = partial(self._write_last_confirmed, bookie_id)
            confirmations = self._confirmations[bookie_id] = Confirmations(ask)
        return confirmations.tell(
            ledger_id, last_add_confirmed, access_key=access_key, timeout_s=timeout_s
        )

    async def _write_last_confirmed(
        self, bookie_id: BookieId, request: pb.WriteLastConfirmedRequest, timeout_s: float
    ) -> pb.WriteLastConfirmedResponse | BookieStatus:
        answer = await self._ask(
            bookie_id,
            lambda calls: calls.write_last_confirmed,
            request,
            pb.WriteLastConfirmedResponse,
            timeout_s,
        )
        return answer.status if isinstance(answer, _Failure) else answer

    async def list_entries(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first: EntryId = FIRST_ENTRY,
        *,
        timeout_s: float,
    ) -> ListedEntries:
        listed, answers = ListedEntries(BookieStatus.OK, []), 0
        connection = self._connection(bookie_id)
        if connection is None:
            return ListedEntries(BookieStatus.UNAVAILABLE, [])
        request = pb.ListEntriesRequest(ledger_id=ledger_id, one_page=True, first_entry=first)
        call = connection.list_entries(request, timeout=timeout_s, metadata=connection.metadata)
        try:
            async for answer in call:
                answers += 1
                if answers > LIST_ANSWERS_MAX:
                    return ListedEntries(BookieStatus.IO_ERROR, [])
                more = page_of(first, answer)
                if more.status is not BookieStatus.OK:
                    return more
                # A bookie of a former version has several answers, and none names a next page.
                listed.ranges.extend(more.ranges)
                listed = listed._replace(next_entry=more.next_entry)
        except grpc.RpcError as error:
            return ListedEntries(_failure(bookie_id, error).status, [])
        except asyncio.CancelledError:
            if _is_cancelled_by_caller():
                raise
            return ListedEntries(BookieStatus.UNAVAILABLE, [])
        except MalformedMessageError:
            return ListedEntries(BookieStatus.IO_ERROR, [])
        finally:
            call.cancel()
        return listed

    async def list_ledgers(
        self, bookie_id: BookieId, first: LedgerId, *, timeout_s: float
    ) -> tuple[BookieStatus, list[LedgerId]]:
        connection = self._connection(bookie_id)
        if connection is None:
            return BookieStatus.UNAVAILABLE, []
        request = pb.ListEntriesRequest(ledger_id=first, ledgers=True)
        call = connection.list_entries(request, timeout=timeout_s, metadata=connection.metadata)
        try:
            async for answer in call:
                return ledgers_of(first, answer)
        except grpc.RpcError as error:
            return _failure(bookie_id, error).status, []
        except asyncio.CancelledError:
            if _is_cancelled_by_caller():
                raise
            return BookieStatus.UNAVAILABLE, []
        except MalformedMessageError:
            return BookieStatus.IO_ERROR, []
        finally:
            call.cancel()
        return BookieStatus.BAD_REQUEST, []

    async def describe(self, bookie_id: BookieId, *, timeout_s: float) -> BookieDescription:
        answer = await self._ask(
            bookie_id,
            lambda calls: calls.describe,
            pb.DescribeRequest(),
            pb.DescribeResponse,
            timeout_s,
        )
        if isinstance(answer, _Failure):
            raise BookieUnavailableError(answer.message)
        if answer.status != pb.OK:
            raise BookieUnavailableError(_about(bookie_id, said(answer.message)))
        try:
            return description_of(bookie_id, answer)
        except MalformedMessageError as error:
            raise BookieUnavailableError(_about(bookie_id, str(error))) from error

    async def close(self) -> None:
        """End all connections. A caller that leaves before that is done keeps none of them."""
        self._closed = True
        if os.getpid() != self._process_id:
            return  # the connections are the parent's
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        """Side by side: whatever fails on the way, or takes its time, holds up no other."""
        ends = [connection.end() for connection in self._connections.values()]
        told = [each.close() for each in self._confirmations.values()]
        self._connections.clear()
        ended = await asyncio.gather(*ends, *told, *self._closing, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    # -- connections -------------------------------------------------------------------------------

    def _connection(self, bookie_id: BookieId) -> _Connection | None:
        """The connection to use now; None when there is none and the bookie is not registered.

        A bookie that is no longer registered keeps its connection: it may have lost its session
        and still serve. One that is registered elsewhere, or whose last connection attempt failed
        a moment ago, gets a new connection.
        """
        check_usable(self._process_id, closed=self._closed)
        connection = self._connections.get(bookie_id)
        address = self._resolve(bookie_id)
        if connection is not None:
            moved = address is not None and address != connection.address
            rested = time.monotonic() - connection.made_at > self._options.reconnect_interval_s
            if not moved and not (rested and is_broken(connection.channel)):
                return connection
            address = address or connection.address
            reason = f"bookie {bookie_id} is reached over a new connection"
            task = asyncio.get_running_loop().create_task(connection.close(reason))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        if address is None:
            return None
        self._connections[bookie_id] = _Connection(bookie_id, address, self._options)
        return self._connections[bookie_id]

    def _append_stream(self, bookie_id: BookieId) -> AppendStream:
        connection = self._connection(bookie_id)
        if connection is None:
            return AppendStream(
                bookie_id,
                _no_call,
                self._newest_messages,
                connect_timeout_s=0.0,
                broken=_unregistered(bookie_id),
            )
        if connection.append_stream is None or connection.append_stream.is_broken:
            connection.append_stream = AppendStream(
                bookie_id,
                lambda: connection.append(metadata=connection.metadata),
                self._newest_messages,
                connect_timeout_s=self._options.connect_timeout_s,
            )
        return connection.append_stream

    async def _ask(
        self,
        bookie_id: BookieId,
        method: Callable[[_Connection], UnaryMethod],
        request: Message,
        kind: type[MessageT],
        timeout_s: float,
    ) -> MessageT | _Failure:
        """The answer to a unary call, or why there is none."""
        connection = self._connection(bookie_id)
        if connection is None:
            return _Failure(BookieStatus.UNAVAILABLE, _unregistered(bookie_id))
        call = method(connection)
        try:
            answer = await call(request, timeout=timeout_s, metadata=connection.metadata)
            return decoded(kind, answer)
        except grpc.RpcError as error:
            return _failure(bookie_id, error)
        except asyncio.CancelledError:
            if _is_cancelled_by_caller():
                raise
            return _Failure(BookieStatus.UNAVAILABLE, _cut(bookie_id))
        except MalformedMessageError as error:
            return _Failure(BookieStatus.IO_ERROR, _about(bookie_id, str(error)))


class _Failure(NamedTuple):
    """A call that brought no answer."""

    status: BookieStatus
    message: str


def _failure(bookie_id: BookieId, error: grpc.RpcError) -> _Failure:
    status, message = failure_of(error)
    return _Failure(status, _about(bookie_id, message))


def _is_cancelled_by_caller() -> bool:
    """Whether this task was cancelled. If not, gRPC cancelled the call with its channel."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _cut(bookie_id: BookieId) -> str:
    return _about(bookie_id, "the connection was closed")


def _about(bookie_id: BookieId, message: str) -> str:
    return f"bookie {bookie_id}: {message}"


def _unregistered(bookie_id: BookieId) -> str:
    return f"bookie {bookie_id} is not registered: it is down, or was never part of this cluster"


def _no_call() -> NoReturn:
    raise AssertionError("an append stream that is made broken makes no call")
