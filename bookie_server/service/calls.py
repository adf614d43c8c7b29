"""How many calls of each kind a bookie serves at once, and how much it reads ahead of its readers.

Kinds have bounds of their own, so that many of one kind never refuse another: a flood of tail
requests leaves appends, fences and reads as they are. Within a kind no connection may take all. A
call above a bound is answered TOO_MANY_REQUESTS at once: nothing was decided, its client asks
again later.

Everything here belongs to the service thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from bookie_server.service.guard.hanging_up import Why
from spark_ledger.bookie_api import Refusal
from spark_ledger.limits.bookie import (
    BOOKIE_APPEND_STREAMS_MAX,
    BOOKIE_CONFIRMS_MAX,
    BOOKIE_CONNECTION_SHARE,
    BOOKIE_DESCRIBES_MAX,
    BOOKIE_FENCES_MAX,
    BOOKIE_HEALTH_WATCHES_MAX,
    BOOKIE_LEFTOVER_OF_MANY_S,
    BOOKIE_LEFTOVER_S,
    BOOKIE_LEFTOVERS_AT_ONCE_MAX,
    BOOKIE_LEFTOVERS_MAX,
    BOOKIE_LEFTOVERS_OF_ONE_MAX,
    BOOKIE_LISTS_MAX,
    BOOKIE_LONG_POLLS_MAX,
    BOOKIE_READS_MAX,
    BOOKIE_RECEIVING_MAX,
)
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX, READ_CHUNK_BYTES_TARGET
from spark_ledger.types import BookieStatus

Call: TypeAlias = "asyncio.Task[Any]"
"""The task of a call's handler: it is done once the client has read the answer, or has gone."""

HangsUp: TypeAlias = Callable[[str, Why], None]
"""Ends the connection of a peer, and with it all of its calls."""


MakesWay: TypeAlias = Callable[[int], bool]
"""Has a call end for a connection that has so many; whether there is one."""


def current_call() -> Call:
    """The call whose handler runs."""
    task = asyncio.current_task()
    assert task is not None, "grpc runs a handler in a task"
    return task


class Kind(Enum):
    """What a call wants."""

    APPEND = "append streams"
    FENCE = "fences"
    READ = "reads"
    POLL = "tail requests"
    CONFIRM = "questions about the last add confirmed"
    LIST = "lists of entries"
    DESCRIBE = "descriptions"
    HEALTH = "watches of the health"


BOUNDS: Final = {
    Kind.APPEND: BOOKIE_APPEND_STREAMS_MAX,
    Kind.FENCE: BOOKIE_FENCES_MAX,
    Kind.READ: BOOKIE_READS_MAX,
    Kind.POLL: BOOKIE_LONG_POLLS_MAX,
    Kind.CONFIRM: BOOKIE_CONFIRMS_MAX,
    Kind.LIST: BOOKIE_LISTS_MAX,
    Kind.DESCRIBE: BOOKIE_DESCRIBES_MAX,
    Kind.HEALTH: BOOKIE_HEALTH_WATCHES_MAX,
}
"""Calls at once."""


