"""Concurrent work on one loop: results in order, and no task outlives the call that started it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that raises the first failure itself, not in an exception group.

    The first task that fails cancels the others; its error is raised once all have ended.
    """
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[0]
    if failure is not None:
        raise failure  # here and not in the handler: callers get the error with its own cause


async def run_all(work: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """The results of coroutines that run at the same time, in the order given.

    Raises what the first of them fails with (see ``task_group``).
    """
    async with task_group() as group:
        tasks = [group.create_task(one) for one in work]
    return [task.result() for task in tasks]


async def prefetch(source: AsyncGenerator[T, None], ahead: int) -> AsyncGenerator[T, None]:
    """The items of ``source``, of which up to ``ahead`` are made before they are asked for.

    An error of the source is raised after the items that came before it. Closing this generator
    closes the source.
    """
    ready: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
    room = asyncio.Semaphore(ahead)

    async def pump() -> None:
        try:
            async for item in source:
                ready.put_nowait((item,))
                await room.acquire()
        finally:
            await source.aclose()
            ready.put_nowait(None)

    # Not a TaskGroup: it must be left by the task that entered it, and a generator may be resumed
    # by one task and closed by another.
    task = asyncio.get_running_loop().create_task(pump())
    try:
        while (item := await ready.get()) is not None:
            room.release()
            yield item[0]
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # raised by ``await task`` above, or the reader has left: marked seen


async def flatten(chunks: AsyncGenerator[list[T], None]) -> AsyncGenerator[T, None]:
    """The items of lists. Closing this generator closes ``chunks``."""
    async with aclosing(chunks):
        async for chunk in chunks:
            for item in chunk:
                yield item
