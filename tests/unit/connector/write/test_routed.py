"""Writes whose rows go to the streams that a column names: in all of them, or in none."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from connector import retry, sessions
from connector.options import WriteOptions, write_options
from connector.write import routed, routed_task
from connector.write.routed import RoutedBatchWriter, RoutedStreamWriter
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.limits.connector import METADATA_LAG_S, RETRY_PAUSES_S
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.blocking import SegmentWriter
from tests.unit.connector.world import Cluster, Task, cluster, copied

__all__ = ["cluster"]

ROUTED = StructType([StructField("topic", StringType()), StructField("a", LongType())])
Rows = Sequence[tuple[str | None, int]]


def options(streaming: bool = True, /, **given: str) -> WriteOptions:
    defaults = {"metadata": "zk://h/l", "routeColumn": "topic"}
    return write_options({**defaults, **given}, streaming=streaming)


def batches(rows: Rows) -> list[pa.RecordBatch]:
    topics, values = zip(*rows, strict=True) if rows else ((), ())
    columns = {"topic": pa.array(topics, pa.string()), "a": pa.array(values, pa.int64())}
    return pa.table(columns).to_batches()


def micro_batch(
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    *partitions: Rows,
    run: str = "r",
    **given: str,
) -> None:
    writer = RoutedStreamWriter(options(**given), ROUTED, overwrite=False)
    messages = []
    for partition, rows in enumerate(partitions):
        monkeypatch.setattr(routed, "TaskContext", Task(partition, batch=number, run=run))
        messages.append(copied(writer).write(iter(batches(rows))))
    copied(writer).commit(copied(list(messages)), number)


def batch(monkeypatch: pytest.MonkeyPatch, rows: Rows, **given: str) -> None:
    writer = RoutedBatchWriter(options(False, **given), ROUTED, overwrite=False)
    monkeypatch.setattr(routed, "TaskContext", Task())
    copied(writer).commit([copied(writer).write(iter(batches(rows)))])


def test_rows_go_to_the_streams_that_they_name_in_order(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro_batch(monkeypatch, 0, [("x", 1), ("y", 2), ("x", 3)], [("x", 4)])
    assert {name: cluster.rows(name) for name in "xy"} == {"x": [1, 3, 4], "y": [2]}
    assert cluster.stream("x").schema.names == ["a"]
    micro_batch(monkeypatch, 1, [("y", 5)])
    assert cluster.rows("y") == [2, 5]
    micro_batch(monkeypatch, 2, [])
    batch(monkeypatch, [("z", 6)], keepRouteColumn="true")
    assert cluster.stream("z").schema.names == ["topic", "a"]


def test_repeated_micro_batch_changes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("x", 1), ("y", 2)]
    cluster.lose_the_next_commit_reply()
    micro_batch(monkeypatch, 0, rows)
    micro_batch(monkeypatch, 0, rows, run="again")
    assert [cluster.rows(name) for name in "xy"] == [[1], [2]]
    with pytest.raises(ConflictError, match="2 rows in 2 streams; now it has 3 rows in 2 streams"):
        micro_batch(monkeypatch, 0, [*rows, ("y", 3)], run="third")
    with pytest.raises(ConflictError, match=r"'x'.* with 1 rows; now it has 2"):
        micro_batch(monkeypatch, 0, [*rows, ("x", 3)], run="fourth")


def test_lost_commit_is_there_in_all_streams_or_in_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro_batch(monkeypatch, 0, [("x", 1), ("y", 2)])
    for lose in (cluster.lose_the_next_commit_request, cluster.lose_the_next_commit_reply):
        lose()
        micro_batch(monkeypatch, 1, [("x", 3), ("y", 4)])
    assert [cluster.rows(name) for name in "xy"] == [[1, 3], [2, 4]]


def test_stream_made_again_between_two_attempts_is_no_silent_loss(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("x", 1), ("y", 2)]
    micro_batch(monkeypatch, 0, rows)
    cluster.outside.delete_stream("y")
    with pytest.raises(ConflictError, match="to 1 of these 2 streams"):
        micro_batch(monkeypatch, 0, rows, run="again")
    with caplog.at_level(logging.WARNING):
        micro_batch(monkeypatch, 0, rows, run="third", failOnDataLoss="false")
    assert "what was committed is kept" in caplog.text
    micro_batch(monkeypatch, 1, [("x", 3), ("y", 4)], run="third")
    assert [cluster.rows(name) for name in "xy"] == [[1, 3], [4]]


def test_new_sink_name_is_checked_in_every_stream_of_the_micro_batch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("x", 1), ("y", 2)]
    micro_batch(monkeypatch, 0, rows)
    cluster.create(name="x")
    with pytest.raises(ConflictError, match=r"'y': this query has committed micro-batch 0 without"):
        micro_batch(monkeypatch, 0, rows, run="later", sinkId="new")
    assert [cluster.rows(name) for name in "xy"] == [[], [2]]
    micro_batch(monkeypatch, 1, [("y", 3)], run="second", sinkId="new")
    with pytest.raises(ConflictError, match="committed micro-batch 1 with sinkId='new'"):
        micro_batch(monkeypatch, 1, [("x", 1), ("y", 3)], run="third")
    assert [cluster.rows(name) for name in "xy"] == [[], [2, 3]]


def test_rival_run_is_refused_though_lost_rows_may_be_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lenient = {"failOnDataLoss": "false"}
    both = [("x", 1), ("y", 2)]
    micro_batch(monkeypatch, 4, both, run="a", **lenient)
    micro_batch(monkeypatch, 4, both, run="b", **lenient)
    micro_batch(monkeypatch, 5, [("x", 3)], run="b", **lenient)
    for rows, sentence in ((both, "to 1 of these 2 streams"), ([("x", 3)], "another run")):
        with pytest.raises(ConflictError, match=sentence):
            micro_batch(monkeypatch, 5, rows, run="a", **lenient)
    assert [cluster.rows(name) for name in "xy"] == [[1, 3], [2]]


def test_older_micro_batch_is_refused_though_lost_rows_may_be_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy of the checkpoint: what it has planned anew is in no stream."""
    lenient = {"failOnDataLoss": "false"}
    micro_batch(monkeypatch, 4, [("x", 1), ("y", 2)], run="a", **lenient)
    with pytest.raises(ConflictError):
        micro_batch(monkeypatch, 3, [("x", 7), ("y", 8)], run="b", **lenient)
    assert [cluster.rows(name) for name in "xy"] == [[1], [2]]


