"""Keeps the memory of the process within its budget, whatever its clients do.

Everything that is received or answered is bounded where it is counted. What gRPC holds by itself is
not: halves of messages, windows of connections, answers that nobody reads. So the guard looks at
what the kernel says that the process has, and when it comes near the budget the service hangs
up on clients whose calls hold memory while they wait for them.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Final

from bookie_server.service.guard.beat import call_on_beat
from bookie_server.service.guard.hanging_up import NOTHING_LEFT
from bookie_server.service.guard.log_bound import LogBound
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import (
    BOOKIE_CALL_BYTES_MAX,
    BOOKIE_MEMORY_BYTES_PER_S,
    BOOKIE_MEMORY_HIGH,
    BOOKIE_MEMORY_INTERVAL_S,
    BOOKIE_MEMORY_INTERVAL_S_MAX,
    BOOKIE_MEMORY_REST_S,
)

logger = logging.getLogger(__name__)
logger.addFilter(LogBound())  # a look that fails is repeated forty times a second

_TRIM_PAUSE_S: Final = 0.2
"""After freed memory was given back, at least: meanwhile it is used again, and nobody waits for the
allocator, which is locked for as long as the kernel takes pages back."""

_TRIM_PAUSE_SHARE: Final = 25.0
"""And so many times as long as that took. It may not help now, for calls hold what there is, and
help in a moment, when their clients are gone: a bookie that waited for seconds refused the next
flood's neighbours for what the last one had left."""

_TRIM_PAUSE_SHARE_NEAR: Final = 4.0
"""So many times while hardly any of the budget is left. Calls whose headers are too long leave
freed memory behind at 100 MiB a second, and a slow look at it put off the next one for seconds."""

_NEAR: Final = 0.9
"""Share of the budget from which on hardly any is left."""

_LET_GO_S: Final = 0.02
"""gRPC frees the memory of connections that were ended by then."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STATM_BYTES: Final = 256
"""Seven numbers."""


def anonymous_bytes() -> int:
    """Memory of this process that belongs to no file; pages of the index are the kernel's cache."""
    _size, resident, shared = os.pread(_statm(os.getpid()), _STATM_BYTES, 0).split()[:3]
    return (int(resident) - int(shared)) * _PAGE_BYTES


@cache
def _statm(pid: int) -> int:
    """Open for good: a bookie that does nothing else would mostly open and close it."""
    return os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)


def trim() -> None:
    """Give freed memory back to the kernel."""
    ctypes.CDLL(None).malloc_trim(0)


def look_again_s(left_bytes: float) -> float:
    """How long nobody needs to look at the memory: at most half of what is left can be taken."""
    in_time_s = left_bytes / 2 / BOOKIE_MEMORY_BYTES_PER_S
    return min(max(in_time_s, BOOKIE_MEMORY_INTERVAL_S), BOOKIE_MEMORY_INTERVAL_S_MAX)


class MemoryGuard:
    """Looks at the memory now and then. Everything here belongs to the service thread."""

    def __init__(
        self,
        budget_bytes: int,
        relieve: Callable[[], Awaitable[int]],
        on_short: Callable[[bool], None],
        *,
        calls: Callable[[], int],
        used: Callable[[], int] = anonymous_bytes,
        trim: Callable[[], None] = trim,
    ) -> None:
        """``relieve`` hangs up on clients that hold memory and keep calls waiting; how
        many. ``on_short`` is told whenever memory becomes short, and when it is no longer.
        ``calls``: how many are open; of each that begins, and each message, ``sign`` is told."""
        self._budget_bytes = budget_bytes
        self._relieve = relieve
        self._on_short = on_short
        self._is_short = False
        self._calls = calls
        self._had_sign = True  # since the last look
        self._is_resting = False
        self._used = used
        self._trim = trim
        self._trimmed_at = float("-inf")
        self._trim_took_s = 0.0
        self._cut_unsaid = 0  # clients that the log does not have yet
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.cut = 0
        """Clients that it has hung up on since the start."""

    def start(self) -> None:
        """Watch from now on."""
        self._look_again(0.0)

    def stop(self) -> None:
        """Watch no more."""
        for pending in (self._timer, self._task):
            if pending is not None:
                pending.cancel()

    @property
    def _high_bytes(self) -> float:
        return BOOKIE_MEMORY_HIGH * self._budget_bytes

    def sign(self) -> None:
        """Somebody asks for something: memory may be taken from now on."""
        self._had_sign = True
        if self._is_resting:
            assert self._timer is not None, "a guard rests until a time"
            self._timer.cancel()
            self._look_again(BOOKIE_MEMORY_INTERVAL_S)

    def _look_again(self, delay_s: float) -> None:
        self._is_resting = False
        self._timer = call_on_beat(delay_s, self._on_time)

    def _on_time(self) -> None:
        """Look, and again before memory can be short. Not a task: a bookie that does nothing else
        would be busy with the two turns of the loop that a sleep takes."""
        try:
            used = self._used()
        except OSError as error:  # without a free descriptor the kernel cannot be asked
            self._failed(error)
            return
        is_short = used > self._high_bytes
        if is_short != self._is_short:
            self._is_short = is_short
            self._on_short(is_short)
        if is_short:
            self._task = asyncio.get_running_loop().create_task(self._make_room())
        else:
            self._look_or_rest(self._high_bytes - used)

    def _look_or_rest(self, left_bytes: float) -> None:
        """Nobody takes memory without a call, and of each call gRPC takes in so much at most."""
        has_room = self._calls() * BOOKIE_CALL_BYTES_MAX <= left_bytes / 2
        if has_room and not self._had_sign:
            self._look_again(BOOKIE_MEMORY_REST_S)
            self._is_resting = True
        else:
            self._look_again(look_again_s(left_bytes))
        self._had_sign = False

    async def _make_room(self) -> None:
        try:
            await self.look()
        except NOTHING_LEFT as error:
            self._failed(error)
        else:
            self._look_again(BOOKIE_MEMORY_INTERVAL_S)

    def _failed(self, error: Exception) -> None:
        logger.warning("memory cannot be looked at: %s", error)
        self._look_again(BOOKIE_MEMORY_INTERVAL_S)

    async def look(self) -> None:
        """Make room."""
        cut = await self._relieve()
        loop = asyncio.get_running_loop()
        self.cut += cut
        self._cut_unsaid += cut
        before = self._used()
        if loop.time() >= self._trim_at(before):
            if cut:
                await asyncio.sleep(_LET_GO_S)
            began = loop.time()
            await loop.run_in_executor(None, self._trim)
            after, self._trimmed_at = self._used(), loop.time()
            self._trim_took_s = self._trimmed_at - began
            if self._cut_unsaid:
                cut, self._cut_unsaid = self._cut_unsaid, 0
                logger.warning(
                    "memory is near its budget (%d of %d MiB): hung up on %d clients that kept "
                    "calls waiting, %d MiB now",
                    before // MIB,
                    self._budget_bytes // MIB,
                    cut,
                    after // MIB,
                )

    def _trim_at(self, used: int) -> float:
        """When freed memory may be given back again."""
        is_near = used > _NEAR * self._budget_bytes
        share = _TRIM_PAUSE_SHARE_NEAR if is_near else _TRIM_PAUSE_SHARE
        return self._trimmed_at + max(_TRIM_PAUSE_S, share * self._trim_took_s)
