"""Two attempts of one task at the same time, each in a worker of its own: one of them counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StringType, StructField, StructType

from connector import sessions
from connector.options import WriteOptions, write_options
from connector.write import routed, writers
from connector.write.routed import RoutedBatchWriter, RoutedStreamWriter
from connector.write.writers import LedgerBatchWriter, LedgerStreamWriter
from tests.unit.connector.world import Cluster, Task, cluster, copied

__all__ = ["cluster"]

KINDS: dict[str, Callable[..., Any]] = {
    "batch": LedgerBatchWriter,
    "streaming": LedgerStreamWriter,
    "routed batch": RoutedBatchWriter,
    "routed streaming": RoutedStreamWriter,
}
SCHEMA = StructType([StructField("topic", StringType()), StructField("a", LongType())])
ROWS = (1, 2, 3, 4)


def options(kind: str) -> WriteOptions:
    target = {"routeColumn": "topic"} if kind.startswith("routed") else {"stream": "s"}
    streaming = kind.endswith("streaming")
    return write_options({"metadata": "zk://h/l", **target}, streaming=streaming)


class Worker:
    """A Python worker of Spark's: it has connections of its own, and one task at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, writer: Any) -> None:
        self._monkeypatch = monkeypatch
        self._writer = writer
        self._sessions: dict[Any, Any] = {}

    def attempt(self, number: int, batches: Iterator[pa.RecordBatch], batch: int = 0) -> Any:
        """The message of an attempt of the one task, also in the middle of another worker's."""
        task = Task(attempt=number, batch=batch)
        with self._monkeypatch.context() as patch:
            patch.setattr(sessions, "_SESSIONS", self._sessions)
            for module in (writers, routed):
                patch.setattr(module, "TaskContext", task)
            return copied(copied(self._writer).write(batches))


def record_batches(rows: tuple[int, ...], meanwhile: Callable[[], None]) -> Iterator[Any]:
    """A batch of each row; something happens in the middle."""
    for place, row in enumerate(rows):
        if place == len(rows) // 2:
            meanwhile()
        columns = {"topic": pa.array(["s"]), "a": pa.array([row], pa.int64())}
        yield from pa.table(columns).to_batches()


def nothing() -> None:
    pass


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize("begins", ["after the first", "in the middle of the first"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_two_attempts_are_there_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: str, begins: str, winner: int
) -> None:
    writer = KINDS[kind](options(kind), SCHEMA, overwrite=False)
    workers = [Worker(monkeypatch, writer) for _ in range(2)]
    messages: list[WriterCommitMessage] = []

    def second() -> None:
        messages.append(workers[1].attempt(1, record_batches(ROWS, nothing)))

    if begins == "after the first":
        messages.append(workers[0].attempt(0, record_batches(ROWS, nothing)))
        second()
    else:
        first = workers[0].attempt(0, record_batches(ROWS, second))
        messages.insert(0, first)
    assert cluster.entries() == 2, "each attempt has appended"
    arguments = [0] if kind.endswith("streaming") else []
    copied(writer).commit([messages[winner]], *arguments)
    assert cluster.rows() == list(ROWS)
    if not arguments:
        return
    # A driver that was cut off repeats its commit with the other attempt's message.
    copied(writer).commit([messages[1 - winner]], 0)
    assert cluster.rows() == list(ROWS)
    # The worker whose attempt has lost goes on in its ledger.
    later = workers[1 - winner].attempt(0, record_batches((5, 6), nothing), batch=1)
    copied(writer).commit([later], 1)
    assert cluster.rows() == [*ROWS, 5, 6]
    assert cluster.stream().head().next_commit == 2
