"""Who is told of the fates of entries: one future for each, or one for all of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from spark_ledger.client.payloads import copy_error
from spark_ledger.errors import LedgerError


class Completion(Protocol):
    """What is told of an entry's fate: an asyncio or a concurrent future, or a part of a batch."""

    def done(self) -> bool: ...

    def set_result(self, result: int, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class BatchFuture(Protocol):
    """What is told of the fate of a batch: an asyncio or a concurrent future."""

    def done(self) -> bool: ...

    def set_result(self, result: range, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class _Nobody:
    """For an entry whose batch is told with its last one. It is done: nothing is to be told."""

    def done(self) -> bool:
        return True

    def set_result(self, result: int, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class _LastOfBatch:
    """For the last entry of a batch: entries are confirmed in order, so it stands for all."""

    __slots__ = ("_entries", "_future")

    def __init__(self, future: BatchFuture, entries: int) -> None:
        self._future = future
        self._entries = entries

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, result: int, /) -> None:
        self._future.set_result(range(result + 1 - self._entries, result + 1))

    def set_exception(self, exception: BaseException, /) -> None:
        self._future.set_exception(exception)


_NOBODY: Final = _Nobody()


def batch_completions(future: BatchFuture, entries: int) -> list[Completion]:
    """The completions of a batch's entries: ``future`` is told the ids once all are confirmed."""
    assert entries > 0, "an empty batch has no last entry"
    completions: list[Completion] = [_NOBODY] * entries
    completions[-1] = _LastOfBatch(future, entries)
    return completions


def fail_all(completions: Sequence[Completion], error: LedgerError) -> None:
    """Tell everybody who still waits an error of its own."""
    for completion in completions:
        if not completion.done():
            completion.set_exception(copy_error(error))
