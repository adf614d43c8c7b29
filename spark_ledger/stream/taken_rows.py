"""Rows of a caller's iterable, taken in a thread of its own while a loop waits for them.

An iterable may block for as long as it likes, also on the very portal that takes its rows. So it
gets none of asyncio's own threads: they are few, they encode and decode rows for everybody, and a
process that ends waits for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from typing import Self, TypeAlias

import pyarrow as pa

from spark_ledger.stream.format.arrow_types import AsyncRows, Rows
from spark_ledger.stream.segment_writer import as_batches

_Answer: TypeAlias = "asyncio.Future[pa.RecordBatch | None]"
"""What the loop waits for: the next batch, or None at the end. Belongs to the loop."""

_Asked: TypeAlias = "SimpleQueue[_Answer | None]"
"""What the thread is asked for; None: to end."""


@contextmanager
def taken_rows(data: Rows) -> Iterator[AsyncRows]:
    """Data as a loop can take them: those in memory as they are, others from a thread, which ends
    with the block."""
    if isinstance(data, pa.RecordBatch | pa.Table):
        yield data
        return
    rows = TakenRows(as_batches(data))
    try:
        yield rows
    finally:
        rows.close()


class TakenRows:
    """The batches of an iterator, for one reader on a loop. Whoever makes it closes it.

    A batch is taken when the reader asks for it, so none waits in memory. The thread ends with
    ``close``, or when the iterator gives what it then blocks for: nobody can interrupt that. A
    process that ends does not wait for it.

    The fields do not change, but for ``_is_closed``.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._asked: _Asked = SimpleQueue()
        self._is_closed = False
        # The thread alone keeps the iterator: one that ends on the portal's thread could not wait
        # for the portal, as one of rows that are read there does.
        self._thread = threading.Thread(
            target=copy_context().run,
            args=(_take, batches, self._asked),
            name="spark-ledger-rows",
            daemon=True,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next batch. Raises what the iterator raises, CancelledError once it is closed."""
        answer: _Answer = asyncio.get_running_loop().create_future()
        if self._thread.ident is None:
            self._thread.start()
        self._asked.put(answer)
        if self._is_closed:  # looked at last: else a close in between would leave it unanswered
            answer.cancel()
        batch = await answer
        if batch is None:
            raise StopAsyncIteration
        return batch

    def close(self) -> None:
        """Have the thread end. Does not wait for it. From any thread; idempotent."""
        self._is_closed = True
        self._asked.put(None)


def _take(batches: Iterator[pa.RecordBatch], asked: _Asked) -> None:
    """The thread: one batch for each answer that is asked for."""
    while (answer := asked.get()) is not None:
        _take_one(batches, answer)
        del answer  # and with it the batch


def _take_one(batches: Iterator[pa.RecordBatch], answer: _Answer) -> None:
    batch: pa.RecordBatch | None = None
    failure: Exception | None = None
    try:
        batch = next(batches, None)
    except Exception as error:  # noqa: BLE001 - raised by the reader
        failure = error
    except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop of everybody
        failure = RuntimeError(f"the rows to append ended with {type(error).__name__}")
        failure.__cause__ = error
    answer.get_loop().call_soon_threadsafe(_settle, answer, batch, failure)


def _settle(answer: _Answer, batch: pa.RecordBatch | None, failure: Exception | None) -> None:
    """On the loop. A reader that was cancelled has cancelled the answer too."""
    if answer.done():
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(batch)
