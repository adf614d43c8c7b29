"""The gRPC servicer: decodes a call, hands it to the bookie, sends the bookie's answer.

It decides nothing about ledgers: the bookie does. Statuses travel inside messages, so that a client
learns them in the same way for every call; grpc's own codes are left for what grpc itself finds
wrong. Every call names the bookie it means, and another one at the same address refuses: it would
deny entries that it never had.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import grpc
import grpc.aio

from bookie_server.service.answer_room import AnswerRoom, MakesWayError, NoTurnError
from bookie_server.service.append_gate import AppendGate, AppendShares
from bookie_server.service.append_session import AppendSession
from bookie_server.service.append_turns import AppendTurns
from bookie_server.service.calls import CallLimits, Kind, Leftovers
from bookie_server.service.confirmations import confirm_all, confirm_error
from bookie_server.service.context import CallContext
from bookie_server.service.guard.client_watch import ClientWatch
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.hanging_up import HangUp, Why
from bookie_server.service.guard.nonsense import Nonsense
from bookie_server.service.guard.sockets import Sockets
from bookie_server.service.health import Health
from bookie_server.service.lists import list_error, next_part, refused_list
from bookie_server.service.long_polls import LongPolls
from bookie_server.service.metrics import ServiceMetrics
from bookie_server.service.read_path import ONE_DISK, RangeRead, read_request_error
from bookie_server.service.read_threads import DiskIsBusyError, ReadThreads, RoomIsGoneError
from bookie_server.service.requests import Requests
from bookie_server.service.spare_streams import SpareStreams
from spark_ledger.bookie_api import (
    ASKED_BY,
    BookieApi,
    Done,
    LedgerDisks,
    Refusal,
    refuse_reader,
)
from spark_ledger.errors import CorruptionError
from spark_ledger.limits.bookie import (
    BOOKIE_ANSWER_BYTES_MAX,
    BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX,
    BOOKIE_HELD_BYTES_MAX,
    BOOKIE_RECEIVE_SHORT_S,
    BOOKIE_UNREAD_GRACE_S,
    BOOKIE_UNREAD_S,
)
from spark_ledger.types import BookieId, BookieStatus, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import BOOKIE_ID_KEY, SERVICE_NAME, encode_read_end, status_to_wire

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Description:
    """What a bookie says about itself; see ``DescribeResponse``."""

    cluster_id: str
    version: str
    state: str
    ledgers: int
    journal_bytes: int
    entry_log_bytes: int
    free_bytes: int
    uptime_s: float
    next_ledger_id: int = 0
    scrubbed_at: float = 0.0
    damaged: int = 0
    lacking: int = 0


class BookieService:
    """Handlers of ``spark_ledger.v1.Bookie`` over one bookie.

    Everything here belongs to the service thread. What may take long runs in other threads: reads
    and lists of entries, which the bookie allows on any, and ``describe``.
    """

    def __init__(
        self,
        bookie: BookieApi,
        bookie_id: BookieId,
        *,
        describe: Callable[[], Description],
        metrics: ServiceMetrics,
        disks: LedgerDisks = ONE_DISK,
    ) -> None:
        """``describe`` is called in a thread, for it may ask the disk."""
        self._bookie = bookie
        self._bookie_id = bookie_id
        self._describe = describe
        self._metrics = metrics
        self._gate = AppendGate(bookie, BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX)
        self._shares = AppendShares()
        self._turns = AppendTurns()
        self._sockets = Sockets()
        self.hang_up = HangUp(self._sockets, metrics.connections_ended)
        self._limits = CallLimits(self.hang_up, metrics.calls_refused)
        self.leftovers = Leftovers(self.hang_up)
        self.connections = self._connections = Connections()
        """What the clients have begun and sent."""
        self._nonsense = Nonsense()
        self._requests = Requests(self._limits, self._connections, self._nonsense)
        self.health = Health(self._requests, self._limits, self.hang_up)
        self._disks = disks
        self.reads = ReadThreads(disks.names)
        metrics.stalled_reads = lambda: self.reads.stalled
        metrics.reads_waiting = lambda: self.reads.waiting
        self._answers = AnswerRoom(
            BOOKIE_ANSWER_BYTES_MAX,
            self.hang_up,
            grace_s=BOOKIE_UNREAD_GRACE_S,
            unread_s=BOOKIE_UNREAD_S,
        )
        self.reads.lend, self.reads.take_back = self._answers.lend, self._answers.take_back
        metrics.answer_bytes = lambda: self._answers.bytes_held
        self._ended_before = 0  # connections, when memory was short the last time
        self._relieved_before = 0  # of which it was the reason
        self._sessions: set[AppendSession] = set()
        self.clients = ClientWatch(
            self._sockets,
            self.hang_up,
            self._connections,
            self._limits,
            lambda: self._sessions,
        )
        self._connections.on_call = self.clients.sign
        self._polls = LongPolls(bookie, metrics)
        spare_streams = SpareStreams(self._sessions, self.hang_up)
        self._limits.makes_way[Kind.POLL] = self._polls.make_way
        self._limits.makes_way[Kind.READ] = self._answers.make_way
        self._limits.makes_way[Kind.APPEND] = spare_streams.make_way
        self._is_draining = False
        self._stall = ""
        # Of its own: who asks how a bookie does must not wait behind those who keep it busy.
        self._describing = ThreadPoolExecutor(1, thread_name_prefix="bookie-describe")

    def handlers(self) -> grpc.GenericRpcHandler:
        """All methods, for ``grpc.aio.Server.add_generic_rpc_handlers``."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Append": grpc.stream_stream_rpc_method_handler(
                    self.append, None, pb.AppendResponse.SerializeToString
                ),
                "Read": grpc.stream_stream_rpc_method_handler(
                    self._requests.received(self.read, pb.ReadRequest), None, None
                ),
                "ReadLastConfirmed": grpc.stream_unary_rpc_method_handler(
                    self._requests.received(self.read_last_confirmed, pb.ReadLastConfirmedRequest),
                    None,
                    pb.ReadLastConfirmedResponse.SerializeToString,
                ),
                "WriteLastConfirmed": grpc.stream_unary_rpc_method_handler(
                    self._requests.received(
                        self.write_last_confirmed, pb.WriteLastConfirmedRequest
                    ),
                    None,
                    pb.WriteLastConfirmedResponse.SerializeToString,
                ),
                "ListEntries": grpc.stream_stream_rpc_method_handler(
                    self._requests.received(self.list_entries, pb.ListEntriesRequest),
                    None,
                    pb.ListEntriesResponse.SerializeToString,
                ),
                "Describe": grpc.stream_unary_rpc_method_handler(
                    self._requests.received(self.describe, pb.DescribeRequest),
                    None,
                    pb.DescribeResponse.SerializeToString,
                ),
            },
        )

    def drain(self) -> None:
        """End append streams once what they sent is answered, and answer long polls now."""
        self._is_draining = True
        for session in list(self._sessions):
            session.drain()
        self._polls.drain()

    def disks_stall(self, reason: str) -> None:
        """A disk that adds wait for does not move, or goes on (""): tell who adds (rule S15)."""
        self._stall = reason
        for session in self._sessions:
            session.disks_stall(reason)

    def memory_is_short(self, is_short: bool) -> None:
        """Take in less from now on, or as much as usual again."""
        self._gate.memory_is_short(is_short)

    async def relieve(self) -> int:
        """Hang up on clients that hold memory and keep the bookie waiting; how many were hung up
        on since the last time, for what they held can be given back to the kernel."""
        loop = asyncio.get_running_loop()
        peers = {session.peer for session in self._sessions} | self._limits.receiving_for(0.0)
        granted = self._connections.granted(peers)
        received = await loop.run_in_executor(None, self._sockets.received, peers)
        held = self._connections.held(received, granted)
        greedy = {peer for peer, byte_count in held.items() if byte_count > BOOKIE_HELD_BYTES_MAX}
        # Those who wait until they are read are not to blame, if there are others.
        waiting = {session.peer for session in self._sessions if not session.is_read}
        greedy = greedy - waiting or greedy
        for peer in greedy:
            self.hang_up(peer, Why.UNFINISHED)
        # A connection that was ended is counted already, and gRPC may not have noticed it yet.
        late = (self._limits.receiving_for(BOOKIE_RECEIVE_SHORT_S) & received.keys()) - greedy
        for peer in late:
            self.hang_up(peer, Why.SILENT)
        relieved = len(greedy) + len(late) + self._answers.cut_unread(BOOKIE_UNREAD_GRACE_S)
        ended = self._metrics.connections_ended.total()
        others = max(0, ended - self._ended_before - self._relieved_before)
        self._ended_before, self._relieved_before = ended, relieved
        return relieved + others

    def close(self) -> None:
        """Begin no read any more. Call after the gRPC server has stopped."""
        self._answers.close()
        self.reads.close()
        self._describing.shutdown(wait=False, cancel_futures=True)

    def wait_for_reads(self) -> None:
        """Return once those have ended that had begun: a disk may hold them up for ever. After
        ``close``; any thread."""
        self.reads.wait()
        self._describing.shutdown()

    # -- handlers ----------------------------------------------------------------------------------

    async def append(self, _requests: AsyncIterator[bytes], context: CallContext) -> None:
        """One client's stream of adds."""
        peer = context.peer()
        with (
            self._connections.call(peer),
            self._limits.admitted(Kind.APPEND, peer) as busy,
        ):
            if busy is not None:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, busy.message)
            session = AppendSession(
                self._bookie,
                context,
                gate=self._gate,
                shares=self._shares,
                turns=self._turns,
                connections=self._connections,
                nonsense=self._nonsense,
                metrics=self._metrics,
                refusal=self._wrong_bookie(context),
            )
            session.disks_stall(self._stall)
            self._metrics.append_streams += 1
            self._sessions.add(session)
            try:
                if self._is_draining:
                    session.drain()
                await session.run()
            finally:
                self._sessions.discard(session)
                self._metrics.append_streams -= 1

    async def read(self, request: pb.ReadRequest, context: CallContext) -> None:
        """A range of entries; with ``fence`` the ledger is fenced first."""
        ASKED_BY.set(context.peer())
        started = time.perf_counter()
        kind = Kind.FENCE if request.fence else Kind.READ
        with self._limits.admitted(kind, context.peer()) as busy:
            refusal = busy or self._refusal(context, read_request_error(request))
            if refusal is None and request.fence:
                refusal = await self._fence(request)
            elif refusal is None:
                ledger_id = LedgerId(request.ledger_id)
                refusal = refuse_reader(self._bookie, ledger_id, request.access_key)
            work = RangeRead(self._bookie, request, self._disks)
            number = self._disks.number_of(LedgerId(request.ledger_id))
            first, bytes_read, status = work.next_entry, 0, work.status
            try:
                while refusal is None and not work.ended:
                    await self._write_part(work, number, context)
                    first, bytes_read, status = work.next_entry, work.bytes_read, work.status
                    if self._answers.new_calls_wait:
                        break  # in turns: its client asks for the rest, behind those that wait
            except MakesWayError:  # the work may run on: no more of it is looked at
                pass  # as above
            except (DiskIsBusyError, NoTurnError) as error:
                refusal = Refusal(BookieStatus.TOO_MANY_REQUESTS, str(error))
        status = status if refusal is None else refusal.status
        self._metrics.read_ended(status, bytes_read, time.perf_counter() - started)
        if refusal is not None:
            await self._refuse(encode_read_end(status, first, refusal.message), context)

    async def _write_part(self, work: RangeRead, number: int, context: CallContext) -> None:
        """Read the next part of a range when there is room for it, and write it."""
        messages = await self._read(number, work.next_messages, work.in_memory, context.peer())
        with self._answers.hold(sum(map(len, messages)), context.peer()):
            for encoded in messages:
                await context.write(encoded)

    async def _read(
        self,
        number: int,
        work: Callable[[], T],
        in_memory: Callable[[], T | None] | None,
        peer: str,
    ) -> T:
        """What is read with a thread of directory ``number``, once there is room, which is reserved
        for it. Raises as ``work`` does, DiskIsBusyError, NoTurnError and MakesWayError; nothing is
        reserved then."""
        while True:
            await self._answers.reserve(peer)
            try:
                async with self._answers.asking_disk():
                    return await self.reads.run(number, work, in_memory)
            except RoomIsGoneError:
                self._answers.release()
            except BaseException:
                self._answers.release()
                raise

    async def read_last_confirmed(
        self, request: pb.ReadLastConfirmedRequest, context: CallContext
    ) -> pb.ReadLastConfirmedResponse:
        """The end of a ledger as this bookie knows it, at once or when it has moved on."""
        ASKED_BY.set(context.peer())
        waits = Kind.POLL if request.wait_ms else Kind.CONFIRM
        kind = Kind.FENCE if request.fence else waits
        with self._limits.admitted(kind, context.peer()) as busy:
            return await self._last_confirmed(request, context, busy)

    async def _last_confirmed(
        self, request: pb.ReadLastConfirmedRequest, context: CallContext, busy: Refusal | None
    ) -> pb.ReadLastConfirmedResponse:
        refusal = busy or self._refusal(context, _ledger_error(request.ledger_id))
        if refusal is None and request.fence:
            refusal = await self._fence(request)
        if refusal is not None:
            return pb.ReadLastConfirmedResponse(
                status=status_to_wire(refusal.status),
                message=refusal.message,
                last_add_confirmed=-1,
                last_entry=-1,
            )
        if request.wait_ms:
            end = await self._polls.end_of_ledger(request, context.peer())
        else:
            ledger_id = LedgerId(request.ledger_id)
            end = self._bookie.end_of_ledger(ledger_id, access_key=request.access_key)
        return pb.ReadLastConfirmedResponse(
            status=status_to_wire(end.status),
            message=end.message,
            last_add_confirmed=end.last_add_confirmed,
            last_entry=end.last_entry,
            fenced=end.fenced,
        )

    async def write_last_confirmed(
        self, request: pb.WriteLastConfirmedRequest, context: CallContext
    ) -> pb.WriteLastConfirmedResponse:
        """The LAC of idle writers."""
        ASKED_BY.set(context.peer())
        with self._limits.admitted(Kind.CONFIRM, context.peer()) as busy:
            refusal = busy or self._refusal(context, confirm_error(request))
            if refusal is None:
                answers = await confirm_all(self._bookie, request)
            else:
                answers = [refusal] * (1 + len(request.more))
        return pb.WriteLastConfirmedResponse(
            status=status_to_wire(answers[0].status),
            message=answers[0].message,
            more=[status_to_wire(answer.status) for answer in answers[1:]],
        )

    async def list_entries(self, request: pb.ListEntriesRequest, context: CallContext) -> None:
        """Ranges of the entries held here of a ledger, or the ledgers from one on."""
        with self._limits.admitted(Kind.LIST, context.peer()) as busy:
            refusal = busy or self._refusal(context, list_error(request))
            of_all = request.ledgers  # they live in all directories
            number = -1 if of_all else self._disks.number_of(LedgerId(request.ledger_id))
            following: int | None = request.first_entry
            try:
                while refusal is None and following is not None:
                    part = partial(next_part, self._bookie, request, following)
                    response, following = await self._read(number, part, None, context.peer())
                    with self._answers.hold(response.ByteSize(), context.peer()):
                        await context.write(response)
            except (DiskIsBusyError, NoTurnError) as error:
                refusal = Refusal(BookieStatus.TOO_MANY_REQUESTS, str(error))
            except MakesWayError:  # a list that ends early would be taken for the whole
                message = "others need what was listed: ask later"
                refusal = Refusal(BookieStatus.TOO_MANY_REQUESTS, message)
        if refusal is not None:
            await self._refuse(refused_list(request, refusal), context)

    async def describe(
        self, _request: pb.DescribeRequest, context: CallContext
    ) -> pb.DescribeResponse:
        """Who this bookie is and how it does."""
        with self._limits.admitted(Kind.DESCRIBE, context.peer()) as busy:
            description = busy or self._refusal(context, "") or await self._description()
        if isinstance(description, Refusal):
            return pb.DescribeResponse(
                status=status_to_wire(description.status),
                message=description.message,
                bookie_id=self._bookie_id,
            )
        return pb.DescribeResponse(
            bookie_id=self._bookie_id,
            cluster_id=description.cluster_id,
            version=description.version,
            state=description.state,
            ledgers=description.ledgers,
            journal_bytes=description.journal_bytes,
            entry_log_bytes=description.entry_log_bytes,
            free_bytes=description.free_bytes,
            uptime_s=description.uptime_s,
            next_ledger_id=description.next_ledger_id,
            scrubbed_at=description.scrubbed_at,
            damaged=description.damaged,
            lacking=description.lacking,
        )

    # -- parts -------------------------------------------------------------------------------------

    async def _refuse(self, answer: object, context: CallContext) -> None:
        """Write the only message of a stream that is refused. The call is over, and counts in its
        kind no more: its client may not read even that."""
        self.leftovers.handler_ended(context.peer())
        await context.write(answer)

    def _wrong_bookie(self, context: CallContext) -> Refusal | None:
        """Refuse what was meant for the bookie that had this address before."""
        metadata = context.invocation_metadata() or ()
        meant = next((str(value) for key, value in metadata if key == BOOKIE_ID_KEY), None)
        if meant == self._bookie_id:
            return None
        asked = "no bookie was named" if meant is None else f"bookie {meant} was asked"
        return Refusal(BookieStatus.WRONG_BOOKIE, f"this is bookie {self._bookie_id}; {asked}")

    def _refusal(self, context: CallContext, error: str) -> Refusal | None:
        """Why a call other than Append is refused before anything is done."""
        wrong = self._wrong_bookie(context)
        if wrong is not None:
            return wrong
        if context.time_remaining() is None:
            return Refusal(BookieStatus.BAD_REQUEST, "a call needs a deadline")
        if error:
            return Refusal(BookieStatus.BAD_REQUEST, error)
        return None

    async def _description(self) -> Description | Refusal:
        """How the bookie does, unless its disk or index cannot say."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._describing, self._describe)
        except (OSError, CorruptionError) as error:
            return Refusal(BookieStatus.IO_ERROR, str(error))

    async def _fence(self, request: pb.ReadRequest | pb.ReadLastConfirmedRequest) -> Refusal | None:
        """Fence durably. None once that is done."""
        status, message = await _answer(
            lambda done: self._bookie.fence(
                LedgerId(request.ledger_id), access_key=request.access_key, done=done
            )
        )
        self._metrics.fences[status] += 1
        return None if status is BookieStatus.OK else Refusal(status, message)


async def _answer(ask: Callable[[Done], None]) -> Refusal:
    """What the bookie calls back with; OK as well."""
    future: asyncio.Future[Refusal] = asyncio.get_running_loop().create_future()

    def done(status: BookieStatus, message: str) -> None:
        if not future.done():  # the caller may have gone
            future.set_result(Refusal(status, message))

    ask(done)
    return await future


def _ledger_error(ledger_id: int) -> str:
    return f"negative ledger id {ledger_id}" if ledger_id < 0 else ""
