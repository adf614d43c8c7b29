"""A batch write from its planner to its commit, with replies that get lost, over real streams."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    DataType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connector.write import prepare, writers
from connector.write.prepare import prepare_stream
from spark_ledger.errors import (
    ConflictError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.limits.connector import RETRY_IN_TASK_S, STREAM_CREATE_ATTEMPTS
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.stream.model import ENTRY_BYTES_DEFAULT, Compression, Retention
from spark_ledger.types import BookieId, BookieInfo, BookieState
from tests.unit.connector.world import (
    ROWS,
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

__all__ = ["cluster"]

NAMED = {"txnAppId": "app", "txnVersion": "7"}


def test_batch_write_is_one_commit_in_order_of_the_partitions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_write(monkeypatch, [1, 2], [], [3], [4, 5])
    assert cluster.rows() == [1, 2, 3, 4, 5]
    assert cluster.stream().head().next_commit == 1


def test_batch_commit_with_lost_reply_and_no_name_is_not_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could tell the repetition from new rows, so the user is told instead."""
    cluster.create()
    cluster.lose_the_next_commit_reply()
    with pytest.raises(OutcomeUnknownError):
        batch_write(monkeypatch, [1, 2])
    assert cluster.rows() == [1, 2]


@pytest.mark.parametrize("arrived", [True, False])
def test_named_batch_commit_with_lost_reply_is_made_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    cluster.create()
    if arrived:
        cluster.lose_the_next_commit_reply()
    else:
        cluster.lose_the_next_commit_request()
    batch_write(monkeypatch, [1, 2], options=NAMED)
    assert not cluster.faults and len(cluster.clock.pauses) == 1
    assert cluster.rows() == [1, 2]


@pytest.mark.parametrize("arrived", [True, False])
def test_micro_batch_commit_with_lost_reply_is_made_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    cluster.create()
    for number in range(3):
        if arrived:
            cluster.lose_the_next_commit_reply()
        else:
            cluster.lose_the_next_commit_request()
        micro_batch(monkeypatch, number, number)
        assert not cluster.faults
    assert cluster.rows() == [0, 1, 2]


@pytest.mark.parametrize("version", ["7", "6"])
def test_batch_write_of_committed_version_is_skipped_with_a_warning(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
) -> None:
    batch_write(monkeypatch, [1], options=NAMED)
    before = cluster.entries()
    with caplog.at_level(logging.WARNING):
        batch_write(monkeypatch, [2], options={**NAMED, "txnVersion": version})
    assert cluster.entries() == before
    assert "is skipped, because txnVersion 7 was committed before" in caplog.text
    assert cluster.rows() == [1]
    batch_write(monkeypatch, [3], options={**NAMED, "txnVersion": "8"})
    assert cluster.rows() == [1, 3]


def test_skipped_overwrite_keeps_the_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_write(monkeypatch, [1], options=NAMED)
    batch_write(monkeypatch, [2], overwrite=True, options=NAMED)
    assert cluster.rows() == [1]
    assert cluster.stream().head().next_commit == 1