def test_stream_made_again_while_rows_are_written_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RoutedStreamWriter(options(), ROUTED, overwrite=False)
    messages = []
    for partition in range(2):
        monkeypatch.setattr(routed, "TaskContext", Task(partition))
        messages.append(copied(writer).write(iter(batches([("x", 1), ("y", 2)]))))
        cluster.create(name="y")
    with pytest.raises(ConflictError, match="'y' was deleted and created again"):
        writer.commit(list(messages), 0)
    with pytest.raises(NoSuchStreamError):
        writer.commit(list(messages[1:]), 0)
    assert cluster.rows("x") == []


def test_stream_that_a_lagging_server_does_not_know_yet_is_looked_for_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RoutedStreamWriter(options(), ROUTED, overwrite=False)
    monkeypatch.setattr(routed, "TaskContext", Task())
    message = writer.write(iter(batches([("x", 1)])))
    found, missing = sessions.stream, [True]

    def lagging(*wanted: Any) -> Any:
        if missing:
            missing.clear()
            raise NoSuchStreamError("stream 'x' does not exist")
        return found(*wanted)

    monkeypatch.setattr(sessions, "stream", lagging)
    writer.commit([message], 0)
    assert cluster.rows("x") == [1]


def test_batch_write_with_a_version_happens_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for version in ("1", "1", "0", "2"):
        named = {"txnAppId": "app", "txnVersion": version}
        batch(monkeypatch, [("x", int(version)), ("y", int(version))], **named)
    assert [cluster.rows(name) for name in "xy"] == [[1, 2], [1, 2]]
    assert caplog.text.count("is skipped") == 2


