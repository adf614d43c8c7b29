"""The readers that Spark calls, over real streams: pairs of triggers, deletions and writers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import LongType, StructField, StructType

from connector.options import read_options
from connector.read import readers, stream_source
from connector.read.offsets import AnyOffset
from connector.read.readers import LedgerBatchReader, LedgerStreamReader
from connector.read.source import stored_schema
from spark_ledger.errors import DataLossError, RetryableError, SchemaMismatchError
from spark_ledger.limits.connector import RETRY_AT_START_S, RETRY_PAUSES_S, RETRY_S
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.connector.world import (
    ROWS,
    WIDER,
    Cluster,
    batch_write,
    cluster,
    copied,
    table,
    to_read,
    values,
)

__all__ = ["cluster"]

LENIENT = {"failOnDataLoss": "false"}


class Query:
    """A streaming query: Spark's calls, and the offset that its checkpoint holds."""

    def __init__(
        self,
        schema: StructType = ROWS,
        *,
        at: AnyOffset | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._options = to_read(**options)
        self.reader = LedgerStreamReader(self._options, schema)
        self._schema = schema
        self.limit: Any = self.reader.getDefaultReadLimit()
        self.at = self.reader.initialOffset() if at is None else at

    def trigger(self) -> list[int] | None:
        """The rows of a micro-batch; None if there is none."""
        end = self.reader.latestOffset(self.at, self.limit)
        if end == self.at:
            return None
        rows = self.rows_between(self.at, end)
        self.at = end
        self.reader.commit(end)
        return rows

    def rows_between(self, start: AnyOffset, end: AnyOffset) -> list[int]:
        """The rows of the micro-batch between two offsets."""
        planner = LedgerStreamReader(self._options, self._schema)
        rows: list[int] = []
        for partition in planner.partitions(start, end):
            rows += values(copied(self.reader).read(copied(partition)))
        return rows

    def run(self) -> list[list[int]]:
        """All micro-batches until there is none."""
        return list(iter(self.trigger, None))

    def available_now(self, limit: Any = None) -> None:
        self.reader.prepareForTriggerAvailableNow()
        self.limit = limit or self.limit


@pytest.fixture(autouse=True)
def _main_thread_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader sets a signal handler for its process; a test runner's stays."""
    monkeypatch.setattr("connector.read.readers._exit_on_sigterm", lambda: None)


def grow_during(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rows: Iterator[int]) -> None:
    """Somebody appends a row before each question for the head."""
    head, stream = stream_source.StreamSource._head_reaching, cluster.stream()

    def busy(self: Any, position: Any) -> Any:
        stream.append(table(next(rows)))
        return head(self, position)

    monkeypatch.setattr(stream_source.StreamSource, "_head_reaching", busy)


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, [[1, 2, 3]]),
        ({"maxRowsPerTrigger": "2"}, [[1, 2], [3]]),
        ({"maxBytesPerTrigger": "1"}, [[1], [2], [3]]),
        ({"minRowsPerTrigger": "100"}, [[1, 2, 3]]),
        ({"minRowsPerTrigger": "2", "maxRowsPerTrigger": "2"}, [[1, 2], [3]]),
    ],
)
def test_available_now_ends_at_its_start_while_others_write(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    batches: list[list[int]],
) -> None:
    cluster.create(1, 2, 3)
    query = Query(options=options)
    query.available_now()
    grow_during(cluster, monkeypatch, iter(range(4, 50)))
    assert query.run() == batches
    assert cluster.stream().head().rows > 3


