"""Tells one bookie what idle writers have confirmed: many ledgers in one call.

A client that writes a thousand ledgers in turn leaves each of them idle for a while between two
entries, so each tells its last add confirmed all the time (rule P5). A call for each would cost
more than the entries do. So what comes in one turn of the loop is sent together, and what comes
while enough calls are on their way waits for the end of one: the busier both sides are, the more
ledgers share a call. A writer tells a bookie nothing more before it has answered, so what waits for
one that hangs is at most one telling for each ledger that is open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from spark_ledger.limits.client import CONFIRMATION_CALLS_MAX
from spark_ledger.limits.entries import CONFIRMATIONS_PER_MESSAGE
from spark_ledger.types import BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire.codec import status_from_wire

Ask: TypeAlias = Callable[
    [pb.WriteLastConfirmedRequest, float], Awaitable[pb.WriteLastConfirmedResponse | BookieStatus]
]
"""Makes the call, within so many seconds: the answer, or why there is none."""


class _Telling(NamedTuple):
    """One ledger that is to be told, and who waits for the bookie's answer."""

    ledger_id: LedgerId
    last_add_confirmed: EntryId
    access_key: bytes
    timeout_s: float
    answer: asyncio.Future[BookieStatus]


class Confirmations:
    """The tellings to one bookie. Belongs to the loop that made it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Telling] = deque()
        self._is_due = False
        self._calls: set[asyncio.Task[None]] = set()
        self._together = CONFIRMATIONS_PER_MESSAGE
        """How many ledgers share a call."""

    def tell(
        self,
        ledger_id: LedgerId,
        last_add_confirmed: EntryId,
        *,
        access_key: bytes,
        timeout_s: float,
    ) -> asyncio.Future[BookieStatus]:
        """Tell the bookie; a future of what it says."""
        answer: asyncio.Future[BookieStatus] = self._loop.create_future()
        self._waiting.append(_Telling(ledger_id, last_add_confirmed, access_key, timeout_s, answer))
        self._look_again()
        return answer

    async def close(self) -> None:
        """Wait for the calls that are on their way: they end with the connection."""
        while self._calls:
            await asyncio.wait(self._calls)

    def _look_again(self) -> None:
        if self._waiting and not self._is_due:  # once for all of this turn
            self._is_due = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        while self._waiting and len(self._calls) < CONFIRMATION_CALLS_MAX:
            tellings: list[_Telling] = []
            while self._waiting and len(tellings) < self._together:
                telling = self._waiting.popleft()
                if not telling.answer.done():  # else who asked has gone, as a writer that closed
                    tellings.append(telling)
            if not tellings:
                break
            call = self._loop.create_task(self._tell_all(tellings))
            self._calls.add(call)
            call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._look_again()

    async def _tell_all(self, tellings: list[_Telling]) -> None:
        try:
            answer = await self._ask(_request(tellings), max(each.timeout_s for each in tellings))
        except asyncio.CancelledError:
            for each in tellings:
                each.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - handed to whoever asked
            for each in tellings:
                if not each.answer.done():
                    each.answer.set_exception(error)
            return
        if isinstance(answer, BookieStatus):
            statuses = [answer] * len(tellings)
        elif len(answer.more) >= len(tellings):  # it speaks of ledgers that it was not told of
            statuses = [BookieStatus.IO_ERROR] * len(tellings)
        else:
            statuses = [status_from_wire(answer.status), *map(status_from_wire, answer.more)]
            if len(statuses) < len(tellings):
                # It is of an older version, and has seen the first only. A newer one may come in
                # its place, so a call that was answered in full is tried with twice as many.
                self._together = 1
                self._waiting.extendleft(reversed(tellings[len(statuses) :]))
            else:
                self._together = min(2 * self._together, CONFIRMATIONS_PER_MESSAGE)
        for each, status in zip(tellings, statuses, strict=False):
            if not each.answer.done():  # else who asked has gone
                each.answer.set_result(status)


def _request(tellings: list[_Telling]) -> pb.WriteLastConfirmedRequest:
    first, *others = tellings
    request = pb.WriteLastConfirmedRequest(
        ledger_id=first.ledger_id,
        last_add_confirmed=first.last_add_confirmed,
        access_key=first.access_key,
    )
    for each in others:
        request.more.add(
            ledger_id=each.ledger_id,
            last_add_confirmed=each.last_add_confirmed,
            access_key=each.access_key,
        )
    return request