@pytest.mark.parametrize(
    "named", [{"txnAppId": "app", "txnVersion": "1"}, {}], ids=["named", "nameless"]
)
def test_batch_commit_whose_reply_is_lost_is_repeated_only_under_a_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    """Nobody could tell the repetition of a nameless one from other rows."""
    cluster.create(name="x")
    cluster.create(name="y")
    looks = 4 if named else 2  # at the head of each stream, and at the record of its sink
    cluster.faults = [("transaction", Outcome.LOST_REPLY)] + looks * [("get", Outcome.UNAVAILABLE)]
    with nullcontext() if named else pytest.raises(OutcomeUnknownError):
        batch(monkeypatch, [("x", 1), ("y", 2)], **named)
    assert not cluster.faults and len(cluster.clock.pauses) == bool(named)
    assert [cluster.rows(name) for name in "xy"] == [[1], [2]]


def test_batch_write_with_a_version_that_some_streams_have_is_no_silent_loss(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"txnAppId": "app", "txnVersion": "1"}
    batch(monkeypatch, [("x", 1)], **named)
    with pytest.raises(ConflictError, match="to 1 of these 2 streams"):
        batch(monkeypatch, [("x", 1), ("y", 2)], **named)
    assert [cluster.rows(name) for name in "xy"] == [[1], []]


def test_rows_of_a_task_that_failed_are_in_no_stream(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("x", 1), ("y", 2), ("z", 3)]

    def ends_early() -> Iterator[pa.RecordBatch]:
        yield from batches(rows)
        raise ValueError("the query's own")

    writer = RoutedStreamWriter(options(), ROUTED, overwrite=False)
    monkeypatch.setattr(routed, "TaskContext", Task())
    with pytest.raises(ValueError, match="the query's own"):
        writer.write(ends_early())
    micro_batch(monkeypatch, 0, rows)
    assert [cluster.rows(name) for name in "xyz"] == [[1], [2], [3]]


@pytest.mark.parametrize("call", range(1, 8))
@pytest.mark.parametrize("kind", [NotEnoughBookiesError, OutcomeUnknownError])
def test_rows_of_a_task_that_met_trouble_in_one_stream_are_in_each_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, call: int, kind: type[LedgerError]
) -> None:
    """A writer serves the next attempt too: what the others have taken is forgotten with it."""
    monkeypatch.setattr(retry, "RETRY_PAUSES_S", (0.0,))
    rows, count = [("x", 1), ("y", 2), ("x", 3), ("z", 4)], 0

    def in_trouble(name: str) -> None:
        right = getattr(SegmentWriter, name)

        def failing(writer: SegmentWriter, *given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            found = right(writer, *given, **named)
            if count == call:
                raise kind("down")
            return found

        monkeypatch.setattr(SegmentWriter, name, failing)

    in_trouble("write")
    in_trouble("finish")
    micro_batch(monkeypatch, 0, rows)
    assert count == 6 + call if call <= 6 else count == 6, "three streams, each written and ended"
    micro_batch(monkeypatch, 1, [("x", 5), ("y", 6)])
    assert [cluster.rows(name) for name in "xyz"] == [[1, 3, 5], [2, 6], [4]]


def test_new_columns_of_routed_rows_come_to_each_stream_that_lacks_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1, name="x")
    wider = StructType([*ROUTED.fields, StructField("b", LongType())])
    rows = pa.table({"topic": ["x", "y", "x"], "a": [2, 3, 4], "b": [20, 30, None]})
    monkeypatch.setattr(routed, "TaskContext", Task())
    with pytest.raises(SchemaMismatchError, match="'b'"):
        RoutedStreamWriter(options(), wider, overwrite=False).write(iter(rows.to_batches()))
    writer = RoutedStreamWriter(options(mergeSchema="true"), wider, overwrite=False)
    message = copied(writer).write(iter(rows.to_batches()))
    assert cluster.stream("x").schema.names == ["a"], "they come with the commit"
    writer.commit(copied([message]), 0)
    found = {name: pa.Table.from_batches(cluster.stream(name).read()) for name in "xy"}
    assert found["x"].to_pydict() == {"a": [1, 2, 4], "b": [None, 20, None]}
    assert found["y"].to_pydict() == {"a": [3], "b": [30]}


