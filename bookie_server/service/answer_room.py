"""Room for answers: how much a bookie reads ahead of its readers, and who reads next.

Everything here belongs to the service thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookie_server.service.calls import Call, HangsUp, current_call
from bookie_server.service.guard.hanging_up import Why
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX, READ_CHUNK_BYTES_TARGET


class NoTurnError(Exception):
    """Others who have fewer reads than the call's connection go first: its client asks later."""


class MakesWayError(Exception):
    """Others need what the call holds while its disk keeps it waiting: it ends with what it has."""


@dataclass(eq=False, slots=True)
class Answer:
    """What a call has read and its client has not. ``since`` is when the last part was handed to
    gRPC, which keeps up to a part more than it says. ``waits``: for its next turn, so it is not its
    client that keeps it. ``asks``: nor is it while a disk is asked, which this ends."""

    connection: str
    byte_count: int = 0
    since: float = 0.0
    is_cut: bool = False
    waits: bool = False
    asks: asyncio.Timeout | None = None


class _Turn(NamedTuple):
    """A call that waits for its first part."""

    future: asyncio.Future[None]
    since: float


class AnswerRoom:
    """Bytes that were read for clients and are not sent yet: reading waits while they are many.

    A client that does not read its answer holds its bytes until its call ends. When others wait
    for room, the connection of the one that was not read from for longest ends, if that is
    ``grace_s`` or more; after ``unread_s`` it ends in any case. Of one whose disk keeps it waiting
    only the call ends, so that its client reads what there is, and asks for the rest.

    Nobody says when a client has taken a part, so it counts until the next one is written. Calls
    that have begun therefore go on before new ones begin, each in place of its last part: were they
    to wait behind those, all would hold a part, none would get another, and honest ones were cut.
    Of new ones that of the connection that holds least begins: behind nobody's hundreds. Of those
    that hold as much the oldest begins, or the newest for room that a cut gave while the oldest
    waits for long. Behind a hundred connections that are cut and come again each would wait until
    its time is over, and then be the last of the row again (Maurer, "Fail at Scale", ACM Queue
    2015: adaptive LIFO). Room that readers give back is not for the newest: that would be always
    the one who was just served, and asks for the rest.
    """

    def __init__(
        self, bytes_max: int, hang_up: HangsUp, *, grace_s: float, unread_s: float
    ) -> None:
        self._hang_up = hang_up
        self._bytes_max = bytes_max
        self._grace_s = grace_s
        self._unread_s = unread_s
        self._reading = 0  # parts that are being read, of which the size is not known yet
        self._expected = _COPIES * ENTRY_PAYLOAD_BYTES_MAX  # by one that is read: like the last
        self._lent: set[Call] = set()  # of these, those for which others read meanwhile
        self._held: dict[Call, Answer] = {}
        self._begun: deque[tuple[asyncio.Future[None], Answer]] = deque()  # wait for the next part
        self._waiting: dict[str, deque[_Turn]] = {}  # for their first
        self._calls_of: Counter[str] = Counter()  # of a connection, that hold something
        self._writing = 0  # parts
        self._newest_first = False  # there is room because somebody was cut
        self._timer: asyncio.TimerHandle | None = None
        self.bytes_held = 0
        """For metrics."""

    async def reserve(self, connection: str) -> None:
        """Return once one more part may be read; ``hold`` or ``release`` must follow. Raises
        NoTurnError."""
        answer = self._held.get(current_call())
        is_first = not (self._begun if answer else self._begun or self._waiting)
        if is_first and self._has_room(answer):
            self._reading += 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if answer is None:
            self._waiting.setdefault(connection, deque()).append(_Turn(turn, loop.time()))
        else:
            answer.waits = True
            self._begun.append((turn, answer))
        self._look_in(_LOOK_AGAIN_S)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()  # it was our turn
            self._leave(connection, turn)
            raise
        finally:
            if answer is not None:
                answer.waits, answer.since = False, loop.time()

    @asynccontextmanager
    async def asking_disk(self) -> AsyncIterator[None]:
        """While a disk is asked for the next part. Raises MakesWayError."""
        answer = self._held.get(current_call())
        if answer is None:
            yield
            return
        timeout = asyncio.timeout(None)
        try:
            async with timeout as answer.asks:
                try:
                    yield
                finally:
                    answer.asks, answer.since = None, asyncio.get_running_loop().time()
        except TimeoutError as error:
            if timeout.expired():
                raise MakesWayError from error
            raise

    def make_way(self, own: int) -> bool:
        """Have a call that waits for its first part end, for a connection that has ``own`` of them:
        the newest of the connection of which most wait, if it has more than that one would then
        have. False: there is none."""
        turns = max(self._waiting.values(), key=len, default=deque())
        while len(turns) >= own + 2:
            turn = turns.pop().future
            if not turn.done():  # else its client has gone
                turn.set_exception(NoTurnError("others who have fewer reads go first: ask later"))
                return True
        return False

    @property
    def new_calls_wait(self) -> bool:
        """Calls wait for their first part."""
        return bool(self._waiting)

    def close(self) -> None:
        """No call is open any more: look after none."""
        if self._timer is not None:
            self._timer.cancel()

    def release(self) -> None:
        """Nothing was read."""
        self._has_read(current_call())
        self._let_in()

    def lend(self, call: Call) -> None:
        """Its disk keeps a call waiting that has reserved: others have its place meanwhile. What it
        reads counts once it is there: few such run at once (``ReadThreads``)."""
        if call not in self._lent:
            self._lent.add(call)
            self._reading -= 1
            self._let_in()

    def take_back(self) -> bool:
        """Whether the call that runs, and waits for a thread no more, has room as before."""
        call = current_call()
        if call in self._lent:
            if not self._has_room(self._held.get(call)):
                return False
            self._lent.remove(call)
            self._reading += 1
        return True

    def _has_read(self, call: Call) -> None:
        if call in self._lent:
            self._lent.remove(call)
        else:
            self._reading -= 1

    @contextmanager
    def hold(self, byte_count: int, connection: str) -> Iterator[None]:
        """Count what was read, while it is written, and until the next part is or the call ends."""
        call = current_call()
        self._has_read(call)
        byte_count *= _COPIES
        self._expected = max(byte_count, self._expected * 7 // 8, _PART_BYTES_EXPECTED)
        answer = self._held.get(call)
        if answer is None:
            answer = self._held[call] = Answer(connection)
            self._calls_of[connection] += 1
            call.add_done_callback(self._forget)
        before = answer.byte_count
        answer.byte_count += byte_count
        self.bytes_held += byte_count
        answer.since = asyncio.get_running_loop().time()
        if self._timer is None:
            self._look_in(self._unread_s / 4)
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1
        answer.byte_count -= before
        self.bytes_held -= before
        self._let_in()

    def cut_unread(self, older_than_s: float) -> int:
        """End the connections of calls that were not read from for so long, or such a call if it is
        its disk that keeps it; how many calls."""
        now = asyncio.get_running_loop().time()
        old = [
            call
            for call, answer in self._held.items()
            if now - answer.since >= older_than_s and not (answer.is_cut or answer.waits)
        ]
        for call in old:
            self._cut(call)
        return len(old)

    def _has_room(self, answer: Answer | None) -> bool:
        """Whether a call may read its next part, in place of what it holds. One part may always be
        read, whatever its size: if nobody holds anything, or none of those that do is at work."""
        own = 0 if answer is None else answer.byte_count
        wanted = self.bytes_held - own + (self._reading + 1) * self._expected
        if wanted <= self._bytes_max:
            return True
        at_work = self._reading + self._writing
        return not at_work and (answer is not None or not self.bytes_held)

    def _let_in(self) -> None:
        """Let those go on for whom there is room, and forget those whose clients have gone."""
        while self._begun and self._is_next(*self._begun[0]):
            self._admit(self._begun.popleft()[0])
        while self._waiting and not self._begun:
            connection = self._next_connection()
            if not self._is_next(self._waiting[connection][0].future, None):
                return
            turns = self._waiting.pop(connection)
            self._admit(turns.popleft().future)
            if turns:
                self._waiting[connection] = turns  # behind those that hold as much

    def _leave(self, connection: str, turn: asyncio.Future[None]) -> None:
        """Its client has gone: it would be the oldest that waits for as long as others come."""
        left = [each for each in self._waiting.get(connection, ()) if each.future is not turn]
        if left:
            self._waiting[connection] = deque(left)
        else:
            self._waiting.pop(connection, None)

    def _next_connection(self) -> str:
        least = min(map(self._calls_of.__getitem__, self._waiting))
        equal = [each for each in self._waiting if self._calls_of[each] == least]
        oldest = self._waiting[equal[0]][0]
        is_long = asyncio.get_running_loop().time() - oldest.since >= _LONG_ROW_S
        if not (is_long and self._newest_first):
            return equal[0]
        return max(equal, key=lambda each: self._waiting[each][-1].since)

    def _is_next(self, turn: asyncio.Future[None], answer: Answer | None) -> bool:
        return turn.done() or self._has_room(answer)

    def _admit(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():  # else its client has gone
            self._reading += 1
            turn.set_result(None)

    def _forget(self, call: Call) -> None:
        answer = self._held.pop(call)
        self.bytes_held -= answer.byte_count
        self._calls_of[answer.connection] -= 1
        if not self._calls_of[answer.connection]:
            del self._calls_of[answer.connection]
        self._newest_first = answer.is_cut
        self._let_in()
        self._newest_first = False

    def _look_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        """Cut off one: room for a large part may do for many small ones."""
        self._timer = None
        self._let_in()
        if not self._held:
            return
        now = asyncio.get_running_loop().time()
        others_wait = bool(self._begun or self._waiting)
        bound_s = self._grace_s if others_wait else self._unread_s
        old = [
            (answer.since, id(call), call)
            for call, answer in self._held.items()
            if now - answer.since >= bound_s and not (answer.is_cut or answer.waits)
        ]
        if old:
            self._cut(min(old)[2])
        self._look_in(_LOOK_AGAIN_S if others_wait or old else self._unread_s / 4)

    def _cut(self, call: Call) -> None:
        answer = self._held[call]
        if answer.asks is not None:
            answer.since = asyncio.get_running_loop().time()  # from here on it is its client
            answer.asks.reschedule(answer.since)
            answer.asks = None
            return
        answer.is_cut = True
        self._hang_up(answer.connection, Why.UNREAD)


_COPIES: Final = 2
"""The message that is being written, and gRPC's copy."""

_PART_BYTES_EXPECTED: Final = _COPIES * READ_CHUNK_BYTES_TARGET
"""What a part has that is not read yet; one large entry has more."""

_LONG_ROW_S: Final = 0.5
"""Readers that take their parts let the next one begin within milliseconds."""

_LOOK_AGAIN_S: Final = 0.02
"""Between two looks while somebody waits."""