@pytest.mark.parametrize("options", [{}, {"maxRowsPerTrigger": "1"}, {"minRowsPerTrigger": "9"}])
def test_available_now_in_stream_made_again_ends_at_its_rows_of_then(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    cluster.create(1, 2)
    query = Query(options={**LENIENT, **options})
    query.available_now()
    cluster.create(11, 12, 13)
    first = query.trigger()
    assert first is not None
    grow_during(cluster, monkeypatch, iter(range(14, 50)))
    assert first + [row for rows in query.run() for row in rows] == [11, 12, 13]


def test_query_with_limits_gives_spark_a_limit(cluster: Cluster) -> None:
    cluster.create()
    for options, limit in (
        ({"maxRowsPerTrigger": "5"}, 1),
        ({"maxBytesPerTrigger": "5"}, 5),
        ({"minRowsPerTrigger": "5"}, 1),
    ):
        assert Query(options=options).limit == ReadMaxBytes(limit), options
    assert isinstance(Query().limit, ReadAllAvailable)


def test_query_with_limits_and_run_once_takes_all(cluster: Cluster) -> None:
    """Trigger.Once asks with ReadAllAvailable, whatever the default limit."""
    cluster.create(1, 2, 3)
    query = Query(options={"maxRowsPerTrigger": "1", "minRowsPerTrigger": "1"})
    query.limit = ReadAllAvailable()
    assert query.trigger() == [1, 2, 3]


def test_query_follows_a_stream_that_grows(cluster: Cluster) -> None:
    stream = cluster.create(1)
    query = Query()
    assert query.trigger() == [1]
    assert query.trigger() is None
    for row in range(2, 6):
        stream.append(table(row))
        assert query.trigger() == [row]


def test_query_keeps_no_commit_that_it_has_passed(cluster: Cluster) -> None:
    stream = cluster.create(*range(5))
    query = Query(options={"maxRowsPerTrigger": "2"})
    source = query.reader._source
    assert isinstance(source, stream_source.StreamSource)
    held = []
    for row in range(5, 10):
        stream.append(table(row))
        assert query.trigger()
        held.append(source._commits.memory_bytes)
    assert held[-1] == 0 and max(held) == held[0], held


def test_query_from_latest_misses_no_row_before_its_first_micro_batch(cluster: Cluster) -> None:
    stream = cluster.create(1)
    query = Query(options={"startingPosition": "latest"})
    stream.append(table(2))
    assert query.reader.initialOffset() == query.at
    assert query.trigger() is None, "the first one is empty, so that its start is in the checkpoint"
    assert query.trigger() == [2]


@pytest.mark.parametrize(
    "options",
    [
        {"startingPosition": "latest"},
        {"startingTransaction": '{"sink": "mine", "transaction": 7}'},
        {"streams": "s", "startingPosition": "latest"},
        {"streams": "s", "startingPosition": '{"s": "latest"}'},
        {"startingTimestamp": "2500"},
        {"streams": "s", "startingTimestamp": '{"s": "2500"}'},
    ],
)
@pytest.mark.parametrize("limits", [{}, {"maxRowsPerTrigger": "1"}])
def test_query_that_starts_again_in_its_first_micro_batch_reads_each_row(
    cluster: Cluster, options: dict[str, str], limits: dict[str, str]
) -> None:
    """Spark has only the end of that micro-batch, and asks the new driver where it starts. The
    clock of the writer is half a second behind."""
    stream = cluster.create()
    committer, times_ms = stream._stream._committer, iter((1000, 2000, 3000))
    committer.clock_ms = lambda: next(times_ms)
    stream.append(table(1), sink_id="mine", transaction_id=3)
    first = Query(options={**options, **limits})
    stream.append(table(2))
    end = first.reader.latestOffset(first.at, first.limit)
    stream.append(table(3))
    again = Query(options={**options, **limits})
    rows = again.rows_between(again.at, end)
    again.at = end
    assert rows + [row for batch in again.run() for row in batch] == [2, 3]


def test_query_from_latest_that_goes_on_has_rows_in_its_first_trigger(cluster: Cluster) -> None:
    stream = cluster.create(1)
    options = {"startingPosition": "latest"}
    query = Query(options=options)
    assert query.trigger() is None
    stream.append(table(2))
    assert Query(options=options, at=query.at).trigger() == [2]


@pytest.mark.parametrize(
    "options", [{}, {"startingTimestamp": "2000"}, {"streams": "s", "startingTimestamp": "2000"}]
)
def test_first_micro_batch_whose_rows_were_truncated_is_not_repeated_without_a_word(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    stream = cluster.create()
    committer, times_ms = stream._stream._committer, count(3000, 1000)
    committer.clock_ms = lambda: next(times_ms)
    for row in (1, 2):
        stream.append(table(row))
    first = Query(options={**options, "maxRowsPerTrigger": "1"})
    end = first.reader.latestOffset(first.at, first.limit)
    stream.append(table(3))
    stream.retention.truncate("latest")
    stream.append(table(4))
    again = Query(options=options)
    with pytest.raises(DataLossError, match=r"the (start|end) of the micro-batch"):
        again.reader.partitions(again.at, end)
    lenient = Query(options={**options, **LENIENT})
    assert lenient.rows_between(lenient.at, end) == []
    assert "of the micro-batch" in caplog.text


def test_query_with_minimum_rows_waits_in_each_trigger(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = cluster.create()
    query = Query(options={"minRowsPerTrigger": "3", "maxTriggerDelay": "1h"})
    monkeypatch.setattr(query.reader._source, "_sleep", lambda seconds: None)
    for round_ in range(3):
        rows = [10 * round_ + n for n in range(3)]
        for row in rows[:-1]:
            stream.append(table(row))
            assert query.trigger() is None, round_
        stream.append(table(rows[-1]))
        assert query.trigger() == rows


def test_delay_of_minimum_rows_counts_from_the_last_micro_batch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = cluster.create()
    query = Query(options={"minRowsPerTrigger": "3", "maxTriggerDelay": "60s"})
    now = [1000.0]
    monkeypatch.setattr(query.reader._source, "_sleep", lambda seconds: None)
    monkeypatch.setattr(query.reader._source, "_clock", lambda: now[0])
    monkeypatch.setattr(query.reader._source, "_rows_held_since", now[0])
    for row in range(3):
        stream.append(table(row))
        now[0] += 59
        assert query.trigger() is None, "not yet"
        now[0] += 1
        assert query.trigger() == [row], "sixty seconds are over"
    now[0] += 59
    assert query.trigger() is None
    stream.append(table(9))
    now[0] += 1
    assert query.trigger() == [9], "an idle trigger does not start the delay again"


# -- deleted, and made again -----------------------------------------------------------------------


def test_query_whose_stream_is_made_again_ends_or_reads_the_new_one(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create(1, 2)
    strict, lenient = Query(), Query(options=LENIENT)
    assert strict.trigger() == lenient.trigger() == [1, 2]
    stream = cluster.create(11)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        strict.trigger()
    with caplog.at_level(logging.WARNING):
        assert lenient.trigger() == [11]
        stream.append(table(12))
        assert lenient.trigger() == [12]
        assert lenient.trigger() is None
    warnings = [r for r in caplog.records if "earliest row of the new stream" in r.getMessage()]
    assert len(warnings) <= 2, "one of the reader and one of a planner"


def test_query_whose_stream_is_deleted_ends_or_waits_for_the_new_one(cluster: Cluster) -> None:
    cluster.create(1)
    strict, lenient = Query(), Query(options=LENIENT)
    assert strict.trigger() == lenient.trigger() == [1]
    cluster.outside.delete_stream("s")
    with pytest.raises(DataLossError, match=r"was deleted while .* the query ends; with fail"):
        strict.trigger()
    cluster.clock.meanwhile = lambda: cluster.create(21)
    assert lenient.trigger() == [21]
    cluster.outside.delete_stream("s")
    with pytest.raises(RetryableError, match="there is no new one yet"):
        lenient.trigger()
    assert cluster.clock.now > 200, "it has waited"


def test_query_does_not_go_on_with_a_new_stream_of_other_columns(cluster: Cluster) -> None:
    """Their rows would be null, although rows may be lost."""
    cluster.create(1)
    query = Query(options=LENIENT)
    assert query.trigger() == [1]
    cluster.outside.delete_stream("s")
    cluster.outside.create_stream("s", pa.schema([("b", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match="stream 's' has no column 'a'"):
        query.reader.latestOffset(query.at, query.limit)


@pytest.mark.parametrize("made_again", [False, True], ids=["deleted", "made again"])
def test_later_action_on_a_deleted_stream_fails_and_gives_no_old_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, made_again: bool
) -> None:
    """Spark plans a DataFrame once, and its tasks keep the handle from action to action."""
    cluster.create(1, 2)
    reader = LedgerBatchReader(to_read(False), ROWS)
    (partition,) = reader.partitions()
    assert values(copied(reader).read(copied(partition))) == [1, 2]

    async def kept(*ledger: object) -> None:
        """Bookies still have the rows for a while."""

    monkeypatch.setattr(StreamCatalog, "_delete_ledger", kept)
    cluster.outside.delete_stream("s")
    if made_again:
        cluster.outside.create_stream("s", table(1).schema).append(table(11, 12))
    with pytest.raises(DataLossError, match="'s' was deleted after this read was planned"):
        list(copied(reader).read(copied(partition)))
    lenient = LedgerBatchReader(to_read(False, **LENIENT), ROWS)
    assert values(lenient.read(copied(partition))) == []


def test_every_question_after_the_stream_was_made_again_is_loss(cluster: Cluster) -> None:
    for ask in (
        LedgerStreamReader.prepareForTriggerAvailableNow,
        LedgerStreamReader.reportLatestOffset,
    ):
        cluster.create(1)
        query = Query()
        cluster.create(11)
        with pytest.raises(DataLossError, match="the position of the query belongs to the former"):
            ask(query.reader)


def test_question_to_a_stream_made_again_is_repeated_after_an_outage(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    query = Query(options=LENIENT)
    assert query.trigger() == [1]
    cluster.create(11)
    ask, failures = stream_source.StreamSource.latest_offset, [1, 2]

    def away_at_first(self: Any, start: Any, *, unlimited: bool) -> Any:
        if self.stream_id == cluster.stream().config.stream_id and failures:
            failures.pop()
            raise RetryableError("no metadata server answers")
        return ask(self, start, unlimited=unlimited)

    monkeypatch.setattr(stream_source.StreamSource, "latest_offset", away_at_first)
    assert query.trigger() == [11]
    assert not failures


def test_restarted_query_of_a_stream_made_again_ends_or_starts_at_its_earliest(
    cluster: Cluster,
) -> None:
    cluster.create(1, 2)
    query = Query()
    assert query.trigger() == [1, 2]
    query.reader.stop()
    cluster.create(11, 12)
    with pytest.raises(DataLossError, match="Use a new checkpoint location"):
        Query(at=query.at).trigger()
    assert Query(at=query.at, options=LENIENT).trigger() == [11, 12]


def test_restarted_query_goes_on_after_a_schema_change(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(1)
    query = Query()
    assert query.trigger() == [1]
    batch_write(monkeypatch, [2], schema=ROWS)
    batch_write(monkeypatch, schema=WIDER, options={"mergeSchema": "true"})
    batch_write(monkeypatch, [3], schema=ROWS)
    assert query.trigger() == [2, 3], "the schema of a running query stays"
    query.reader.stop()
    schema = stored_schema(to_read())
    assert schema.names == ["a", "b"]
    batch_write(monkeypatch, [4], schema=ROWS)
    assert Query(schema, at=query.at).trigger() == [4]
    assert Query(schema).trigger() == [1, 2, 3, 4]


def test_stopped_query_closes_its_connection_and_the_next_has_its_own(cluster: Cluster) -> None:
    cluster.create(1)
    query = Query()
    assert query.trigger() == [1]
    (before,) = cluster.connections[-1:]
    another = Query()
    another.trigger()
    another.reader.stop()
    another.reader.stop()
    assert cluster.connections[-1]._closed
    assert Query(at=query.at).trigger() is None
    assert before is not cluster.connections[-1]


def test_batch_read_is_a_snapshot_of_when_it_was_planned(cluster: Cluster) -> None:
    stream = cluster.create(1, 2)
    reader = LedgerBatchReader(to_read(False), ROWS)
    partitions = reader.partitions()
    stream.append(table(3))
    assert values(b for p in partitions for b in copied(reader).read(copied(p))) == [1, 2]


MISSPELT = StructType([*ROWS.fields, StructField("aa", LongType())])


@pytest.mark.parametrize("given", [{}, {"streams": "s,t"}, {"streamPattern": ".*"}])
@pytest.mark.parametrize(
    "ask",
    [
        lambda options: LedgerBatchReader(options(False), MISSPELT).partitions(),
        lambda options: LedgerStreamReader(options(True), MISSPELT).initialOffset(),
        lambda options: LedgerStreamReader(options(True), MISSPELT).partitions({}, {}),
    ],
    ids=["batch", "streaming", "planner"],
)
def test_column_that_there_is_not_is_refused_before_any_task_starts(
    cluster: Cluster, ask: Callable[[Any], object], given: dict[str, str]
) -> None:
    """Else its rows would be null."""
    for name in "st":
        cluster.create(1, name=name)
    named = {"metadata": "zk://h/l", **(given or {"stream": "s"})}
    with pytest.raises(SchemaMismatchError, match=r"has (a|no) column 'aa'"):
        ask(lambda streaming: read_options(named, streaming=streaming))


def _away(*_given: object) -> Any:
    raise RetryableError("no metadata server answers")


@pytest.mark.parametrize(
    ("ask", "budget_s"),
    [
        (lambda _: LedgerBatchReader(to_read(False), ROWS).partitions(), RETRY_AT_START_S),
        (lambda _: LedgerStreamReader(to_read(), ROWS).initialOffset(), RETRY_AT_START_S),
        (lambda query: query.trigger(), RETRY_S),
    ],
    ids=["batch", "first question", "running query"],
)
def test_store_that_does_not_answer_is_waited_for_less_at_the_start(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Query], object],
    budget_s: float,
) -> None:
    """A running query that ends is dear; at the start it is more likely a wrong URI."""
    cluster.create(1)
    query = Query()
    began = cluster.clock.now
    monkeypatch.setattr(readers, "open_source", _away)
    monkeypatch.setattr(
        stream_source.StreamSource, "latest_offset", lambda *_given, **_how: _away()
    )
    with pytest.raises(RetryableError, match="no metadata server answers"):
        ask(query)
    assert budget_s - RETRY_PAUSES_S[-1] < cluster.clock.now - began <= budget_s
