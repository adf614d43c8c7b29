"""One client's Append stream on the bookie: runs in, cumulative results out.

A stream carries many appenders, each under a tag of its own: one writer's entries of one ledger.
The reading side hands each run to the bookie and goes on reading; the writing side sends what has
become durable since its last message. One synced journal batch completes many runs at once, so its
results travel in one message, and of several runs of one tag only the last one is named.

A disk that stalls is told as a note, STALLED: what was sent may become durable yet, and its
result follows then (rule S15).

A result covers all runs of its tag before it (rule P3). This holds because the bookie answers the
runs of a ledger in order, and because no run behind a refused one is acknowledged: those that were
on their way to the disk already may be stored, later ones are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from functools import partial

import grpc
import grpc.aio

from bookie_server.service.answered_adds import AnsweredAdds
from bookie_server.service.append_gate import AppendGate, AppendShares
from bookie_server.service.append_turns import AppendTurns
from bookie_server.service.appender_state import AppenderState
from bookie_server.service.context import CallContext
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.nonsense import Nonsense
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.bookie_api import ASKED_BY, BookieApi, Refusal
from spark_ledger.errors import MalformedMessageError
from spark_ledger.limits.bookie import (
    ADD_COST_BYTES,
    APPEND_TURN_S,
    BOOKIE_HELD_MESSAGE_S,
    BOOKIE_MALFORMED_ADDS_MAX,
    BOOKIE_REFUSED_OF_A_LEDGER_MAX,
    BOOKIE_UNKNOWN_ADDS_MAX,
    BOOKIE_UNSENT_RESULTS_MAX,
    FIRST_CONTACT_LOOKUPS_MAX,
)
from spark_ledger.limits.entries import APPEND_MESSAGE_BYTES_TARGET
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import ReceivedAdd, decode_append_request, status_to_wire

logger = logging.getLogger(__name__)


def _stop_reading(reader: asyncio.Task[object], writer: asyncio.Task[None]) -> None:
    """End the call when results cannot be written: what is read from then on has no answer."""
    if not writer.cancelled() and writer.exception() is not None:
        logger.info("append stream ended, its client is gone: %s", writer.exception())
        reader.cancel()


class AppendSession:
    """Serves one Append call from start to end.

    Everything here belongs to the service thread: the bookie calls back on it, too.
    """

    def __init__(
        self,
        bookie: BookieApi,
        context: CallContext,
        *,
        gate: AppendGate,
        shares: AppendShares,
        turns: AppendTurns,
        connections: Connections,
        nonsense: Nonsense,
        metrics: ServiceMetrics,
        refusal: Refusal | None,
    ) -> None:
        """``refusal`` answers every run, when the client did not mean this bookie."""
        self._bookie = bookie
        self._context = context
        self._gate = gate
        self._shares = shares
        self._turns = turns
        self._connections = connections
        self._nonsense = nonsense
        self.peer = context.peer()
        self._answered = AnsweredAdds(self.peer, gate, shares, metrics)
        self._is_idle = False  # the writer: it will see what is answered, and tell of it
        self._refusal = refusal
        self._stall = ""
        self._appenders: dict[int, AppenderState] = {}
        self._changed: dict[int, AppenderState] = {}  # those with something to report
        self._pending = 0  # runs of all appenders that are not answered
        self._unanswered = 0  # appenders that have such runs
        self._over: dict[LedgerId, dict[int, None]] = {}
        """Tags of a ledger that were refused and are told so, the one that was told first first."""
        self._ends_with = ""  # for its client: too many were refused
        self._is_gone = False
        self._ended = False  # reading has ended, and answers go on
        self._aborts = False  # nothing is answered any more
        self._writer: asyncio.Task[None] | None = None
        self._draining = False
        self._is_waiting = False  # for its client or for room, so that a drain may interrupt it
        self._was_interrupted = False
        self._malformed = 0  # adds
        self._unauthorized = 0  # appenders
        self._may_be_held = True  # until the bookie is busy, or has not answered for a while
        self._reads_since = math.inf  # while nothing is read
        self._writes_since = math.inf  # while nothing is written
        self._message_bytes = APPEND_MESSAGE_BYTES_TARGET  # the size of the last one
        self._message_cost = APPEND_MESSAGE_BYTES_TARGET  # what its adds count in shares
        self.is_known = False  # something of it was stored
        task = asyncio.current_task()
        assert task is not None, "grpc runs a handler in a task of its own"
        self._task: asyncio.Task[object] = task
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()

    def drain(self) -> None:
        """Read no more; the call ends once what was read is answered."""
        if self._draining or self._ended:
            return
        self._draining = True
        self._sent.set()
        self._stop_waiting()

    def end_refused(self, message: str) -> None:
        """End, and with it what is kept of those that were refused. Nothing is stored or answered
        from now on: it is not known any more behind what."""
        self._ends_with = message
        self._aborts = True
        self._wake.set()
        self._sent.set()
        self._appenders.clear()
        self._changed.clear()
        self._over.clear()
        if not self._ended:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._was_interrupted = True
            self._task.cancel()

    async def run(self) -> None:
        """Read until the client ends the stream, then answer what is still pending.

        No TaskGroup: it would wrap the error by which grpc ends an aborted call.
        """
        ASKED_BY.set(self.peer)
        self._writer = writer = asyncio.get_running_loop().create_task(self._write_results())
        writer.add_done_callback(partial(_stop_reading, self._task))
        try:
            try:
                await self._read_all()
            except asyncio.CancelledError:
                if not self._was_interrupted or self._task.uncancel():
                    raise
            self._ended = True
            self._wake.set()
            await writer
            await self._check_refusals()
        finally:
            self._is_gone = True
            self._gate.refused.forget(self)
            writer.cancel()
            await asyncio.wait([writer])

    def disks_stall(self, reason: str) -> None:
        """A disk that adds wait for does not move, or goes on (""): tell all who wait, and who
        comes now."""
        self._stall = reason
        if reason:
            for appender in self._appenders.values():
                self._note_stall(appender)
            self._sent.set()  # what is held hears of it as well

    def _note_stall(self, appender: AppenderState) -> None:
        """Tell an appender once, until something of it is durable.

        One that was refused as busy as well: where others suffice its client goes on with them,
        instead of sending the same again and again.
        """
        refusal = appender.refusal
        waits = appender.pending or (refusal and refusal.status is BookieStatus.TOO_MANY_REQUESTS)
        if waits and not appender.told:
            appender.told, appender.note = True, self._stall
            self._changed[appender.tag] = appender
            self._wake.set()

    @property
    def is_read(self) -> bool:
        """It may send: nobody else keeps it waiting."""
        return self._reads_since < math.inf

    @property
    def has_waited_s(self) -> float:
        """For how long it has waited for the rest of a message, or for the next one."""
        return time.perf_counter() - self._reads_since

    @property
    def idle_s(self) -> float:
        """For how long it has waited for its client, to send or to read, with nothing of it under
        way; negative if it does not."""
        return -math.inf if self._pending else max(self.has_waited_s, self.unread_s)

    @property
    def unread_s(self) -> float:
        """For how long it has waited for its client to read; negative if it does not."""
        return time.perf_counter() - self._writes_since

    @property
    def ends(self) -> bool:
        """It was told to end, or does so."""
        return bool(self._ends_with) or self._draining or self._ended

    async def _read_all(self) -> None:
        while not self._draining:
            self._is_waiting = True
            await self._shares.wait(self.peer, self._message_cost)
            await self._gate.wait(self._message_bytes)
            while len(self._changed) > BOOKIE_UNSENT_RESULTS_MAX:
                self._sent.clear()
                await self._sent.wait()
            self._reads_since = time.perf_counter()
            data = await self._context.read()
            self._reads_since = math.inf
            self._is_waiting = False
            if data is grpc.aio.EOF:
                return
            assert isinstance(data, bytes), "Append has no deserializer"
            self._message_bytes = len(data)
            self._connections.given(self.peer, len(data))
            error = await self._take(data)
            if error:
                del data  # it is not kept for as long as this takes
                await self._refuse_nonsense(error)

    async def _take(self, data: bytes) -> str:
        """Hand the adds of a message to the bookie, and let others have a turn now and then; why
        the stream must not go on, or ""."""
        adds = decode_append_request(data)
        began = time.perf_counter()
        self._message_cost = 0
        received_bytes = len(data)
        while True:
            async with self._turns.turn(self.peer, received_bytes):
                is_last, error = self._take_turn(adds, began)
            if not error and self._malformed > BOOKIE_MALFORMED_ADDS_MAX:
                error = f"{self._malformed} adds of this stream were malformed"
            if not error and self._unauthorized > BOOKIE_UNKNOWN_ADDS_MAX and not self.is_known:
                error = f"{self._unauthorized} ledgers of this stream may not be written"
            if error:
                return error
            await self._hold(began)
            await self._check_refusals()
            if is_last:
                return ""
            received_bytes = 0  # counted
            await asyncio.sleep(0)

    def _take_turn(self, adds: Iterator[ReceivedAdd], began: float) -> tuple[bool, str]:
        """Hand adds to the bookie for as long as a turn has; whether they were the last, and why
        the message must not go on, or "".

        What takes the time is what the bookie does for each, not to decode it.
        """
        ends_at = time.perf_counter() + APPEND_TURN_S
        with self._bookie.batch():
            try:
                for add in adds:
                    cost = ADD_COST_BYTES + len(add.run.frames)
                    self._message_cost += cost
                    self._shares.began(self.peer, cost)
                    self._add(add, began)
                    if time.perf_counter() > ends_at:
                        return False, ""
            except MalformedMessageError as malformed:
                return True, str(malformed)
        return True, ""

    @property
    def _has_strange_ledgers(self) -> bool:
        goes_on = self.is_known or self._stall or self._draining or self._aborts
        is_strange = self._may_be_held and not goes_on
        return is_strange and self._unanswered > FIRST_CONTACT_LOOKUPS_MAX

    async def _hold(self, began: float) -> None:
        """Take no more in of a stream that has stored nothing while many of its ledgers wait, most
        likely to be looked up: whoever comes with thousands that do not exist is ended by the
        answers to the first of them.

        An honest process that begins so many while ZooKeeper is away must hear in time that the
        bookie is busy. So before a ledger was refused as unknown a message is held for a while
        only, and no other one behind it; nor is a stream that was told so. While a disk stalls all
        have to hear of it (rule S15), and a drain waits for no more than one look-up.
        """
        if not self._has_strange_ledgers:
            return
        left_s = began + BOOKIE_HELD_MESSAGE_S - time.perf_counter()
        with self._gate.held.hold(self._message_bytes) as is_held:
            try:
                async with asyncio.timeout(None if self._unauthorized else left_s) as bound:
                    while is_held and self._has_strange_ledgers:
                        self._sent.clear()
                        await self._sent.wait()
                        if self._unauthorized:
                            bound.reschedule(None)
            except TimeoutError:
                self._may_be_held = False

    async def _check_refusals(self) -> None:
        """End the stream if it is the one of which most was refused."""
        if self._ends_with:
            await self._abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self._ends_with)

    async def _refuse_nonsense(self, error: str) -> None:
        """End the stream, but not at once: a client that sends such things sends more of them."""
        pause_s = self._nonsense.pause_s(self._message_bytes)
        self._shares.bar(self.peer, pause_s)
        await asyncio.sleep(pause_s)
        await self._abort(grpc.StatusCode.INVALID_ARGUMENT, error)

    async def _abort(self, status: grpc.StatusCode, message: str) -> None:
        """End the call with a status, behind the answer that is being sent: sent beside it, the
        status is lost, and the client waits until its own deadline."""
        assert self._writer is not None, "answers are sent for as long as messages are read"
        self._aborts = True
        self._wake.set()
        await asyncio.wait([self._writer])
        await self._context.abort(status, message)

    def _add(self, add: ReceivedAdd, now: float) -> None:
        run = add.run
        appender = self._appenders.get(add.tag)
        over = self._over.get(run.ledger_id, {})
        if appender is None:
            is_over = self._aborts or add.tag in over
        else:
            is_over = appender.refusal is not None
        if is_over:
            # Runs behind a refused one are dropped, as the client expects.
            self._shares.ended(self.peer, ADD_COST_BYTES + len(run.frames))
            return
        if appender is None:
            while len(over) >= BOOKIE_REFUSED_OF_A_LEDGER_MAX:
                self._forget_oldest(over)
            appender = self._appenders[add.tag] = AppenderState(add.tag, run.ledger_id)
        refusal = self._refusal
        if add.error:
            self._malformed += 1
            refusal = Refusal(BookieStatus.BAD_REQUEST, f"ledger {run.ledger_id}: {add.error}")
        elif run.ledger_id != appender.ledger_id:
            message = f"ledger {run.ledger_id} on an appender of ledger {appender.ledger_id}"
            refusal = Refusal(BookieStatus.BAD_REQUEST, message)
        self._unanswered += not appender.pending
        appender.pending += 1
        self._pending += 1
        count, size = len(run.sizes), len(run.frames)
        last_entry = run.last_entry if count else run.first_entry
        done = partial(self._completed, appender, last_entry, count, size, now)
        if refusal is not None:
            done(*refusal)
            return
        self._bookie.add(
            run,
            access_key=add.access_key,
            recovery=add.recovery,
            last_add_confirmed=add.last_add_confirmed,
            done=done,
        )
        if self._stall:
            self._note_stall(appender)

    def _forget_oldest(self, over: dict[int, None]) -> None:
        """Forget the tag of a ledger whose refusal was told first: another one of the ledger is
        there now, so its client has read that, and sends nothing more of it."""
        tag = next(iter(over))
        del over[tag]
        self._appenders.pop(tag, None)
        self._changed.pop(tag, None)
        self._gate.refused.one_less(self)

    def _completed(
        self,
        appender: AppenderState,
        last_entry: EntryId,
        entries: int,
        size_bytes: int,
        started: float,
        status: BookieStatus,
        message: str,
    ) -> None:
        appender.pending -= 1
        self._pending -= 1
        self._unanswered -= not appender.pending
        self._answered.add(status, entries, size_bytes, started)
        if status is not BookieStatus.OK:
            is_first = appender.refusal is None
            self._unauthorized += is_first and status is BookieStatus.UNAUTHORIZED
            is_busy = status is BookieStatus.TOO_MANY_REQUESTS
            self._may_be_held &= not is_busy or self._unauthorized > 0
            appender.refuse(last_entry, Refusal(status, message))
            if is_first and not (self._aborts or self._is_gone):
                self._gate.refused.one_more(self)
        elif appender.refusal is None or last_entry < appender.refused_entry:
            appender.acknowledged = last_entry
            appender.told, appender.note = False, ""
            self.is_known = True
        if not self._changed:  # else the writer of results is awake, and has not collected yet
            self._wake.set()
        self._changed[appender.tag] = appender
        if not self._is_idle:
            self._answered.tell()  # a client that takes no answer keeps no share for it

    async def _write_results(self) -> None:
        while True:
            self._is_idle = True
            try:
                await self._wake.wait()
            finally:
                self._is_idle = False
                self._answered.tell()
            self._wake.clear()
            if self._aborts:
                return
            response = self._collect()
            if response.results:
                self._writes_since = time.perf_counter()
                await self._context.write(response)
                self._writes_since = math.inf
            self._sent.set()
            if self._ended and not self._pending and not self._changed:
                return

    def _collect(self) -> pb.AppendResponse:
        """What has changed since the last call, as one message."""
        response = pb.AppendResponse()
        for tag, appender in self._changed.items():
            if appender.acknowledged >= 0:
                response.results.add(
                    tag=tag, ledger_id=appender.ledger_id, last_entry=appender.acknowledged
                )
                appender.acknowledged = NO_ENTRY
            if appender.note:
                response.results.add(
                    tag=tag,
                    ledger_id=appender.ledger_id,
                    last_entry=NO_ENTRY,
                    status=status_to_wire(BookieStatus.STALLED),
                    message=appender.note,
                )
                appender.note = ""
            if appender.pending:
                continue
            if appender.refusal is None:
                del self._appenders[tag]
            else:
                status, message = appender.refusal
                response.results.add(
                    tag=tag,
                    ledger_id=appender.ledger_id,
                    last_entry=appender.refused_entry,
                    status=status_to_wire(status),
                    message=message,
                )
                # If it is there it was busy, and has heard of a stall now.
                self._over.setdefault(appender.ledger_id, {})[tag] = None
                if status is not BookieStatus.TOO_MANY_REQUESTS:  # it may have to hear of a stall
                    del self._appenders[tag]
        self._changed.clear()
        return response
