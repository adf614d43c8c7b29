"""The calls of a grpc.aio server as tasks, and how to end one at once with all that gRPC keeps.

A handler that ends sends a status, and the status waits behind an answer that the client does not
read: the call and its bytes stay. Only when the last reference to a call is gone does gRPC reset
its stream. Two tasks hold one: the handler's, and the one that started it and waits for the end of
the call. So the first is cancelled, and the second is told that the call has ended. The loop's
task factory knows which belong together.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar

import grpc.aio

Call: TypeAlias = "asyncio.Task[Any]"
"""What lives as long as a call: it is done once the client has read the answer, or has gone."""

_T = TypeVar("_T")

_HANDLER: Final = "_handle_exceptions"
"""What grpc calls the coroutine around a handler (1.60 to 1.85)."""

_GRPC: Final = grpc.aio.UsageError.__module__
"""``grpc._cython.cygrpc``: the module that serves, and the name of its logger."""

_AT_END: Final = f"{_GRPC}.CallbackWrapper.functor_run"
"""Where grpc reports the end of a call to the second task, which knows it if the call was cut."""

_call_of: dict[asyncio.Task[Any], Call] = {}
_handler_of: dict[Call, asyncio.Task[Any] | None] = {}  # None once it has ended


def know_calls(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop remember which task started the task of a handler. Before the server starts."""
    if loop.get_task_factory() is _make_task:
        return
    loop.set_task_factory(_make_task)
    if isinstance(vars(sys.modules[_GRPC])["traceback"], _Silent):
        return  # once in a process
    sys.unraisablehook = partial(_ignore_second_end, sys.unraisablehook)
    sys.excepthook = partial(_ignore_its_headline, sys.excepthook)
    logging.getLogger(_GRPC).addFilter(_is_no_cancellation)
    vars(sys.modules[_GRPC])["traceback"] = _Silent()


def current_call() -> Call:
    """The call of the handler that runs."""
    task = asyncio.current_task()
    assert task is not None, "grpc runs a handler in a task of its own"
    return _call_of.get(task, task)


def cut(call: Call) -> None:
    """End the call; its client sees that it was cancelled."""
    if call not in _handler_of:
        call.cancel()
        return
    handler = _handler_of[call]
    if handler is not None:
        handler.cancel()
    waits_for = getattr(call, "_fut_waiter", None)
    if waits_for is None or waits_for.done() or isinstance(waits_for, asyncio.Task):
        return  # the call ends by itself
    waits_for.set_result(None)


def cut_current() -> asyncio.CancelledError:
    """End the call of the handler that runs, which raises what is returned."""
    cut(current_call())
    return asyncio.CancelledError()


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
    context: Context | None = None,
) -> asyncio.Task[_T]:
    task = asyncio.Task(coroutine, loop=loop, context=context)
    if getattr(coroutine, "__name__", "") == _HANDLER:
        call = asyncio.current_task(loop)
        if call is not None:
            _call_of[task] = call
            _handler_of[call] = task
            task.add_done_callback(_handler_ended)
            call.add_done_callback(_call_ended)
    return task


def _handler_ended(handler: asyncio.Task[Any]) -> None:
    call = _call_of.pop(handler)
    if call in _handler_of:
        _handler_of[call] = None  # a call must not be kept by what is known about it


def _call_ended(call: Call) -> None:
    del _handler_of[call]


def _ignore_second_end(
    hook: Callable[[sys.UnraisableHookArgs], object], event: sys.UnraisableHookArgs
) -> None:
    """Python would write a traceback for each call that was cut: clients could fill the log."""
    if not (event.object == _AT_END and isinstance(event.exc_value, asyncio.InvalidStateError)):
        hook(event)


def _ignore_its_headline(
    hook: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    """Cython prints an error of that kind twice, the first time through this hook."""
    if not (traceback is None and isinstance(error, asyncio.InvalidStateError)):
        hook(kind, error, traceback)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """A client that resets its call, or leaves before its answer, is no error of ours."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (asyncio.CancelledError, grpc.aio.InternalError))


class _Silent:
    """For grpc, which logs an error with its traceback, and then prints the same traceback."""

    def print_exc(self) -> None:
        """Nothing."""
