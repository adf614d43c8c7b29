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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_ledger.bookie_api import Refusal
from spark_ledger.limits import (
    BOOKIE_APPEND_STREAMS_MAX,
    BOOKIE_CONFIRMS_MAX,
    BOOKIE_CONNECTION_SHARE,
    BOOKIE_DESCRIBES_MAX,
    BOOKIE_FENCES_MAX,
    BOOKIE_LISTS_MAX,
    BOOKIE_LONG_POLLS_MAX,
    BOOKIE_READS_MAX,
    BOOKIE_RECEIVING_MAX,
)
from spark_ledger.types import BookieStatus


class Kind(Enum):
    """What a call wants."""

    APPEND = "append streams"
    FENCE = "fences"
    READ = "reads"
    POLL = "tail requests"
    CONFIRM = "questions about the last add confirmed"
    LIST = "lists of entries"
    DESCRIBE = "descriptions"


BOUNDS: Final = {
    Kind.APPEND: BOOKIE_APPEND_STREAMS_MAX,
    Kind.FENCE: BOOKIE_FENCES_MAX,
    Kind.READ: BOOKIE_READS_MAX,
    Kind.POLL: BOOKIE_LONG_POLLS_MAX,
    Kind.CONFIRM: BOOKIE_CONFIRMS_MAX,
    Kind.LIST: BOOKIE_LISTS_MAX,
    Kind.DESCRIBE: BOOKIE_DESCRIBES_MAX,
}
"""Calls at once."""


class CallLimits:
    """Counts the calls that run, by kind and connection."""

    def __init__(self) -> None:
        self._running: Counter[Kind] = Counter()
        self._of_connection: Counter[tuple[Kind, str]] = Counter()
        self._receiving: dict[asyncio.Task[object], None] = {}  # the oldest first
        self.refused: Counter[Kind] = Counter()
        """Since the start, for metrics."""

    @contextmanager
    def admitted(self, kind: Kind, connection: str) -> Iterator[Refusal | None]:
        """Count a call while it runs; yields why it must not, or None."""
        key = kind, connection
        running, own = self._running[kind], self._of_connection[key]
        bound = BOUNDS[kind]
        if running >= bound or own >= max(1, bound // BOOKIE_CONNECTION_SHARE):
            self.refused[kind] += 1
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

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Count a call whose request is on its way. Of too many the oldest is cut, not the newest
        refused: an honest request comes with its call."""
        task = current_task()
        self._receiving[task] = None
        if len(self._receiving) > BOOKIE_RECEIVING_MAX:
            oldest = next(iter(self._receiving))
            del self._receiving[oldest]
            oldest.cancel()
        try:
            yield
        finally:
            self._receiving.pop(task, None)


def current_task() -> asyncio.Task[object]:
    """The task of the call."""
    task = asyncio.current_task()
    assert task is not None, "grpc runs a handler in a task of its own"
    return task


@dataclass(eq=False, slots=True)
class Answer:
    """A part of an answer on its way to its client. ``since`` is when it was handed to gRPC."""

    byte_count: int
    since: float
    task: asyncio.Task[object]
    is_cut: bool = False


class AnswerRoom:
    """Bytes that were read for clients and are not sent yet: reading waits while they are many.

    A client that does not read its answer holds its bytes. When others wait for room, the ones
    that have not read for ``grace_s`` are cut, the longest first; ``since`` says for how long.
    """

    def __init__(self, bytes_max: int, grace_s: float) -> None:
        self._bytes_max = bytes_max
        self._grace_s = grace_s
        self._reading = 0  # parts that are being read, of which the size is not known yet
        self._held: dict[Answer, None] = {}  # in the order of ``since``
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.bytes_held = 0
        """For metrics."""
        self.cut = 0
        """Answers that were cut since the start, for metrics."""

    async def reserve(self) -> None:
        """Return once one more part may be read; ``hold`` or ``give_back`` must follow."""
        if self._waiting or not self._has_room():
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self._watch()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back()  # it was our turn
                raise
        else:
            self._reading += 1

    def give_back(self) -> None:
        """Nothing was read."""
        self._reading -= 1
        self._let_in()

    @contextmanager
    def hold(self, byte_count: int) -> Iterator[Answer]:
        """Count what was read while it is written."""
        self._reading -= 1
        answer = Answer(byte_count, asyncio.get_running_loop().time(), current_task())
        self._held[answer] = None
        self.bytes_held += byte_count
        try:
            yield answer
        finally:
            del self._held[answer]
            self.bytes_held -= byte_count
            self._let_in()

    def cut_unread(self, older_than_s: float) -> int:
        """Cut the answers that were not read for so long; how many."""
        now = asyncio.get_running_loop().time()
        old = [a for a in self._held if now - a.since >= older_than_s and not a.is_cut]
        for answer in old:
            self._cut(answer)
        return len(old)

    def _has_room(self) -> bool:
        return self.bytes_held + self._reading * _PART_BYTES_EXPECTED <= self._bytes_max

    def _let_in(self) -> None:
        while self._waiting and self._has_room():
            turn = self._waiting.popleft()
            if not turn.done():  # else its client has gone
                self._reading += 1
                turn.set_result(None)

    def _watch(self) -> None:
        """Look after a while whether those who hold the room are reading."""
        if self._timer is None and self._held:
            loop = asyncio.get_running_loop()
            oldest = next(iter(self._held))
            self._timer = loop.call_at(max(oldest.since + self._grace_s, loop.time()), self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        now = asyncio.get_running_loop().time()
        for answer in self._held:
            if not answer.is_cut and now - answer.since >= self._grace_s:
                self._cut(answer)
                break
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LOOK_AGAIN_S, self._look)

    def _cut(self, answer: Answer) -> None:
        answer.is_cut = True
        self.cut += 1
        answer.task.cancel()


_PART_BYTES_EXPECTED: Final = 1024 * 1024
"""What a part has that is not read yet (``READ_CHUNK_BYTES_TARGET``); one large entry has more."""

_LOOK_AGAIN_S: Final = 0.02
"""Between two cuts: room for a large part may do for many small ones."""