class CallLimits:
    """Counts the calls that run, by kind and connection."""

    def __init__(self, hang_up: HangsUp, refused: Counter[str]) -> None:
        """``refused`` counts the calls above the bound of their kind, for metrics."""
        self._hang_up = hang_up
        self._refused = refused
        self._running: Counter[Kind] = Counter()
        self._of_connection: Counter[tuple[Kind, str]] = Counter()
        self._receiving: dict[Call, tuple[float, str]] = {}  # since when, from whom
        self._receiving_from: Counter[str] = Counter()  # how many of these, by connection
        self.makes_way: dict[Kind, MakesWay] = {}
        """Kinds of which some calls only wait: one of them may end for another."""

    @contextmanager
    def admitted(self, kind: Kind, connection: str) -> Iterator[Refusal | None]:
        """Count a call while it runs; yields why it must not, or None. Where all run that may, one
        that only waits ends for a connection that has fewer, if there is one."""
        key = kind, connection
        running, own = self._running[kind], self._of_connection[key]
        bound = BOUNDS[kind]
        is_greedy = own >= max(1, bound // BOOKIE_CONNECTION_SHARE)
        if is_greedy or running >= bound:
            self._refused[kind.name.lower()] += 1
        if is_greedy or (running >= bound and not self._makes_way(kind, own)):
            message = f"{running} {kind.value} are served here, {own} of them for this connection"
            yield Refusal(BookieStatus.TOO_MANY_REQUESTS, f"{message}: ask again later")
            return
        self._running[kind] += 1
        self._of_connection[key] += 1
        try:
            yield None
        finally:
            self._running[kind] -= 1
            self._of_connection[key] -= 1
            if not self._of_connection[key]:
                del self._of_connection[key]

    def _makes_way(self, kind: Kind, own: int) -> bool:
        makes_way = self.makes_way.get(kind)
        return makes_way is not None and makes_way(own)

    @contextmanager
    def receiving(self, connection: str) -> Iterator[None]:
        """Count a call whose request is on its way. Of too many the oldest one's connection ends,
        and the newest is not refused: an honest request comes with its call. One that has a share
        of them all ends before: each of its calls costs everybody else time when it ends."""
        call = current_call()
        self._receiving[call] = asyncio.get_running_loop().time(), connection
        self._receiving_from[connection] += 1
        if self._receiving_from[connection] > BOOKIE_RECEIVING_MAX // BOOKIE_CONNECTION_SHARE:
            self._hang_up(connection, Why.SILENT)
        elif len(self._receiving) > BOOKIE_RECEIVING_MAX:
            _since, silent = self._receiving.pop(next(iter(self._receiving)))
            self._hang_up(silent, Why.SILENT)
        try:
            yield
        finally:
            self._receiving.pop(call, None)
            self._receiving_from[connection] -= 1
            if not self._receiving_from[connection]:
                del self._receiving_from[connection]

    def receiving_for(self, seconds: float) -> set[str]:
        """Connections with a request that has been on its way for so long."""
        before = asyncio.get_running_loop().time() - seconds
        old: set[str] = set()
        for since, connection in self._receiving.values():  # the oldest first
            if since > before:
                break
            old.add(connection)
        return old


class Leftovers:
    """Calls that are answered, and whose clients have not read the answer: gRPC keeps them.
    Of too many the connections of the oldest end, once they had time to be read: thousands of long
    polls end in one turn of the loop when an entry is confirmed, and none of them is to blame.
    A connection that leaves many ends sooner: all its calls end in one turn of the loop too."""

    def __init__(self, hang_up: HangsUp) -> None:
        self._hang_up = hang_up
        self._calls: dict[Call, tuple[float, str]] = {}  # since when, whose; the oldest first
        self._of: dict[str, dict[Call, float]] = {}  # the same by connection
        self._doubted: set[str] = set()  # connections that are looked at again in a moment
        self._timer: asyncio.TimerHandle | None = None

    def handler_ended(self, connection: str) -> None:
        """The handler that runs has nothing more to do, but to wait until its answer is taken."""
        call = current_call()
        if call in self._calls:
            return
        loop = asyncio.get_running_loop()
        self._calls[call] = loop.time(), connection
        self._of.setdefault(connection, {})[call] = loop.time()
        call.add_done_callback(self._forget)
        if self._leaves_many(connection) and connection not in self._doubted:
            # Once more, a turn later: if the loop has stood still it has not heard what was read.
            self._doubted.add(connection)
            loop.call_later(_LOOK_AGAIN_S, self._look_at, connection)
        if len(self._calls) > BOOKIE_LEFTOVERS_AT_ONCE_MAX:
            self._cut_oldest()
        if len(self._calls) > BOOKIE_LEFTOVERS_MAX and self._timer is None:
            self._timer = loop.call_later(BOOKIE_LEFTOVER_S, self._look)

    def _leaves_many(self, connection: str) -> bool:
        own = self._of.get(connection, {})
        if len(own) <= BOOKIE_LEFTOVERS_OF_ONE_MAX:
            return False
        waits_s = asyncio.get_running_loop().time() - next(iter(own.values()))
        return waits_s >= BOOKIE_LEFTOVER_OF_MANY_S

    def _look_at(self, connection: str) -> None:
        self._doubted.discard(connection)
        if self._leaves_many(connection):
            self._hang_up(connection, Why.UNREAD)

    def _look(self) -> None:
        """Cut those that had time enough, some at a time, for as long as there are too many."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for _ in range(_CUT_AT_ONCE):
            if len(self._calls) <= BOOKIE_LEFTOVERS_MAX:
                return
            since, _connection = next(iter(self._calls.values()))
            left_s = since + BOOKIE_LEFTOVER_S - loop.time()
            if left_s > 0:
                break
            self._cut_oldest()
        self._timer = loop.call_later(max(_LOOK_AGAIN_S, left_s), self._look)

    def _cut_oldest(self) -> None:
        call = next(iter(self._calls))
        _since, connection = self._calls[call]
        self._forget(call)
        self._hang_up(connection, Why.UNREAD)

    def _forget(self, call: Call) -> None:
        found = self._calls.pop(call, None)
        if found is not None:
            own = self._of[found[1]]
            del own[call]
            if not own:
                del self._of[found[1]]


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


class AnswerRoom:
    """Bytes that were read for clients and are not sent yet: reading waits while they are many.

    A client that does not read its answer holds its bytes until its call ends. When others wait
    for room, the connection of the one that was not read from for longest ends, if that is
    ``grace_s`` or more; after ``unread_s`` it ends in any case. Of one whose disk keeps it waiting
    only the call ends, so that its client reads what there is, and asks for the rest.

    Nobody says when a client has taken a part, so it counts until the next one is written. Calls
    that have begun therefore go on before new ones begin, each in place of its last part: were they
    to wait behind those, all would hold a part, none would get another, and honest ones were cut.
    Of new ones that of the connection that holds least begins: behind nobody's hundreds.
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
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # for their first
        self._calls_of: Counter[str] = Counter()  # of a connection, that hold something
        self._writing = 0  # parts
        self._timer: asyncio.TimerHandle | None = None
        self.bytes_held = 0
        """For metrics."""

    async def reserve(self, connection: str) -> None:
        """Return once one more part may be read; ``hold`` or ``release`` must follow."""
        answer = self._held.get(current_call())
        is_first = not (self._begun if answer else self._begun or self._waiting)
        if is_first and self._has_room(answer):
            self._reading += 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if answer is None:
            self._waiting.setdefault(connection, deque()).append(turn)
        else:
            answer.waits = True
            self._begun.append((turn, answer))
        self._look_in(_LOOK_AGAIN_S)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # it was our turn
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
            connection = min(self._waiting, key=self._calls_of.__getitem__)
            if not self._is_next(self._waiting[connection][0], None):
                return
            turns = self._waiting.pop(connection)
            self._admit(turns.popleft())
            if turns:
                self._waiting[connection] = turns  # behind those that hold as much

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
        self._let_in()

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

_LOOK_AGAIN_S: Final = 0.02
"""Between two looks while somebody waits."""

_CUT_AT_ONCE: Final = 64
"""Calls whose answers nobody reads are cut in such numbers, and others have a turn in between."""
