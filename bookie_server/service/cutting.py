"""The calls of a grpc.aio server as tasks, and how to end one at once with all that gRPC keeps.

A handler that ends sends a status, and the status waits behind an answer that the client does not
read: the call and its bytes stay. Only when the last reference to a call is gone does gRPC reset
its stream. Two tasks hold one: the handler's, and the one that started it and waits for the end of
the call. So both are cancelled; the second is known to the task factory of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Final, TypeAlias, TypeVar

Call: TypeAlias = "asyncio.Task[Any]"
"""What lives as long as a call: it is done once the client has read the answer, or has gone."""

_T = TypeVar("_T")

_HANDLER: Final = "_handle_exceptions"
"""What grpc calls the coroutine around a handler (1.60 to 1.85)."""

_call_of: dict[asyncio.Task[Any], Call] = {}
_handler_of: dict[Call, asyncio.Task[Any]] = {}


def know_calls(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop remember which task started the task of a handler. Before the server starts."""
    loop.set_task_factory(_make_task)


def current_call() -> Call:
    """The call of the handler that runs."""
    task = asyncio.current_task()
    assert task is not None, "grpc runs a handler in a task of its own"
    return _call_of.get(task, task)


def cut(call: Call) -> None:
    """End the call; its client sees that it was cancelled."""
    handler = _handler_of.get(call)
    if handler is not None:
        handler.cancel()
    call.cancel()


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
            task.add_done_callback(_forget)
    return task


def _forget(handler: asyncio.Task[Any]) -> None:
    """A call must not be kept by what is known about it."""
    _handler_of.pop(_call_of.pop(handler), None)
