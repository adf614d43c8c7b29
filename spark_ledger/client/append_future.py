"""AppendFuture: a concurrent future that makes its lock only when somebody waits for it.

The standard one makes a condition, a lock and two lists when it is made: more work than the rest of
a small append. Most appends are done before anybody asks, and need none of them.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, TypeVar

T = TypeVar("T")

_PENDING: Final = "RUNNING"
_DONE: Final = "FINISHED"
"""States of the standard future, which ``wait`` and ``as_completed`` look at."""

_making = threading.Lock()
"""Under it a future gets its condition, or is done without one: whoever looks at it is told, and
told once. One for all futures, as it is held for a moment only. Nothing is called under it: a
signal handler that came in between may wait for who tells the futures."""


class AppendFuture(Future[T]):
    """What becomes of an append; ``wait``, ``as_completed`` and ``asyncio.wrap_future`` take it.

    It is running from the start: what was appended cannot be taken back. Once it has a condition
    it is the standard future, and changes under that only.
    """

    _state: str = _PENDING
    _result: Any = None  # T; typeshed has it so
    _exception: BaseException | None = None

    def __init__(self) -> None:
        """Nothing: what a future needs to be waited for is made by ``__getattr__``."""

    def __getattr__(self, name: str) -> Any:
        """The condition and what it guards, on first use."""
        if name not in ("_condition", "_waiters", "_done_callbacks"):
            raise AttributeError(name)
        fields = self.__dict__
        waiters: list[object] = []
        callbacks: list[object] = []
        condition = threading.Condition()
        with _making:
            if "_condition" not in fields:
                fields["_waiters"] = waiters
                fields["_done_callbacks"] = callbacks
                fields["_condition"] = condition
        return fields[name]

    def cancel(self) -> bool:
        """False: the entry is on its way."""
        return False

    def cancelled(self) -> bool:
        """False."""
        return False

    def running(self) -> bool:
        """Whether its fate is open."""
        return self._state == _PENDING

    def done(self) -> bool:
        """Whether it has a result or an error."""
        return self._state == _DONE

    def result(self, timeout: float | None = None) -> T:
        """The result, or its error raised; waits for it, at most ``timeout`` seconds."""
        if self._state != _DONE:
            self._wait(timeout)
        if self._exception is None:
            result: T = self._result
            return result
        try:
            raise self._exception
        finally:
            del self  # or the traceback of the error in it would hold it

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, None if there is none; waits as ``result``."""
        if self._state != _DONE:
            self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        """Wait until it is done. Without the condition: the standard future holds it while it
        calls, see ``_making``. Raises TimeoutError."""
        told = threading.Lock()
        told.acquire()
        asleep: list[threading.Lock] = self.__dict__.setdefault("_asleep", [])
        asleep.append(told)  # before it looks: who tells looks the other way round
        try:
            if self._state != _DONE:
                told.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            asleep.remove(told)
        if self._state != _DONE:
            raise TimeoutError

    def set_result(self, result: T) -> None:
        """It is done well."""
        self._check_open()
        with _making:
            is_alone = "_condition" not in self.__dict__
            if is_alone:
                self._result = result
                self._state = _DONE
        if is_alone:
            self._wake()
        else:
            super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """It failed."""
        self._check_open()
        with _making:
            is_alone = "_condition" not in self.__dict__
            if is_alone:
                self._exception = exception
                self._state = _DONE
        if is_alone:
            self._wake()
        else:
            super().set_exception(exception)

    def _invoke_callbacks(self) -> None:
        self._wake()
        super()._invoke_callbacks()  # type: ignore[misc]

    def _wake(self) -> None:
        if "_asleep" in self.__dict__:
            for told in tuple(self.__dict__["_asleep"]):
                told.release()

    def _check_open(self) -> None:
        if self._state != _PENDING:
            raise InvalidStateError(f"{self._state}: {self!r}")


def _after_fork_in_child() -> None:
    """Another thread of the parent may have held the lock, and nobody would release it here."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
