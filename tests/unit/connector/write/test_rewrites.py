"""Commits that cannot succeed before the rows are written again: they are not repeated."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimeType

from connector.options import write_options
from connector.write import routed, routed_task, writers
from connector.write.routed import RoutedBatchWriter, RoutedStreamWriter
from connector.write.writers import LedgerBatchWriter, LedgerStreamWriter
from spark_ledger.errors import RewriteError, SchemaMismatchError
from tests.unit.connector.world import Cluster, Task, cluster, copied, to_write

__all__ = ["cluster"]

WIDER = StructType(
    [
        StructField("topic", StringType()),
        StructField("a", LongType()),
        StructField("c", StructType([StructField("x", LongType())])),
    ]
)
STRICT = pa.struct([pa.field("x", pa.int64(), nullable=False)])
"""What another client makes of column ``c``: it is never null inside."""


@pytest.mark.parametrize(
    ("writer_class", "route"),
    [
        (LedgerBatchWriter, {"stream": "s", "txnAppId": "app", "txnVersion": "1"}),
        (LedgerBatchWriter, {"stream": "s"}),
        (LedgerStreamWriter, {"stream": "s"}),
        (RoutedBatchWriter, {"routeColumn": "topic", "keepRouteColumn": "true"}),
        (RoutedStreamWriter, {"routeColumn": "topic", "keepRouteColumn": "true"}),
    ],
)
def test_commit_that_needs_its_rows_written_again_is_offered_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, writer_class: Any, route: dict[str, str]
) -> None:
    is_stream = writer_class in (LedgerStreamWriter, RoutedStreamWriter)
    given = {"metadata": "zk://h/l", "mergeSchema": "true", **route}
    options = write_options(given, streaming=is_stream)
    for module in (writers, routed):
        monkeypatch.setattr(module, "TaskContext", Task())
    cluster.create(0)
    rows = pa.table({"topic": ["s"], "a": [1], "c": [{"x": 7}]})

    def write() -> tuple[Any, list[Any]]:
        writer = writer_class(options, WIDER, overwrite=False)
        return writer, copied([copied(writer).write(iter(rows.to_batches()))])

    def commit(writer: Any, messages: list[Any]) -> None:
        copied(writer).commit(messages, *([0] if is_stream else []))

    first = write()
    others = {"a": [2], "c": pa.array([{"x": 8}], STRICT)}
    cluster.stream().append(pa.table(others), merge_schema=True)
    with pytest.raises(RewriteError, match=r"'c' first.*write the rows again") as met:
        commit(*first)
    assert not cluster.clock.pauses, "no attempt after the first could succeed"
    assert isinstance(pickle.loads(pickle.dumps(met.value)), RewriteError)
    commit(*write())
    assert cluster.rows() == [0, 2, 1]


@pytest.mark.parametrize("also", [[], [StructField("d", LongType())]])
@pytest.mark.parametrize(
    ("writer_class", "route"),
    [
        (LedgerBatchWriter, {"stream": "s"}),
        (LedgerStreamWriter, {"stream": "s"}),
        (RoutedBatchWriter, {"routeColumn": "topic", "keepRouteColumn": "true"}),
        (RoutedStreamWriter, {"routeColumn": "topic", "keepRouteColumn": "true"}),
    ],
)
def test_column_that_another_added_before_the_task_began_is_asked_for_its_type(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    writer_class: Any,
    route: dict[str, str],
    also: list[StructField],
) -> None:
    """Its type of Spark's: the task finds one of Arrow's, and says that its rows fit."""
    is_stream = writer_class in (LedgerStreamWriter, RoutedStreamWriter)
    given = {"metadata": "zk://h/l", "mergeSchema": "true", **route}
    options = write_options(given, streaming=is_stream)
    for module in (writers, routed):
        monkeypatch.setattr(module, "TaskContext", Task())
    cluster.create(0)

    def prepared(kind: DataType, *more: StructField) -> Any:
        columns = [StructField("topic", StringType()), StructField("at", kind), *more]
        return writer_class(options, StructType(columns), overwrite=False)

    def write(writer: Any) -> None:
        rows = pa.table({"topic": ["s"], "at": pa.array([1], pa.time64("ns"))})
        for field in also:
            rows = rows.append_column(field.name, pa.array([2], pa.int64()))
        written = copied([copied(writer).write(iter(rows.to_batches()))])
        copied(writer).commit(written, *([0] if is_stream else []))

    monkeypatch.setattr(routed_task, "prepare_stream", lambda *_: cluster.stream().config.stream_id)
    late, same = prepared(TimeType(6), *also), prepared(TimeType(0), *also)
    write_first = LedgerBatchWriter(
        to_write(mergeSchema="true"),
        StructType([StructField("at", TimeType(0))]),
        overwrite=False,
    )
    write_first.commit([])
    said = r"stream 's': column 'at': the stream has type time\(0\), the DataFrame has type time\(6"
    with pytest.raises(SchemaMismatchError, match=said):
        write(late)
    assert cluster.rows() == [0], "nothing was committed"
    write(same)
    assert cluster.rows() == [0, None]
