"""The commit of a micro-batch: a repetition changes nothing, a second driver is refused."""

from __future__ import annotations

import importlib.util
import logging
import pickle
import sys
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from connector import sessions
from connector.options import WriteOptions, write_options
from connector.write import repeated, writers
from connector.write.task import TaskWritten
from connector.write.writers import LedgerStreamWriter
from spark_ledger.errors import ConfigurationError, ConflictError
from spark_ledger.stream.model import Commit, Head, SinkRecord
from tests.unit.connector.fakes import make_segment


class FakeStream:
    """Applies each (sink, transaction) once."""

    name = "s"

    def __init__(self) -> None:
        self.commits: list[Commit] = []

    def refresh(self, *, latest: bool) -> None:
        """It knows all there is."""

    def head(self) -> Head:
        return Head(stream_id="id", next_commit=len(self.commits))

    def commit_of(self, record: SinkRecord) -> Commit:
        return self.commits[record.commit]

    def last_transaction(self, sink_id: str) -> SinkRecord | None:
        of_sink = [commit for commit in self.commits if commit.sink_id == sink_id]
        if not of_sink:
            return None
        last = of_sink[-1]
        return SinkRecord(sink_id, last.transaction_id, last.number, last.run_id)

    def last_transactions(self) -> list[SinkRecord]:
        found = (self.last_transaction(sink) for sink in {c.sink_id for c in self.commits})
        return [record for record in found if record is not None]

    def commit_segments(
        self, segments: Any, *, sink_id: str, transaction_id: int, run_id: str
    ) -> Commit:
        for known in self.commits:
            if (known.sink_id, known.transaction_id) == (sink_id, transaction_id):
                return replace(known, applied=False)
        first = sum(len(known.segments) for known in self.commits)
        placed = tuple(segment.placed(first + n) for n, segment in enumerate(segments))
        commit = Commit(len(self.commits), 0, first, placed, sink_id, transaction_id, run_id=run_id)
        self.commits.append(commit)
        return commit


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    made = FakeStream()
    monkeypatch.setattr(sessions, "stream", lambda options, name, stream_id: made)
    monkeypatch.setattr(writers, "prepare_stream", lambda options, schema: "id")
    repeated._FIRST_BATCH_OF_RUN.clear()
    return made


def writer(**options: str) -> LedgerStreamWriter:
    checked = write_options({"metadata": "zk://h/l", "stream": "s", **options}, streaming=True)
    return LedgerStreamWriter(checked, StructType(), overwrite=False)


def message(
    batch: int, *rows: int, run: str = "run", query: str = "query", partition: int = 0
) -> TaskWritten:
    segments = tuple(make_segment(0, (count,)) for count in rows)
    return TaskWritten(partition, 0, "id", segments, query, run, batch)


def test_commit_without_messages_names_the_continuous_trigger(stream: FakeStream) -> None:
    with pytest.raises(ConfigurationError, match=r"'s'.*continuous trigger.*availableNow"):
        writer().commit([None, None], 0)
    assert stream.commits == []


def test_commit_of_micro_batch_is_one_commit_of_its_query(stream: FakeStream) -> None:
    writer().commit([message(0, 5), None, message(0, 7, partition=2)], 0)
    (commit,) = stream.commits
    assert (commit.sink_id, commit.transaction_id, commit.run_id) == ("query", 0, "query/run")
    assert commit.rows == 12


def test_process_that_commits_prepares_no_stream(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[str] = []

    def prepare(options: WriteOptions, schema: StructType) -> str:
        prepared.append(options.stream)
        return "id"

    monkeypatch.setattr(writers, "prepare_stream", prepare)
    runner = "pyspark.sql.worker.python_streaming_sink_runner"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["daemon.py", runner])
        writer().commit([message(0, 5)], 0)
        assert (prepared, len(stream.commits)) == ([], 1)
        # If Spark ever made in it what it sends to tasks, this would be prepared then.
        sent = pickle.dumps(writer())
        assert prepared == ["s"]
        assert pickle.loads(sent)._prepare() == ("id", None)
        assert prepared == ["s"], "a task takes the stream that was there before it"
    writer()
    assert prepared == ["s", "s"], "in a planner process errors are raised before any task starts"


def test_spark_has_the_process_that_commits_under_its_name() -> None:
    assert importlib.util.find_spec(writers._COMMIT_RUNNER) is not None


def test_commit_of_empty_micro_batch_commits_nothing(stream: FakeStream) -> None:
    writer().commit([message(0)], 0)
    assert stream.commits == []


def test_commit_repeated_after_restart_changes_nothing(
    stream: FakeStream, caplog: pytest.LogCaptureFixture
) -> None:
    writer().commit([message(4, 5)], 4)
    with caplog.at_level(logging.WARNING):
        writer().commit([message(4, 5, run="later")], 4)
        writer().commit([message(4, 2, 3, run="later still")], 4)
    assert caplog.text == ""
    assert len(stream.commits) == 1