def test_new_columns_of_a_routed_batch_come_with_its_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1, name="x")
    wider = StructType([*ROUTED.fields, StructField("b", LongType())])
    monkeypatch.setattr(routed, "TaskContext", Task())
    writer = RoutedBatchWriter(options(False, mergeSchema="true"), wider, overwrite=False)
    rows = pa.table({"topic": ["x", "y"], "a": [2, 3], "b": [20, 30]})
    message = copied(writer).write(iter(rows.to_batches()))
    assert cluster.stream("x").schema.names == ["a"]
    copied(writer).commit(copied([message]))
    found = {name: pa.Table.from_batches(cluster.stream(name).read()) for name in "xy"}
    assert found["x"].to_pydict() == {"a": [1, 2], "b": [None, 20]}
    assert found["y"].to_pydict() == {"a": [3], "b": [30]}


def test_route_is_found_in_any_case(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = StructType([StructField("a", LongType()), StructField("Topic", StringType())])
    writer = RoutedStreamWriter(options(routeColumn="TOPIC"), schema, overwrite=False)
    monkeypatch.setattr(routed, "TaskContext", Task())
    rows = pa.table({"a": [1, 2], "Topic": ["x", "y"]})
    writer.commit([copied(writer).write(iter(rows.to_batches()))], 0)
    assert [cluster.rows(name) for name in "xy"] == [[1], [2]]


@pytest.mark.parametrize("gone", ["x", "y", "xy"])
def test_stream_that_is_gone_is_looked_for_no_longer_than_a_server_may_lag(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """The process that commits has not met it before."""
    writer = RoutedStreamWriter(options(), ROUTED, overwrite=False)
    monkeypatch.setattr(routed, "TaskContext", Task())
    message = copied(writer).write(iter(batches([("x", 1), ("y", 2)])))
    for name in gone:
        cluster.outside.delete_stream(name)
    cluster.restart()
    began = cluster.clock.now
    with pytest.raises(NoSuchStreamError, match=f"'{gone[0]}'"):
        copied(writer).commit(copied([message]), 0)
    waited_s = cluster.clock.now - began
    assert METADATA_LAG_S - RETRY_PAUSES_S[-1] < waited_s <= METADATA_LAG_S
    left = "".join(name for name in "xy" if name not in gone)
    assert [cluster.rows(name) for name in left] == [[] for _ in left], "all of it or nothing"


def test_batch_write_that_finds_its_own_commit_is_not_called_skipped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who followed that sentence, and wrote the rows under a higher version, would double them."""
    batch(monkeypatch, [("x", 1), ("y", 2)], txnAppId="app", txnVersion="1")
    named = {"txnAppId": "app", "txnVersion": "2"}
    writer = RoutedBatchWriter(options(False, **named), ROUTED, overwrite=False)
    message = copied(writer).write(iter(batches([("x", 3), ("y", 4), ("x", 5)])))
    cluster.faults = [("transaction", Outcome.LOST_REPLY)] + 99 * [("get", Outcome.UNAVAILABLE)]
    cluster.clock.meanwhile = cluster.faults.clear
    copied(writer).commit([copied(message)])
    assert len(cluster.clock.pauses) == 1, "the first attempt gave up, and nobody knew its outcome"
    assert [cluster.rows(name) for name in "xy"] == [[1, 3, 5], [2, 4]]
    assert "is skipped" not in caplog.text
    batch(monkeypatch, [("x", 3), ("y", 4), ("x", 5)], **named)
    assert caplog.text.count("is skipped") == 1, "the same rows, written anew, are not it"
    assert [cluster.rows(name) for name in "xy"] == [[1, 3, 5], [2, 4]]


def test_batch_write_without_rows_is_not_called_skipped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch(monkeypatch, [], txnAppId="app", txnVersion="1")
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_unknown_stream_is_refused_where_none_may_be_created(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(name="x")
    with pytest.raises(NoSuchStreamError, match=r"stream 'y' does not exist.*createStream=true"):
        micro_batch(monkeypatch, 0, [("x", 1), ("y", 2)], createStream="false")
    assert cluster.rows("x") == []


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([("x", 1), (None, 2)], "1 rows have null in 'topic'"),
        ([("a/b", 1)], "a/b"),
        ([(f"s{n}", n) for n in range(101)], "name more than 100 streams"),
    ],
)
def test_rows_without_a_usable_name_fail_the_task(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rows: Rows, sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        micro_batch(monkeypatch, 0, rows)


def test_name_that_is_no_text_is_refused_with_its_bytes() -> None:
    """Spark's casts make text of any bytes."""
    name = pa.array([b"x", b"\xff"], pa.binary()).view(pa.string())
    rows = pa.RecordBatch.from_arrays([name, pa.array([1, 2])], names=["topic", "a"])
    route = routed_task.route_of(options(), ROUTED)
    with pytest.raises(ConfigurationError, match=r"routeColumn: b'\\xff' in 'topic' is no UTF-8"):
        list(routed_task.by_stream(rows, route))


def test_options_and_columns_of_routes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="routeColumn and stream exclude each other"):
        options(stream="s")
    with pytest.raises(ConfigurationError, match="keepRouteColumn needs option routeColumn"):
        write_options(
            {"metadata": "zk://h/l", "stream": "s", "keepRouteColumn": "true"}, streaming=True
        )
    for schema, sentence in (
        (StructType([StructField("a", LongType())]), "no column 'topic'; its columns are a"),
        (StructType([StructField("Topic", LongType())]), "'Topic' has the type bigint"),
        (StructType([StructField("topic", StringType())]), "no column but 'topic'"),
        (
            StructType([StructField("topic", StringType()), StructField("Topic", StringType())]),
            "the names 'topic' and 'Topic' differ in case only",
        ),
    ):
        with pytest.raises(SchemaMismatchError, match=sentence):
            RoutedStreamWriter(options(), schema, overwrite=False)
    with pytest.raises(ConfigurationError, match="mode overwrite does not go with"):
        RoutedBatchWriter(options(False), ROUTED, overwrite=True)
    with pytest.raises(ConfigurationError, match="output modes other than append"):
        RoutedStreamWriter(options(), ROUTED, overwrite=True)


def test_continuous_trigger_is_named(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="continuous trigger"):
        RoutedStreamWriter(options(), ROUTED, overwrite=False).commit([None], 0)


def test_each_stream_of_a_task_is_written_as_the_options_say(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, object, object]] = []
    writer = sessions.segment_writer

    def segment_writer(connection: Any, name: str, stream_id: str, **how: Any) -> SegmentWriter:
        made.append((name, how["compression"], how["entry_bytes"]))
        return writer(connection, name, stream_id, **how)

    monkeypatch.setattr(sessions, "segment_writer", segment_writer)
    rows: Rows = [("x", 1), ("y", 2), ("x", 3)]
    micro_batch(monkeypatch, 0, rows, compression="zstd", entryBytes="65536")
    assert made == [("x", "zstd", 65536), ("y", "zstd", 65536)]


