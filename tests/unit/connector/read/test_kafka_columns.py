"""``includeMetadata=kafka``: the columns of Spark's Kafka source, whatever the stream has."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from connector.kafka_columns import HEADERS, KAFKA_SCHEMA, kafka_schema
from connector.options import read_options
from connector.read.readers import LedgerBatchReader
from connector.read.several_source import SeveralSource
from connector.read.source import stored_schema
from spark_ledger.errors import ConfigurationError, SchemaMismatchError
from spark_ledger.types import Dlsn
from tests.unit.connector.world import Cluster, cluster, copied

__all__ = ["cluster"]

TEXT = pa.schema({"key": pa.string(), "value": pa.string()})
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)


def rows(schema: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    """The rows of a batch read as Spark makes it."""
    given = {"metadata": "zk://h/l", "includeMetadata": "kafka", **options}
    if not {"streams", "streamPattern"} & set(options):
        given["stream"] = "s"
    checked = read_options(given, streaming=False)
    reader = LedgerBatchReader(checked, schema or stored_schema(checked))
    batches = [b for p in reader.partitions() for b in copied(reader).read(copied(p))]
    return [row for batch in batches for row in batch.to_pylist()]


def texts(*values: str) -> pa.Table:
    return pa.table({"key": [v[:1] for v in values], "value": list(values)}, schema=TEXT)


def test_kafka_columns_have_the_names_order_and_types_of_spark_s_kafka_source() -> None:
    assert kafka_schema(headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert kafka_schema(headers=False) == KAFKA_SCHEMA
    assert all(field.nullable for field in KAFKA_SCHEMA.fields)


def test_offset_of_a_row_counts_all_rows_committed_before_it(cluster: Cluster) -> None:
    stream = cluster.outside.create_stream("s", TEXT)
    for commit in (["a0", "b1"], ["c2"], ["d3", "e4", "f5"]):
        stream.append(texts(*commit))
    found = rows()
    assert [row["offset"] for row in found] == list(range(6))
    assert [row["value"] for row in found] == [b"a0", b"b1", b"c2", b"d3", b"e4", b"f5"]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in found} == {
        ("s", 0, 1)
    }
    assert [row["offset"] for row in rows(startingPosition='{"segment": 2, "slot": 1}')] == [4, 5]


def test_offset_of_a_row_stays_when_rows_before_it_are_dropped(cluster: Cluster) -> None:
    stream = cluster.outside.create_stream("s", TEXT)
    stream.append(texts("a0", "b1"))
    stream.append(texts("c2", "d3"))
    stream.retention.truncate(Dlsn(1))
    assert [row["offset"] for row in rows()] == [2, 3]
    stream.append(texts("e4"), overwrite=True)
    assert [row["offset"] for row in rows()] == [4]


def test_offset_counts_on_over_entries_and_spans(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = cluster.outside.create_stream("s", TEXT, entry_bytes=1024)
    for commit in range(3):
        stream.append(texts(*(f"{commit}-{n}-" + "x" * 400 for n in range(20))))
    assert all(commit.segments[0].entries > 2 for commit in stream.commits(0, 3))
    assert [row["offset"] for row in rows()] == list(range(60))
    monkeypatch.setattr("spark_ledger.stream.plan.read_plan.SEGMENTS_PLANNED_MAX", 0)
    assert [row["offset"] for row in rows(minPartitions="7")] == list(range(60))


def test_own_time_of_a_row_wins_over_that_of_its_commit(cluster: Cluster) -> None:
    columns: dict[str, pa.DataType] = {
        "value": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    schema = pa.schema(columns)
    stream = cluster.outside.create_stream("s", schema)
    stream.append(pa.table({"value": [b"a", b"b"], "timestamp": [AT, None]}, schema=schema))
    first, second = rows()
    assert (first["timestamp"], first["timestampType"], first["key"]) == (AT, 0, None)
    assert second["timestampType"] == 1 and second["timestamp"] > AT
    stream.append(pa.table({"value": [b"c"], "timestamp": [AT]}, schema=schema))
    assert rows()[2]["timestamp"] == AT


def test_type_of_the_time_is_the_stream_s_own_where_the_time_is(cluster: Cluster) -> None:
    """Migrated records have both; a time of the append that was copied is none of the writer."""
    columns: dict[str, pa.DataType] = {
        "value": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
    }
    schema = pa.schema(columns)
    stream = cluster.outside.create_stream("s", schema)
    times = [AT, AT, AT, None, None]
    given = {"value": [b"v"] * 5, "timestamp": times, "timestampType": [1, 0, None, 0, None]}
    stream.append(pa.table(given, schema=schema))
    found = rows()
    assert [row["timestampType"] for row in found] == [1, 0, 0, 1, 1]
    assert [row["timestamp"] == AT for row in found] == [True, True, True, False, False]


def test_headers_come_last_and_only_where_asked_for(cluster: Cluster) -> None:
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    schema = pa.schema({"headers": pa.list_(header), "value": pa.binary()})
    stream = cluster.outside.create_stream("s", schema)
    headers = [{"key": "k", "value": b"v"}]
    stream.append(pa.table({"headers": [headers], "value": [b"a"]}, schema=schema))
    assert "headers" not in rows()[0]
    assert rows(includeHeaders="true")[0]["headers"] == headers
    cluster.create()
    cluster.outside.delete_stream("s")
    cluster.outside.create_stream("s", TEXT).append(texts("a"))
    assert rows(includeHeaders="true")[0]["headers"] is None


def test_columns_of_the_stream_are_found_in_any_case(cluster: Cluster) -> None:
    schema = pa.schema({"KEY": pa.string(), "Value": pa.string()})
    stream = cluster.outside.create_stream("s", schema)
    stream.append(pa.table({"KEY": ["a"], "Value": ["a0"]}, schema=schema))
    assert [(row["key"], row["value"]) for row in rows()] == [(b"a", b"a0")]


def test_topic_is_the_stream_of_each_row(cluster: Cluster) -> None:
    for name in ("a", "b"):
        cluster.outside.create_stream(name, TEXT).append(texts(f"{name}0", f"{name}1"))
    found = {(row["topic"], row["offset"], row["value"]) for row in rows(streams="a,b")}
    assert found == {("a", 0, b"a0"), ("a", 1, b"a1"), ("b", 0, b"b0"), ("b", 1, b"b1")}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"key": pa.string()}, "has no column 'value'"),
        ({"value": pa.int64()}, "column 'value' is bigint, and includeMetadata=kafka gives it as"),
        ({"value": pa.binary(), "timestamp": pa.string()}, "column 'timestamp' is string"),
    ],
)
def test_stream_of_other_columns_is_refused_by_name(
    cluster: Cluster, columns: dict[str, Any], sentence: str
) -> None:
    cluster.outside.create_stream("s", pa.schema(columns))
    with pytest.raises(SchemaMismatchError, match=sentence):
        rows()


def test_column_of_headers_counts_only_where_headers_are_asked_for(cluster: Cluster) -> None:
    schema = pa.schema({"value": pa.string(), "headers": pa.string()})
    stream = cluster.outside.create_stream("s", schema)
    stream.append(pa.table({"value": ["a"], "headers": ["b"]}, schema=schema))
    assert [row["value"] for row in rows()] == [b"a"]
    with pytest.raises(SchemaMismatchError, match="column 'headers' is string"):
        rows(includeHeaders="true")
    with pytest.raises(SchemaMismatchError, match="column 'headers' cannot be declared"):
        rows(StructType([KAFKA_SCHEMA["value"], HEADERS]))


def test_stream_that_joins_without_a_value_is_refused_by_name(cluster: Cluster) -> None:
    cluster.outside.create_stream("s1", TEXT).append(texts("a0"))
    given = {"metadata": "zk://h/l", "includeMetadata": "kafka", "streamPattern": "s."}
    checked = read_options(given, streaming=True)
    found = SeveralSource(checked, stored_schema(checked), clock=count(step=60).__next__)
    start = found.initial_offset()
    cluster.outside.create_stream("s2", pa.schema({"key": pa.string()}))
    with pytest.raises(SchemaMismatchError, match="stream 's2' has no column 'value'"):
        found.latest_offset(start, unlimited=True)


def test_declared_schema_may_leave_columns_out_but_not_change_them(cluster: Cluster) -> None:
    cluster.outside.create_stream("s", TEXT).append(texts("a0"))
    some = StructType([KAFKA_SCHEMA["offset"], KAFKA_SCHEMA["value"]])
    assert rows(some) == [{"offset": 0, "value": b"a0"}]
    for wrong in (StructField("value", StringType()), StructField("other", LongType())):
        with pytest.raises(SchemaMismatchError, match="cannot be declared"):
            rows(StructType([wrong]))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stream": "s", "includeHeaders": "true"}, "needs includeMetadata=kafka"),
        ({"stream": "s", "includeMetadata": "pulsar"}, "needs true, false or kafka"),
        ({"ledgerId": "1", "includeMetadata": "kafka"}, "is for streams"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        read_options({"metadata": "zk://h/l", **options}, streaming=False)
