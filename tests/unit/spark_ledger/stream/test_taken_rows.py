"""Rows of iterables that block: nobody else waits for them, and they keep no process alive."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from spark_ledger.errors import SchemaMismatchError
from spark_ledger.stream import segment_writer
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.stream.taken_rows import TakenRows, taken_rows
from tests.unit.spark_ledger.stream.test_blocking import connection, values
from tests.unit.spark_ledger.stream.world import SCHEMA, run, table

__all__ = ["connection"]

WAIT_S = 20.0
"""For what comes at once, unless something is broken."""

THREADS_OF_ASYNCIO = min(32, (os.cpu_count() or 1) + 4)


def takers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "spark-ledger-rows"]


def ended() -> bool:
    """Whether all that take rows have ended, or do so when they are waited for."""
    for thread in takers():
        thread.join(WAIT_S)
        if thread.is_alive():
            return False
    return True


# -- many of them ----------------------------------------------------------------------------------


def test_more_iterables_than_asyncio_has_threads_block_at_the_same_time(
    connection: StreamConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each reads a stream, whose rows asyncio's threads decode, and others encode."""
    monkeypatch.setattr(segment_writer, "ENCODE_IN_THREAD_BYTES_MIN", 1)
    names = [f"s{n}" for n in range(THREADS_OF_ASYNCIO + 1)]
    rows = pa.table({"b": [os.urandom(100_000) for _ in range(4)]})
    for name in names:
        connection.create_stream(name, rows.schema)
    connection.create_stream("source", rows.schema).append(rows)
    all_began = threading.Barrier(len(names))

    def items() -> Iterator[pa.RecordBatch]:
        all_began.wait(WAIT_S)
        yield from connection.stream("source").read()

    commits = connection.append_to({name: items() for name in names})
    assert [commits[name].rows for name in names] == [4] * len(names)
    assert ended()


# -- callers that leave ----------------------------------------------------------------------------

INTERRUPTED = """
import os, queue, signal
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.stream.blocking import StreamConnection
from tests.unit.spark_ledger.stream.test_blocking import Client
from tests.unit.spark_ledger.stream.world import SCHEMA, table

def items():
    yield table(0)
    os.kill(os.getpid(), signal.SIGINT)
    yield queue.Queue().get()

with StreamConnection(BlockingPortal.get(), Client()) as made:
    stream = made.create_stream("s", SCHEMA)
    try:
        stream.append(items())
    except KeyboardInterrupt:
        print("interrupted", stream.append(table(7)).rows, flush=True)
"""


def test_program_that_is_interrupted_while_its_iterable_blocks_goes_on_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted 1\n", "")


def test_reader_that_is_cancelled_leaves_no_answer_open_and_the_thread_ends_with_its_item() -> None:
    began, may_end = threading.Event(), threading.Event()

    def items() -> Iterator[pa.RecordBatch]:
        began.set()
        assert may_end.wait(WAIT_S)
        yield from table(0).to_batches()
        raise AssertionError("another one is asked for")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        failures: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        with taken_rows(items()) as rows:
            assert isinstance(rows, TakenRows)
            reading = asyncio.ensure_future(anext(rows))
            assert await loop.run_in_executor(None, began.wait, WAIT_S)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        (thread,) = takers()
        assert thread.daemon, "a process that ends waits for no iterable"
        may_end.set()
        await loop.run_in_executor(None, thread.join, WAIT_S)
        await asyncio.sleep(0)  # what the thread has handed over
        assert not failures

    run(scenario())
    assert ended()


@pytest.mark.parametrize("has_begun", [True, False])
def test_reader_that_comes_behind_the_close_is_not_kept_waiting(has_begun: bool) -> None:
    async def scenario() -> None:
        with taken_rows(table(n) for n in range(3)) as rows:
            assert isinstance(rows, TakenRows)
            if has_begun:
                assert (await anext(rows)).num_rows == 1
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(WAIT_S):
                await anext(rows)

    run(scenario())
    assert ended()


def test_reader_that_asks_beside_the_close_is_not_kept_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The close comes from another thread, as late as it can before the reader has asked."""

    class Asked:
        def __init__(self, rows: TakenRows) -> None:
            self._rows, self._inner = rows, rows._asked

        def put(self, answer: Any) -> None:
            monkeypatch.setattr(self._rows, "_asked", self._inner)
            self._rows.close()
            self._inner.put(answer)

    async def scenario() -> None:
        with taken_rows(table(n) for n in range(3)) as rows:
            assert isinstance(rows, TakenRows)
            assert (await anext(rows)).num_rows == 1
            monkeypatch.setattr(rows, "_asked", Asked(rows))
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(WAIT_S):
                    await anext(rows)

    run(scenario())
    assert ended()


def test_append_that_fails_ends_the_thread_although_its_error_is_kept(
    connection: StreamConnection,
) -> None:
    stream = connection.create_stream("s", SCHEMA)
    with pytest.raises(SchemaMismatchError) as kept:
        stream.append([table(0), pa.table({"other": [1]}), table(1)])
    assert ended(), kept.value


# -- what they give --------------------------------------------------------------------------------


def test_items_are_taken_one_by_one_as_they_are_asked_for() -> None:
    taken: list[int] = []

    def items() -> Iterator[pa.Table]:
        for n in range(5):
            taken.append(n)
            yield table(n)

    async def scenario() -> None:
        with taken_rows(items()) as rows:
            assert isinstance(rows, TakenRows)
            for n in range(5):
                assert taken == [*range(n)]
                assert (await anext(rows)).column("n").to_pylist() == [n]
            with pytest.raises(StopAsyncIteration):
                await anext(rows)

    run(scenario())
    assert ended()


def raise_error(error: BaseException) -> Callable[[], NoReturn]:
    def failing() -> NoReturn:
        raise error

    return failing


@pytest.mark.parametrize(
    ("error", "meets"),
    [
        (ZeroDivisionError("of the caller"), ZeroDivisionError),
        (StopIteration("in vain"), RuntimeError),
        (asyncio.CancelledError(), RuntimeError),
        (SystemExit(1), RuntimeError),
        (KeyboardInterrupt(), RuntimeError),
    ],
)
def test_error_of_an_iterable_is_the_callers_and_the_connection_goes_on(
    connection: StreamConnection, error: BaseException, meets: type[Exception]
) -> None:
    stream, fail = connection.create_stream("s", SCHEMA), raise_error(error)

    def items() -> Iterator[pa.Table]:
        yield table(0)
        fail()

    with pytest.raises(meets) as met:
        stream.append(items())
    assert error in (met.value, met.value.__cause__)
    assert ended()
    assert stream.append([table(1)]).number == 0
    assert values(stream.read()) == [1]


def test_data_that_were_committed_before_are_not_taken(connection: StreamConnection) -> None:
    stream = connection.create_stream("s", SCHEMA)
    assert stream.append(table(0), sink_id="j", transaction_id=1).applied
    fail = raise_error(AssertionError("nobody needs them"))
    assert not stream.append((fail() for _ in [1]), sink_id="j", transaction_id=1).applied
    assert ended()
