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

_making = threading.RLock()
"""Under it a future gets its condition, or is done without one: whoever waits is told, and told
once. One for all futures, as it is held for a moment only. A signal handler may come in between."""


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
        with _making:
            fields = self.__dict__
            fields.setdefault("_waiters", [])
            fields.setdefault("_done_callbacks", [])
            fields.setdefault("_condition", threading.Condition())
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
        if self._state == _DONE and self._exception is None:
            result: T = self._result
            return result
        try:
            return super().result(timeout)
        finally:
            del self  # or the traceback of the error in it would hold it

    def set_result(self, result: T) -> None:
        """It is done well."""
        with _making:
            if "_condition" not in self.__dict__:
                self._check_open()
                self._result = result
                self._state = _DONE
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """It failed."""
        with _making:
            if "_condition" not in self.__dict__:
                self._check_open()
                self._exception = exception
                self._state = _DONE
                return
        super().set_exception(exception)

    def _check_open(self) -> None:
        if self._state != _PENDING:
            raise InvalidStateError(f"{self._state}: {self!r}")


def _after_fork_in_child() -> None:
    """Another thread of the parent may have held the lock, and nobody would release it here."""
    global _making
    _making = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
