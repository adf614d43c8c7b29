"""Writes through a restored ZooKeeper, in processes that Spark uses again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from connector import sessions
from connector.write import routed as routed_writers
from connector.write import writers
from connector.write.routed import RoutedBatchWriter, RoutedStreamWriter
from connector.write.writers import LedgerBatchWriter, LedgerStreamWriter
from spark_ledger.errors import MetadataRestoredError
from tests.unit.connector.world import (
    WIDER,
    Cluster,
    Task,
    batch_write,
    cluster,
    copied,
    micro_batch,
    table,
    to_write,
)
from tests.unit.connector.write import test_routed as of_column
from tests.unit.spark_ledger.stream.world import Backup

__all__ = ["cluster"]

Write = Callable[[pytest.MonkeyPatch, int], object]
WRITES: dict[str, Write] = {
    "batch": lambda patch, n: batch_write(patch, [n]),
    "micro-batch": lambda patch, n: micro_batch(patch, n, n, run=f"r{n}"),
    "routed batch": lambda patch, n: of_column.batch(patch, [("s", n)]),
    "routed micro-batch": lambda patch, n: of_column.micro_batch(patch, n, [("s", n)], run=f"r{n}"),
}


def restored(cluster: Cluster, work: Callable[[], object]) -> None:
    """The work sees two commits of which the restore has lost the last, which is made anew by
    somebody else, and more."""
    cluster.create(1)
    backup = Backup(cluster.outside._client)  # type: ignore[arg-type]
    work()
    backup.restore(*(each._client for each in cluster.connections))  # type: ignore[arg-type]
    for row in (12, 13, 14):
        cluster.stream().append(table(row))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_commit_that_finds_a_restore_fails_and_the_next_one_in_the_process_does_not(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    restored(cluster, lambda: write(monkeypatch, 2))
    with pytest.raises(MetadataRestoredError, match="is not the one that this process has seen"):
        write(monkeypatch, 3)
    assert cluster.rows() == [1, 12, 13, 14]
    write(monkeypatch, 4)
    assert cluster.rows() == [1, 12, 13, 14, 4]


class Processes:
    """Writes of the columns a and b, whose planner and commit run in one process of Spark, and
    their tasks in another."""

    def __init__(self, patch: pytest.MonkeyPatch, *, routed: bool, streaming: bool) -> None:
        self._patch, self._routed, self._streaming = patch, routed, streaming
        self._worker: dict[Any, Any] = {}
        self.start_driver()

    def start_driver(self) -> None:
        """The processes beside the driver are new."""
        self._driver: dict[Any, Any] = {}

    def _in(self, process: dict[Any, Any]) -> None:
        self._patch.setattr(sessions, "_SESSIONS", process)

    def _writer(self) -> Any:
        if self._routed:
            made = RoutedStreamWriter if self._streaming else RoutedBatchWriter
            options = of_column.options(self._streaming, mergeSchema="true")
            return made(
                options, StructType([*of_column.ROUTED.fields[:1], *WIDER]), overwrite=False
            )
        one = LedgerStreamWriter if self._streaming else LedgerBatchWriter
        return one(to_write(self._streaming, mergeSchema="true"), WIDER, overwrite=False)

    def write(self, number: int, *, before_commit: Callable[[], object] | None = None) -> None:
        """``before_commit``: when the task has ended, and its ledger is still open."""
        self._in(self._driver)
        writer = copied(self._writer())
        self._in(self._worker)
        for module in (writers, routed_writers):
            self._patch.setattr(module, "TaskContext", Task(batch=number))
        rows = {"topic": ["s"]} if self._routed else {}
        data = pa.table({**rows, "a": [number], "b": [70 + number]})
        message = writer.write(iter(data.to_batches()))
        if before_commit is not None:
            before_commit()
        else:
            for session in self._worker.values():
                for each in session.writers.values():
                    each.close()  # as they do once they are idle
        self._in(self._driver)
        writer.commit([copied(message)], *[number] * self._streaming)


@pytest.mark.parametrize("theirs", ["c", None])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("routed", [True, False])
def test_task_in_a_process_that_has_seen_columns_which_are_lost_fails_and_the_next_one_does_not(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    routed: bool,
    streaming: bool,
    theirs: str | None,
) -> None:
    """Its rows would be read as those of the column that has the number now, or not at all: who
    commits them has not seen what its task has."""
    cluster.create(1)
    backup = Backup(cluster.outside._client)  # type: ignore[arg-type]
    processes = Processes(monkeypatch, routed=routed, streaming=streaming)
    for number in (2, 3):
        processes.write(number)
    backup.restore(*(each._client for each in cluster.connections))  # type: ignore[arg-type]
    if theirs is not None:
        cluster.stream().append(pa.table({"a": [12], theirs: [5]}), merge_schema=True)
    processes.start_driver()
    with pytest.raises(MetadataRestoredError, match="has not the columns"):
        processes.write(4)
    processes.write(5)
    rows = [row for batch in cluster.stream().read() for row in batch.to_pylist()]
    assert [(row["a"], row["b"]) for row in rows] == [
        (1, None),
        *[(12, None)] * (theirs is not None),
        (5, 75),
    ]


@pytest.mark.parametrize("theirs", ["c", None])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("routed", [True, False])
def test_rows_of_a_task_that_has_ended_are_not_committed_in_the_columns_of_behind_a_restore(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    routed: bool,
    streaming: bool,
    theirs: str | None,
) -> None:
    """Of a long stage the first tasks end minutes before the commit, and are told nothing."""
    cluster.create(1)
    processes = Processes(monkeypatch, routed=routed, streaming=streaming)
    backups: list[Backup] = []

    def keep() -> None:  # the ledger is in it, and the column b is not
        backups.append(Backup(cluster.outside._client))  # type: ignore[arg-type]

    def restore() -> None:
        connected = [each._client for each in cluster.connections]
        backups[0].restore(*connected)  # type: ignore[arg-type]
        if theirs is not None:
            cluster.stream().append(pa.table({"a": [12], theirs: [5]}), merge_schema=True)
        processes.start_driver()

    processes.write(2, before_commit=keep)
    with pytest.raises(MetadataRestoredError, match="version 1 of its columns"):
        processes.write(3, before_commit=restore)
    with pytest.raises(MetadataRestoredError, match="has not the columns"):
        processes.write(4)
    processes.write(5)
    rows = [row for batch in cluster.stream().read() for row in batch.to_pylist()]
    assert [(row["a"], row["b"]) for row in rows] == [
        (1, None),
        *[(12, None)] * (theirs is not None),
        (5, 75),
    ]