@pytest.mark.parametrize("streams", [2, 3])
def test_task_writes_to_as_many_streams_as_a_commit_takes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    monkeypatch.setattr(routed_task, "STREAMS_PER_COMMIT_MAX", 2)
    rows: Rows = [(f"s{number}", number) for number in range(streams)]
    if streams > 2:
        with pytest.raises(ConfigurationError, match="more than 2 streams"):
            micro_batch(monkeypatch, 0, rows)
        assert "s2" not in cluster.outside.list_streams(), "none is made in vain"
    else:
        micro_batch(monkeypatch, 0, rows)
        assert cluster.rows("s1") == [1]


def test_every_writer_of_a_task_that_failed_forgets_its_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept for the next task of this process, which would write them once more."""
    for error in (NotEnoughBookiesError("too few"), KeyboardInterrupt()):
        abandoned: list[str] = []
        given_up = SegmentWriter.abandon

        def abandon(
            self: SegmentWriter, abandoned: list[str] = abandoned, given_up: Any = given_up
        ) -> None:
            abandoned.append(self._writer._schemas.config.name)
            given_up(self)

        def rows(error: BaseException = error) -> Iterator[pa.RecordBatch]:
            yield from batches([("x", 1), ("y", 2)])
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(SegmentWriter, "abandon", abandon)
            patched.setattr("connector.retry.RETRY_PAUSES_S", (1e9,))
            patched.setattr(routed, "TaskContext", Task())
            writer = RoutedStreamWriter(options(), ROUTED, overwrite=False)
            with pytest.raises(type(error)):
                copied(writer).write(rows())
        assert sorted(abandoned) == ["x", "y"]