@pytest.mark.parametrize("rows", [(6,), (4,), ()])
def test_commit_with_other_rows_than_committed_is_refused(
    stream: FakeStream, caplog: pytest.LogCaptureFixture, rows: tuple[int, ...]
) -> None:
    """An older copy of the checkpoint was restored. If the batch has more rows than were committed,
    skipping it would lose rows; if it has fewer, the next batch would commit rows again."""
    writer().commit([message(4, 5)], 4)
    with pytest.raises(ConflictError, match=r"as commit 0 with 5 rows; now it has .*older copy"):
        writer().commit([message(4, *rows, run="later")], 4)
    with caplog.at_level(logging.WARNING):
        writer(failOnDataLoss="false").commit([message(4, *rows, run="later")], 4)
    assert "with 5 rows; now it has" in caplog.text
    assert len(stream.commits) == 1


@pytest.mark.parametrize("committed_by", ["query", "another"])
def test_commit_of_empty_micro_batch_is_no_repetition_of_the_one_before(
    stream: FakeStream, committed_by: str
) -> None:
    """A query that is started again, and finds nothing new, goes on."""
    named = writer(sinkId="x") if committed_by == "another" else writer()
    named.commit([message(4, 5, query="query")], 4)
    named.commit([message(5, run="later")], 5)
    named.commit([message(6, 2, run="later")], 6)
    assert [commit.transaction_id for commit in stream.commits] == [4, 6]


def test_commit_of_empty_micro_batch_behind_the_sink_is_refused(stream: FakeStream) -> None:
    writer().commit([message(4, 5)], 4)
    writer().commit([message(5)], 5)
    with pytest.raises(ConflictError, match="has already committed micro-batch 4"):
        writer().commit([message(3, run="later")], 3)


def test_commit_repeated_by_its_run_changes_nothing(stream: FakeStream) -> None:
    for batch in (3, 4, 4):
        writer().commit([message(batch, 5)], batch)
    assert len(stream.commits) == 2


def test_commit_of_rival_run_is_refused_at_its_second_batch(stream: FakeStream) -> None:
    writer().commit([message(4, 5, run="a")], 4)
    writer().commit([message(4, 5, run="b")], 4)
    writer().commit([message(5, 5, run="b")], 5)
    with pytest.raises(ConflictError, match=r"committed by another run \(query/b\)"):
        writer().commit([message(5, 5, run="a")], 5)


def test_commit_of_rival_run_is_refused_however_many_runs_there_were(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit process serves one query after the other: the oldest are forgotten."""
    monkeypatch.setattr(repeated, "RUNS_REMEMBERED_MAX", 3)
    for n in range(5):
        writer().commit([message(n, 5, run=f"r{n}", query=f"q{n}")], n)
    assert len(repeated._FIRST_BATCH_OF_RUN) == 3
    writer().commit([message(5, 5, run="rival", query="q4")], 5)
    with pytest.raises(ConflictError, match="another run"):
        writer().commit([message(5, 5, run="r4", query="q4")], 5)


def test_commit_under_sink_name_of_another_query_is_refused(stream: FakeStream) -> None:
    writer(sinkId="x").commit([message(0, 5)], 0)
    with pytest.raises(ConflictError, match="use a new sinkId"):
        writer(sinkId="x").commit([message(0, 5, query="another")], 0)


@pytest.mark.parametrize(("before", "after"), [("", "y"), ("x", ""), ("x", "y")])
def test_commit_repeated_under_another_sink_name_is_refused(
    stream: FakeStream, before: str, after: str
) -> None:
    def named(name: str) -> LedgerStreamWriter:
        return writer(sinkId=name) if name else writer()

    named(before).commit([message(4, 5)], 4)
    how = f"with sinkId='{before}'" if before else "without sinkId"
    for batch, rows in ((4, (5,)), (4, ()), (3, (5,))):  # 3: of an older copy of the checkpoint
        with pytest.raises(ConflictError, match=f"micro-batch 4 {how}; .*a second time"):
            named(after).commit([message(batch, *rows, run=f"later{batch}")], batch)
    assert len(stream.commits) == 1
    named(before).commit([message(4, 5, run="once more")], 4)
    named(after).commit([message(5, 5, run="last")], 5)
    assert [commit.transaction_id for commit in stream.commits] == [4, 5]


@pytest.mark.parametrize(("first", "second"), [("x", ""), ("", "x"), ("x", "y")])
def test_commit_repeated_under_the_sink_name_before_the_last_is_refused(
    stream: FakeStream, first: str, second: str
) -> None:
    """The first name has a record, but of a micro-batch before this one."""

    def named(name: str) -> LedgerStreamWriter:
        return writer(sinkId=name) if name else writer()

    named(first).commit([message(0, 5)], 0)
    named(second).commit([message(1, 5, run="second")], 1)
    for batch, rows in ((1, (5,)), (1, ())):
        with pytest.raises(ConflictError, match=r"micro-batch 1 .*a second time"):
            named(first).commit([message(batch, *rows, run="third")], batch)
    named(first).commit([message(2, 5, run="fourth")], 2)
    assert [commit.transaction_id for commit in stream.commits] == [0, 1, 2]


def test_abort_deletes_nothing(stream: FakeStream) -> None:
    writer().commit([message(0, 5)], 0)
    writer().abort([message(0, 5), None], 0)
    assert len(stream.commits) == 1


def test_stream_writer_with_overwrite_is_refused(stream: FakeStream) -> None:
    options = write_options({"metadata": "zk://h/l", "stream": "s"}, streaming=True)
    with pytest.raises(ConfigurationError, match="use outputMode"):
        LedgerStreamWriter(options, StructType(), overwrite=True)