def test_batch_write_overtaken_by_its_version_ends_well(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of one job: the slower one finds at its commit that the other was first."""
    cluster.create()
    writer = _planned(cluster)
    cluster.stream().append(table(1), sink_id="app", transaction_id=8)
    writer.commit([])
    assert cluster.rows() == [1]


def test_batch_write_conflict_of_another_kind_is_raised(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    writer = _planned(cluster)

    def refuse(*_args: object, **_named: object) -> None:
        raise ConflictError("of another kind")

    monkeypatch.setattr(writers.LedgerBatchWriter, "_stream", refuse)
    monkeypatch.setattr(writers.LedgerBatchWriter, "_is_committed", lambda self: False)
    with pytest.raises(ConflictError, match="of another kind"):
        writer.commit([])


def _planned(cluster: Cluster) -> writers.LedgerBatchWriter:
    """An overwriting write of version 7, of which no task has rows, planned and not committed."""
    return copied(writers.LedgerBatchWriter(to_write(**NAMED), ROWS, overwrite=True))


@pytest.mark.parametrize("rows", [[], [9]])
def test_overwrite_replaces_all_rows_also_by_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    batch_write(monkeypatch, [1, 2])
    batch_write(monkeypatch, rows, overwrite=True)
    assert cluster.rows() == rows


def test_overwrite_of_rows_that_a_hold_keeps_is_refused_and_says_which(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that may be repeated: it is none of another driver (rule T16)."""
    stream = cluster.create(1, 2)
    stream.retention.hold("night", "earliest", for_s=60)
    for options in ({}, NAMED):
        with pytest.raises(ConflictError, match="hold 'night' keeps the rows from position"):
            batch_write(monkeypatch, [3], overwrite=True, options=options)
    assert cluster.rows() == [1, 2]
    stream.retention.release("night")
    batch_write(monkeypatch, [3], overwrite=True, options=NAMED)
    assert cluster.rows() == [3]


def test_append_without_rows_makes_no_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_write(monkeypatch, [], [])
    assert cluster.stream().head().next_commit == 0


def test_batch_write_to_stream_made_again_meanwhile_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    writer = _planned(cluster)
    cluster.create(2)
    with pytest.raises(NoSuchStreamError):
        writer.commit([])
    assert cluster.rows() == [2]


# -- the stream that a write prepares --------------------------------------------------------------


def test_write_creates_the_stream_with_the_options(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.bookies = 5
    options = {"ensembleSize": "5", "writeQuorum": "4", "ackQuorum": "3", "compression": "zstd"}
    batch_write(monkeypatch, [1], options={**options, "entryBytes": "2048"})
    config = cluster.stream().config
    quorums = config.quorums
    assert (quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum) == (5, 4, 3)
    assert (config.compression.value, config.entry_bytes) == ("zstd", 2048)
    prepare_stream(to_write(stream="plain"), ROWS)
    config = cluster.stream("plain").config
    assert (config.compression, config.entry_bytes) == (Compression.LZ4, ENTRY_BYTES_DEFAULT)


def test_write_without_leave_to_create_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoSuchStreamError, match="createStream=true"):
        batch_write(monkeypatch, [1], options={"createStream": "false"})
    assert cluster.outside.list_streams() == []


def test_write_that_loses_the_race_to_create_uses_the_other_stream(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = StreamConnection.create_stream

    def slower(self: StreamConnection, *given: object, **named: object) -> object:
        if self is not cluster.outside and not cluster.outside.list_streams():
            cluster.create(1)
        return create(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamConnection, "create_stream", slower)
    batch_write(monkeypatch, [2])
    assert cluster.rows() == [1, 2]


@pytest.mark.parametrize("rounds", range(1, STREAM_CREATE_ATTEMPTS + 1))
def test_stream_that_others_make_and_delete_meanwhile_is_made_in_the_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    create, calls = StreamConnection.create_stream, 0

    def beside(self: StreamConnection, *given: Any, **named: Any) -> object:
        nonlocal calls
        calls += 1
        if calls < rounds:
            raise ConflictError("somebody has made it, and deletes it now")
        return create(self, *given, **named)

    monkeypatch.setattr(StreamConnection, "create_stream", beside)
    batch_write(monkeypatch, [1])
    assert (calls, cluster.rows()) == (rounds, [1])


MERGE = {"mergeSchema": "true"}
OTHER = StructType([*ROWS.fields, StructField("c", StringType())])


def test_merge_schema_adds_the_columns_with_the_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    with pytest.raises(SchemaMismatchError, match="'b'"):
        batch_write(monkeypatch, schema=WIDER)
    writer = writers.LedgerBatchWriter(to_write(**MERGE), WIDER, overwrite=False)
    monkeypatch.setattr(writers, "TaskContext", Task())
    rows = pa.table({"a": [2], "b": [7]})
    message = copied(writer).write(iter(rows.to_batches()))
    copied(writer).abort([message])
    assert cluster.stream().schema.names == ["a"], "nothing committed, nothing changed"
    copied(writer).commit(copied([message]))
    assert cluster.stream().schema.names == ["a", "b"]
    assert cluster.rows() == [1, 2]


def test_merge_schema_of_refused_write_changes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.outside.create_stream("s", pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    misspelt = StructType([StructField("aa", LongType())])
    with pytest.raises(SchemaMismatchError, match=r"'a' of type .* is missing"):
        batch_write(monkeypatch, schema=misspelt, options=MERGE)
    assert cluster.stream().schema.names == ["a"]


def test_merge_schema_of_data_that_lack_a_column_writes_nulls(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers with the same old columns and a new one each: the slower one finds the other's
    column, also if it was added after its tasks had written."""
    cluster.create(1)
    planned = writers.LedgerBatchWriter(to_write(**MERGE), WIDER, overwrite=False)
    monkeypatch.setattr(writers, "TaskContext", Task())
    message = copied(planned).write(iter(pa.table({"a": [2], "b": [7]}).to_batches()))
    later = writers.LedgerBatchWriter(to_write(**MERGE), OTHER, overwrite=False)
    rows = copied(later).write(iter(pa.table({"a": [3], "c": ["x"]}).to_batches()))
    copied(later).commit([rows])
    copied(planned).commit([message])
    third = StructType([StructField("d", LongType()), *ROWS.fields])
    last = writers.LedgerBatchWriter(to_write(**MERGE), third, overwrite=False)
    last.commit([last.write(iter(pa.table({"d": [9], "a": [4]}).to_batches()))])
    stream = cluster.stream()
    assert stream.schema.names == ["a", "c", "b", "d"]
    assert [tuple(row.values()) for part in stream.read() for row in part.to_pylist()] == [
        (1, None, None, None),
        (3, "x", None, None),
        (2, None, 7, None),
        (4, None, None, 9),
    ]


def test_merge_schema_without_rows_adds_the_columns(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    batch_write(monkeypatch, schema=WIDER, options=MERGE)
    assert cluster.stream().schema.names == ["a", "b"]
    batch_write(monkeypatch, schema=WIDER, options=MERGE)
    batch_write(monkeypatch)
    assert cluster.stream().head().next_commit == 2, "nothing new, so no commit"


def test_merge_schema_leaves_out_columns_of_nulls(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    nothing = StructType([*ROWS.fields, StructField("b", NullType())])
    writer = writers.LedgerBatchWriter(to_write(**MERGE), nothing, overwrite=False)
    monkeypatch.setattr(writers, "TaskContext", Task())
    writer.commit([writer.write(iter(pa.table({"a": [2], "b": pa.nulls(1)}).to_batches()))])
    assert cluster.stream().schema.names == ["a"]
    assert cluster.rows() == [1, 2]


def test_merge_schema_in_micro_batches_is_exactly_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    options = to_write(True, **MERGE)
    for number in range(2):
        writer = writers.LedgerStreamWriter(options, WIDER, overwrite=False)
        rows = pa.table({"a": [number], "b": [7]})
        messages: list[WriterCommitMessage | None] = []
        for partition in range(2):
            monkeypatch.setattr(writers, "TaskContext", Task(partition, batch=number))
            messages.append(copied(writer).write(iter(rows.to_batches())))
        cluster.lose_the_next_commit_reply()
        copied(writer).commit(copied(messages), number)
    assert cluster.rows() == [1, 0, 0, 1, 1]
    assert cluster.stream().config.schema_version == 1


def test_preparation_with_lost_reply_is_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_or_create, failures = prepare._open_or_create, [OutcomeUnknownError("lost")]

    def flaky(*given: object) -> object:
        if failures:
            raise failures.pop()
        return open_or_create(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare, "_open_or_create", flaky)
    batch_write(monkeypatch, [1])
    assert cluster.rows() == [1]
    assert pa.types.is_int64(cluster.stream().schema.field("a").type)


@pytest.mark.parametrize(
    ("data_type", "options", "message"),
    [
        (StringType(), {}, "'a': the stream has type bigint, the DataFrame has type string"),
        (StringType(), MERGE, "has type string; cast it; mergeSchema only adds columns"),
    ],
)
def test_refused_type_is_named_as_spark_does(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    data_type: DataType,
    options: dict[str, str],
    message: str,
) -> None:
    cluster.create(1)
    schema = StructType([StructField("A", data_type)])
    with pytest.raises(SchemaMismatchError, match=f"^stream 's': column .*{message}"):
        batch_write(monkeypatch, schema=schema, options=options)


def test_missing_and_unknown_columns_are_named_as_spark_does(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    with pytest.raises(
        SchemaMismatchError, match=r"'b' of type bigint is not in the .*mergeSchema"
    ):
        batch_write(monkeypatch, schema=WIDER)
    with pytest.raises(SchemaMismatchError, match="'a' of type bigint is missing in the DataFrame"):
        batch_write(monkeypatch, schema=StructType([StructField("b", LongType())]))


@pytest.mark.parametrize(("option", "write_quorum"), [("writeQuorum", 5), ("ensembleSize", 3)])
def test_stream_for_more_bookies_than_there_are_is_not_created(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    option: str,
    write_quorum: int,
) -> None:
    said = f"ensembleSize = 5 and writeQuorum = {write_quorum}"
    with pytest.raises(NotEnoughBookiesError, match=said) as told:
        batch_write(monkeypatch, [1], options={option: "5"})
    assert "needs 5 bookies, and 3 take writes" in str(told.value)
    assert len(caplog.records) == 1 and sum(cluster.clock.pauses) <= RETRY_IN_TASK_S
    assert cluster.outside.list_streams() == []


def test_stream_is_created_with_its_retention_and_its_declared_columns(cluster: Cluster) -> None:
    schema = StructType([*ROWS.fields, StructField("at", TimestampType())])
    options = {"retentionRows": "5", "keyColumns": "a", "timeColumn": "at"}
    prepare_stream(to_write(**options), schema)
    config = cluster.stream().config
    assert config.retention == Retention(rows=5)
    assert (config.key_columns, config.time_column) == (("a",), "at")


def test_stream_is_created_when_enough_bookies_take_writes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [BookieState.WRITABLE, BookieState.READ_ONLY, BookieState.WRITABLE]
    bookies = [BookieInfo(BookieId(f"b{n}"), f"b{n}:1", state) for n, state in enumerate(states)]
    monkeypatch.setattr(StreamConnection, "list_bookies", lambda _: bookies)

    def take_writes() -> None:
        assert cluster.outside.list_streams() == []
        bookies[1] = bookies[0]

    cluster.clock.meanwhile = take_writes
    batch_write(monkeypatch, [1])
    assert len(cluster.clock.pauses) == 1
    assert cluster.rows() == [1]


def test_size_of_entries_is_that_of_each_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a process that keeps the writer of an earlier one."""
    cluster.create()
    made = []
    for options in ({}, {"entryBytes": "1024"}, {}):
        before = cluster.entries()
        batch_write(monkeypatch, range(2000), options=options)
        made.append(cluster.entries() - before)
    assert made[0] == made[2] == 1
    assert made[1] > 10


@pytest.mark.parametrize(
    ("column", "commits"),
    [(("A", LongType()), 0), (("b", NullType()), 0), (("b", LongType()), 1)],
)
def test_write_without_rows_is_a_commit_only_if_it_adds_a_column(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, column: tuple[str, DataType], commits: int
) -> None:
    cluster.create()
    known = [] if column[0] == "A" else ROWS.fields
    schema = StructType([*known, StructField(*column)])
    batch_write(monkeypatch, schema=schema, options={"mergeSchema": "true"})
    assert cluster.stream().head().next_commit == commits
