"""Reads of Spark by event time and key: options, plans, and the rows of the tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from connector.options import read_options, write_options
from connector.read import task
from connector.read.partitions import StreamPartition
from connector.read.readers import LedgerBatchReader
from connector.read.source import stored_schema
from connector.schema import METADATA_TYPE
from spark_ledger.errors import BookieUnavailableError, ConfigurationError, SchemaMismatchError
from spark_ledger.stream.blocking import Stream
from spark_ledger.stream.format.metadata_column import PositionedBatch
from tests.unit.connector.world import Cluster, batch_write, cluster, copied, to_read

__all__ = ["cluster"]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = StructType([StructField("a", LongType()), StructField("at", TimestampType())])
NUMBERS = StructType([StructField("_ledger", METADATA_TYPE, False), StructField("a", LongType())])


def fill(cluster: Cluster, *, second_is_late: bool = False) -> Stream:
    """Ten commits: commit n has keys 2n and 2n + 1, at hour n; or the second one a day later."""
    schema = pa.schema({"a": pa.int64(), "at": pa.timestamp("us", tz="UTC")})
    made = cluster.outside.create_stream("s", schema, key_columns=["a"], time_column="at")
    for n in range(10):
        first = BEGIN + timedelta(hours=n)
        rows: dict[str, list[Any]] = {
            "a": [2 * n, 2 * n + 1],
            "at": [first, first + timedelta(days=int(second_is_late))],
        }
        made.append(pa.table(rows, schema=schema))
    return made


def read(schema: StructType = NUMBERS, /, **options: str) -> tuple[int, list[dict[str, Any]]]:
    """How many ranges are planned, and the rows that the tasks give to Spark."""
    reader = LedgerBatchReader(to_read(False, includeMetadata="true", **options), schema)
    partitions = copied(reader).partitions()
    plans = [each.plan for each in partitions if isinstance(each, StreamPartition)]
    planned = sum([len(plan.ranges) for plan in plans])
    rows = [
        row
        for partition in partitions
        for batch in copied(reader).read(copied(partition))
        for row in batch.to_pylist()
    ]
    return planned, rows


@pytest.mark.parametrize(
    ("options", "planned", "keys"),
    [
        ({}, 10, list(range(20))),
        ({"startingEventTime": "2026-01-01T08:00:00Z"}, 2, [16, 17, 18, 19]),
        ({"endingEventTime": "2026-01-01 01:00"}, 1, [0, 1]),
        ({"keyEquals": "7"}, 1, [7]),
        ({"keyEquals": '{"A": 7}', "endingEventTime": "2026-01-01T03:00"}, 0, []),
    ],
)
def test_read_plans_and_delivers_what_matches(
    cluster: Cluster, options: dict[str, str], planned: int, keys: list[int]
) -> None:
    fill(cluster)
    ranges, rows = read(**options)
    assert (ranges, [row["a"] for row in rows]) == (planned, keys)
    for row in rows:
        place = row["_ledger"]
        assert (2 * place["segment"] + place["slot"], place["entry"]) == (row["a"], 0)


@pytest.mark.parametrize("is_packed", [False, True], ids=["as written", "packed"])
@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, list(range(20))),
        ({"keyEquals": "7"}, [7]),
        ({"startingEventTime": "2026-01-01T08:00:00Z"}, [16, 17, 18, 19]),
        ({"startingPosition": '{"segment": 8, "slot": 1}'}, [17, 18, 19]),
    ],
)
def test_read_of_places_alone_has_each_row(
    cluster: Cluster, options: dict[str, str], keys: list[int], is_packed: bool
) -> None:
    stream = fill(cluster)
    if is_packed:
        (packed,) = stream.optimize(entries_min=1)
        assert packed.pack is not None and packed.pack.entries == 1
    places = [row["_ledger"] for row in read(StructType(NUMBERS.fields[:1]), **options)[1]]
    assert [2 * place["segment"] + place["slot"] for place in places] == keys


def test_schema_without_columns_is_refused(cluster: Cluster) -> None:
    """A batch without columns has no rows: the read would be empty."""
    stream = fill(cluster)
    with pytest.raises(SchemaMismatchError, match="stream 's': the declared schema has no column"):
        read(StructType())
    with pytest.raises(ConfigurationError, match="name at least one column"):
        list(stream.read(columns=[]))
    with pytest.raises(ConfigurationError, match="name at least one column"):
        list(stream.read(schema=pa.schema([])))


def test_filtered_read_that_is_resumed_doubles_no_row(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, second_is_late=True)
    whole = Stream.read_ranges
    failures = iter([1, 3])

    def failing(self: Stream, *args: Any, **how: Any) -> Any:
        left = next(failures, None)
        for nth, batch in enumerate(whole(self, *args, **how)):
            if nth == left:
                raise BookieUnavailableError("in between")
            yield batch

    monkeypatch.setattr(Stream, "read_ranges", failing)
    assert [row["a"] for row in read(startingEventTime="2026-01-02")[1]] == list(range(1, 20, 2))


@pytest.mark.parametrize("reads_spans", [False, True])
@pytest.mark.parametrize("columns", ["true", "kafka"])
def test_rows_get_the_columns_about_them_a_few_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, columns: str, reads_spans: bool
) -> None:
    """An entry of a mebibyte has eight million rows of one bit."""
    monkeypatch.setattr(task, "_DESCRIBED_ROWS_MAX", 7)
    if reads_spans:
        monkeypatch.setattr("spark_ledger.stream.plan.read_plan.SEGMENTS_PLANNED_MAX", 0)
    stream = cluster.outside.create_stream("s", pa.schema({"value": pa.string()}))
    for first in (0, 30):
        stream.append(pa.table({"value": [str(n) for n in range(first, first + 30)]}))
    described, whole = [], task._all_with_metadata

    def counting(positioned: PositionedBatch, *how: Any) -> pa.RecordBatch:
        described.append(positioned.batch.num_rows)
        return whole(positioned, *how)

    monkeypatch.setattr(task, "_all_with_metadata", counting)
    options = to_read(False, includeMetadata=columns, startingPosition='{"segment": 0, "slot": 5}')
    reader = LedgerBatchReader(options, stored_schema(options))
    rows = pa.Table.from_batches(
        [batch for part in reader.partitions() for batch in copied(reader).read(copied(part))]
    ).to_pylist()
    assert [int(row["value"]) for row in rows] == list(range(5, 60))
    assert described == [7, 7, 7, 4, 7, 7, 7, 7, 2]
    if columns == "kafka":
        assert [row["offset"] for row in rows] == list(range(5, 60))
    else:
        places = [(row["_ledger"]["segment"], row["_ledger"]["slot"]) for row in rows]
        assert places == [divmod(n, 30) for n in range(5, 60)]


def test_write_declares_columns_of_the_stream_that_it_creates(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_write(monkeypatch, [1, 2], options={"keyColumns": "A"})
    config = cluster.stream().config
    assert (config.key_columns, config.time_column) == (("a",), None)
    assert [row["a"] for row in read(keyEquals="2")[1]] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingEventTime": "noon"}, "option startingEventTime = 'noon': needs milliseconds"),
        (
            {"startingEventTime": "2000", "endingEventTime": "1000"},
            "endingEventTime lies before startingEventTime",
        ),
        (
            {"startingEventTime": "1", "endingEventTime": "0"},
            "endingEventTime lies before startingEventTime",
        ),
        ({"ledgerId": "1", "stream": "", "keyEquals": "1"}, "option keyEquals is for streams"),
    ],
)
def test_condition_that_cannot_be_is_refused(options: dict[str, str], message: str) -> None:
    given = {"metadata": "zk://h/l", "stream": "s", **options}
    if not given["stream"]:
        del given["stream"]
    with pytest.raises(ConfigurationError, match=message):
        read_options(given, streaming=False)


def test_types_of_keys_and_times_are_called_as_spark_calls_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="stream 's': time column 'a' is bigint"):
        batch_write(monkeypatch, [1], options={"timeColumn": "a"})
    fill(cluster)
    with pytest.raises(ConfigurationError, match="'s': key column 'a' is bigint, which 'x' is not"):
        read(keyEquals="x")


def test_declared_columns_count_at_creation_only() -> None:
    given = {"metadata": "zk://h/l", "stream": "s", "createStream": "false", "timeColumn": "at"}
    with pytest.raises(ConfigurationError, match="timeColumn counts only when"):
        write_options(given, streaming=False)


def test_stream_without_a_key_refuses_a_read_by_key_when_it_is_planned(cluster: Cluster) -> None:
    cluster.create(1)
    with pytest.raises(ConfigurationError, match="declares no key columns"):
        read(keyEquals="1")
