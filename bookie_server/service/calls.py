"""How many calls of each kind a bookie serves at once, and which it ends for being left unread.

Kinds have bounds of their own, so that many of one kind never refuse another: a flood of tail
requests leaves appends, fences and reads as they are. Within a kind no connection may take all. A
call above a bound is answered TOO_MANY_REQUESTS at once: nothing was decided, its client asks
again later.

Everything here belongs to the service thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


_LOOK_AGAIN_S: Final = 0.02
"""Between two looks while somebody waits."""

_CUT_AT_ONCE: Final = 64
"""Calls whose answers nobody reads are cut in such numbers, and others have a turn in between."""
