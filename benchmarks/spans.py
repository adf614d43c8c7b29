"""Spans: what a part of the work took, as the processes of a job write it to one file.

The times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, TypeVar

import msgspec

FILE_VARIABLE: Final = "SPARK_LEDGER_SPANS"
"""Where spans go; without it they are not kept."""

P = ParamSpec("P")
T = TypeVar("T")


class Span(NamedTuple):
    """One call of a part, by one process."""

    part: str
    pid: int
    began_ns: int
    ended_ns: int

    @property
    def took_ms(self) -> float:
        return (self.ended_ns - self.began_ns) / 1e6

    def holds(self, other: Span) -> bool:
        """Whether the other one is a part of it."""
        return (
            self.pid == other.pid
            and self.began_ns <= other.began_ns
            and other.ended_ns <= self.ended_ns
        )


@contextmanager
def span(part: str) -> Iterator[None]:
    """Write down how long this takes, however it ends."""
    began = time.monotonic_ns()
    try:
        yield
    finally:
        _write(Span(part, os.getpid(), began, time.monotonic_ns()))


def _write(made: Span) -> None:
    path = os.environ.get(FILE_VARIABLE)
    if path is not None:
        line = msgspec.json.encode(made) + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, line)  # one call: lines of several processes do not mix
        finally:
            os.close(descriptor)


def watched(part: str, call: Callable[P, T]) -> Callable[P, T]:
    """The same function, of which each call is a span."""

    @functools.wraps(call)
    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        with span(part):
            return call(*args, **kwargs)

    return inner


def watched_async(part: str, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The same of a coroutine function."""

    @functools.wraps(call)
    async def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        with span(part):
            return await call(*args, **kwargs)

    return inner


def spans_since(path: Path, began_ns: int) -> list[Span]:
    """The spans of a file that began then or later."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    found: Iterable[Span] = (msgspec.json.decode(line, type=Span) for line in lines)
    return [each for each in found if each.began_ns >= began_ns]
