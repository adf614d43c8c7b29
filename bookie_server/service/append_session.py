"""One client's Append stream on the bookie: runs in, cumulative results out.

The reading side hands each run to the bookie and goes on reading; the writing side sends what has
become durable since its last message. One synced journal batch completes many runs at once, so its
results travel in one message, and of several runs of one tag only the last one is named.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio

from bookie_server.service.api import BookieApi
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.errors import MalformedMessageError
from spark_ledger.limits import BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import ReceivedAdd, decode_append_request, status_to_wire
from spark_ledger.wire.frame import frame_last_add_confirmed

_log = logging.getLogger(__name__)

_REFUSED_TAGS_MAX: Final = 65_536
"""Tags that were refused are remembered, so that nothing behind a refusal is stored. A stream with
more of them has been failing for days; ending it makes its client start afresh."""

_UNSENT_RESULTS_MAX: Final = 4_096
"""Results waiting for a client that does not read them; then its stream is not read either."""


class AppendGate:
    """Holds back the reading of all streams while the bookie has too many bytes in flight."""

    def __init__(self, bookie: BookieApi) -> None:
        self._bookie = bookie
        self._waiting: list[asyncio.Future[None]] = []
        self._check_is_due = False

    async def wait(self) -> None:
        """Return once the bookie takes more."""
        while self._bookie.append_bytes_in_flight > BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def completed(self) -> None:
        """Some bytes became durable: look again, once for all completions of a journal batch."""
        if self._waiting and not self._check_is_due:
            self._check_is_due = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._check_is_due = False
        if self._bookie.append_bytes_in_flight > BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX:
            return
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()


class _Lane:
    """The runs of one tag: how many are pending, what is durable, and what ended it."""

    __slots__ = ("acknowledged", "ledger_id", "pending", "refusal", "refused_entry", "tag")

    def __init__(self, tag: int, ledger_id: LedgerId) -> None:
        self.tag = tag
        self.ledger_id = ledger_id
        self.pending = 0
        self.acknowledged = EntryId(-1)  # durable, and not reported yet
        self.refusal: tuple[BookieStatus, str] | None = None
        self.refused_entry = EntryId(-1)

    def refuse(self, last_entry: EntryId, status: BookieStatus, message: str) -> None:
        """Keep the refusal of the earliest run; it is reported once those before it are."""
        if self.refusal is None or last_entry < self.refused_entry:
            self.refusal = (status, message)
            self.refused_entry = last_entry


def _stop_reading(reader: asyncio.Task[Any], writer: asyncio.Task[None]) -> None:
    """Results that cannot be written end the call: what is read after them would go unanswered."""
    if not writer.cancelled() and writer.exception() is not None:
        _log.info("append stream ended, its client is gone: %s", writer.exception())
        reader.cancel()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "grpc runs a handler in a task of its own"
    return task


class AppendSession:
    """Serves one Append call from start to end."""

    def __init__(
        self,
        bookie: BookieApi,
        context: Any,
        *,
        gate: AppendGate,
        metrics: ServiceMetrics,
        refusal: tuple[BookieStatus, str] | None,
    ) -> None:
        """``refusal`` answers every run, when the client did not mean this bookie."""
        self._bookie = bookie
        self._context = context
        self._gate = gate
        self._metrics = metrics
        self._refusal = refusal
        self._lanes: dict[int, _Lane] = {}
        self._changed: dict[int, _Lane] = {}
        self._pending = 0
        self._refused = 0
        self._ended = False
        self._draining = False
        self._task = _current_task()
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()

    def drain(self) -> None:
        """Read no more; the call ends once what was read is answered."""
        if not (self._draining or self._ended):
            self._draining = True
            self._task.cancel()

    async def run(self) -> None:
        """Read until the client ends the stream, then answer what is still pending."""
        writer = asyncio.get_running_loop().create_task(self._write_results())
        writer.add_done_callback(partial(_stop_reading, self._task))
        try:
            try:
                await self._read_all()
            except asyncio.CancelledError:
                if not self._draining:
                    raise
                self._task.uncancel()
            self._ended = True
            self._wake.set()
            await writer
        finally:
            writer.cancel()

    async def _read_all(self) -> None:
        while True:
            await self._gate.wait()
            while len(self._changed) > _UNSENT_RESULTS_MAX:
                self._sent.clear()
                await self._sent.wait()
            data = await self._context.read()
            if data is grpc.aio.EOF:
                return
            await self._take(data)

    async def _take(self, data: bytes) -> None:
        try:
            adds = decode_append_request(data)
        except MalformedMessageError as error:
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        now = time.perf_counter()
        with self._bookie.batch():
            for add in adds:
                self._add(add, now)
        if self._refused > _REFUSED_TAGS_MAX:
            await self._context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._refused} appenders of this stream were refused: open a new stream",
            )

    def _add(self, add: ReceivedAdd, now: float) -> None:
        run = add.run
        lane = self._lanes.get(add.tag)
        if lane is None:
            lane = self._lanes[add.tag] = _Lane(add.tag, run.ledger_id)
        elif lane.refusal is not None:
            return  # runs behind a refused one are dropped, as the client expects
        refusal = self._refusal
        if add.error:
            refusal = (BookieStatus.BAD_REQUEST, f"ledger {run.ledger_id}: {add.error}")
        elif run.ledger_id != lane.ledger_id:
            message = f"ledger {run.ledger_id} on an appender of ledger {lane.ledger_id}"
            refusal = (BookieStatus.BAD_REQUEST, message)
        lane.pending += 1
        self._pending += 1
        last_entry = run.last_entry if run.sizes else run.first_entry
        size = len(run.frames)
        done = partial(self._completed, lane, last_entry, run.count, size, now)
        if refusal is not None:
            done(*refusal)
            return
        self._bookie.add(
            run,
            access_key=add.access_key,
            recovery=add.recovery,
            last_add_confirmed=frame_last_add_confirmed(run),
            done=done,
        )

    def _completed(
        self,
        lane: _Lane,
        last_entry: EntryId,
        entries: int,
        size_bytes: int,
        started: float,
        status: BookieStatus,
        message: str,
    ) -> None:
        lane.pending -= 1
        self._pending -= 1
        self._metrics.add_completed(status, entries, size_bytes, time.perf_counter() - started)
        if status is not BookieStatus.OK:
            if lane.refusal is None:
                self._refused += 1
            lane.refuse(last_entry, status, message)
        elif lane.refusal is None or last_entry < lane.refused_entry:
            lane.acknowledged = last_entry
        self._changed[lane.tag] = lane
        self._wake.set()
        self._gate.completed()

    async def _write_results(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            response = self._collect()
            if response.results:
                await self._context.write(response)
            self._sent.set()
            if self._ended and not self._pending and not self._changed:
                return

    def _collect(self) -> Any:
        """What has changed since the last call, as one message."""
        response = pb.AppendResponse()
        for tag, lane in self._changed.items():
            if lane.acknowledged >= 0:
                response.results.add(
                    tag=tag, ledger_id=lane.ledger_id, last_entry=lane.acknowledged
                )
                lane.acknowledged = EntryId(-1)
            if lane.pending:
                continue
            if lane.refusal is None:
                del self._lanes[tag]
            else:
                status, message = lane.refusal
                response.results.add(
                    tag=tag,
                    ledger_id=lane.ledger_id,
                    last_entry=lane.refused_entry,
                    status=status_to_wire(status),
                    message=message,
                )
        self._changed.clear()
        return response
