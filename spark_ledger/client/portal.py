"""BlockingPortal: one asyncio loop on a thread of its own, for callers without a loop.

One background thread per process runs it. Callers pass work to the loop and wait. A forked child
makes its own portal and its own connections.

A signal handler and a finalizer run between any two calls of a thread, and may wait for the loop.
So no thread may hold a lock that the loop takes while it calls something. Two exceptions: the first
``get`` of a process makes the portal under a lock; ``concurrent.futures.wait``, ``as_completed``
and ``add_done_callback`` of a future hold its condition, which the loop takes when it tells the
future. A handler that comes there must not wait for the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias, TypeVar

from spark_ledger.errors import ConfigurationError, LedgerClosedError, LedgerError
from spark_ledger.limits.client import PORTAL_STOP_TIMEOUT_S

T = TypeVar("T")
Work: TypeAlias = Coroutine[object, None, T]
"""What runs on the loop for a caller who waits."""
ITERATION_END_TIMEOUT_S: Final = 1.0
"""How long an iterator that is left waits for the end of what it iterates over: milliseconds, but
for one that the garbage collector ends in the middle of something that the loop waits for."""


class BlockingPortal:
    """A loop on a thread of its own. Get the process's one with ``BlockingPortal.get()``.

    Its fields never change once it is made, but for ``is_running``, so any thread may read them.
    """

    _current: BlockingPortal | None = None
    """The portal of this process, or of the parent it was forked from. Set under ``_making``."""
    _making = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        """Belongs to ``_thread``; others use only its ``..._threadsafe`` methods."""
        self.is_running = True
        """False in a forked child, and once the process is ending. A plain flag: each append
        looks at it."""
        self._alone: set[asyncio.Task[None]] = set()
        """Work that nobody waits for. Belongs to the loop."""
        self._thread = threading.Thread(target=self._run, name="spark-ledger", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @classmethod
    def get(cls) -> BlockingPortal:
        """The portal of this process; a child that was forked gets a new one."""
        pid, current = os.getpid(), cls._current  # not under the lock: a handler may connect too
        if current is not None and current._pid == pid:
            return current
        with cls._making:
            if cls._current is None or cls._current._pid != pid:
                cls._current = cls()
            return cls._current

    @classmethod
    def _after_fork_in_child(cls) -> None:
        """Another thread of the parent may have held the lock, and nobody would release it here."""
        cls._making = threading.Lock()
        if cls._current is not None:
            cls._current.is_running = False

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.is_running = False

    def call(self, work: Work[T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises ConfigurationError on the loop's own thread, LedgerClosedError in a forked child and
        at the end of the process, and whatever the work raises.
        """
        try:
            self._check_may_wait()
        except LedgerError:
            work.close()
            raise
        tasks: list[asyncio.Task[T]] = []

        def leave() -> None:
            while tasks:
                tasks.pop().cancel()

        try:
            return self._begin_and_wait(lambda: work, tasks)
        except BaseException:
            # KeyboardInterrupt: do not leave the work running behind
            self.loop.call_soon_threadsafe(leave)
            raise

    def _begin_and_wait(
        self,
        begin: Callable[[], Work[T]],
        tasks: list[asyncio.Task[T]],
        timeout_s: float | None = None,
    ) -> T:
        """As ``call``, with the coroutine made on the loop's thread, its task put into ``tasks``.

        One that is made here is left behind if Ctrl-C comes before the loop has it, and Python
        warns on standard error. Raises Empty after ``timeout_s``; the work goes on.
        """
        self._check_may_wait()
        done: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        """And no concurrent future: who waits for one holds its lock while it calls."""

        def settle(task: asyncio.Task[T]) -> None:
            if not task.cancelled():
                task.exception()  # it was looked at, also if nobody waits any more
            done.put(task)

        def start() -> None:
            task = self.loop.create_task(begin())
            tasks.append(task)
            task.add_done_callback(settle)

        self.loop.call_soon_threadsafe(start)
        task = done.get(timeout=timeout_s)
        try:
            if task.cancelled():
                raise concurrent.futures.CancelledError
            return task.result()
        finally:
            del task  # or the traceback of the error in it would hold it

    def _check_may_wait(self) -> None:
        if self.is_current:
            raise would_deadlock()
        self.check_usable()

    def check_usable(self) -> None:
        """Raises LedgerClosedError where the loop does not run, so that nobody waits for ever:
        in a forked child, and in exit handlers that run after the loop was stopped."""
        if self.is_running:
            return
        if self._pid != os.getpid():
            raise LedgerClosedError(
                "this connection was made before the process forked: connect again in the child"
            )
        raise LedgerClosedError("this process is ending, and its connections with it")

    @property
    def is_current(self) -> bool:
        """True on the loop's own thread, as in a callback of a future: it must not wait."""
        return threading.current_thread() is self._thread

    def iterate(self, iterator: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator; it is closed when this one is."""

        timeout_s: float | None = None
        reading: asyncio.Task[object] | None = None
        """The task that waits for the next item. Belongs to the loop."""

        async def read_next() -> tuple[T] | None:
            nonlocal reading
            reading = asyncio.current_task()
            try:
                return (await anext(iterator),)
            except StopAsyncIteration:
                return None

        async def close() -> None:
            if reading is not None and not reading.done():  # Ctrl-C came while an item was awaited
                reading.cancel()
                await asyncio.wait([reading])
            if isinstance(iterator, AsyncGenerator):
                await iterator.aclose()

        try:
            while (item := self._begin_and_wait(read_next, [])) is not None:
                yield item[0]
        except GeneratorExit:
            # Also from the garbage collector. It comes in the middle of anything, as of a line that
            # is logged, and the loop may wait for a lock of this thread then.
            timeout_s = ITERATION_END_TIMEOUT_S
            raise
        finally:
            if self.is_running and self.is_current:
                task = self.loop.create_task(close())
                self._alone.add(task)
                task.add_done_callback(self._alone.discard)
            elif self.is_running:
                with contextlib.suppress(Empty):
                    self._begin_and_wait(close, [], timeout_s)

    def _stop(self) -> None:
        if self.is_running:
            # First of all, and not only once the thread ends: a callback may keep it for ever.
            self.is_running = False
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=PORTAL_STOP_TIMEOUT_S)


os.register_at_fork(after_in_child=BlockingPortal._after_fork_in_child)


def would_deadlock() -> ConfigurationError:
    """The error of a caller on the loop's own thread who would wait for it."""
    return ConfigurationError(
        "a callback of a future runs on the client's own thread and must not wait for it; "
        "append_async waits too when much is in flight: append from another thread"
    )
