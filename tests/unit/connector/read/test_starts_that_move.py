"""Queries whose start is another one a moment later (rule T31), as each trigger of Spark runs them.

A run with availableNow or once is a process of its own, which knows its checkpoint only.
"""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector.read.offsets import AnyOffset
from spark_ledger.errors import DataLossError
from tests.unit.connector.read.test_readers import LENIENT, Query
from tests.unit.connector.world import Cluster, cluster, table

__all__ = ["cluster"]

FROM_SEVEN = {"startingTransaction": '{"sink": "mine", "transaction": 7}'}


@pytest.fixture(autouse=True)
def _main_thread_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader sets a signal handler for its process; a test runner's stays."""
    monkeypatch.setattr("connector.read.readers._exit_on_sigterm", lambda: None)


def run_once(at: AnyOffset | None, options: dict[str, str]) -> tuple[AnyOffset, list[int]]:
    """A run of Trigger.Once: where it ends, and its rows."""
    query = Query(options=options, at=at)
    query.limit = ReadAllAvailable()
    rows = query.trigger()
    return query.at, rows or []


def test_available_now_from_a_transaction_to_come_reads_it_in_the_next_run(
    cluster: Cluster,
) -> None:
    """It begins where the checkpoint ends, and so the options name that position again."""
    stream = cluster.create()
    stream.append(table(1), sink_id="mine", transaction_id=6)
    query = Query(options=FROM_SEVEN)
    query.available_now()
    assert query.run() == []
    at = query.at
    for number in (7, 8):
        stream.append(table(number), sink_id="mine", transaction_id=number)
        query = Query(options=FROM_SEVEN, at=at)
        query.available_now()
        assert query.run() == [[number]]
        at = query.at


def test_available_now_killed_behind_its_empty_micro_batch_reads_in_the_next_run(
    cluster: Cluster,
) -> None:
    stream = cluster.create()
    stream.append(table(1), sink_id="mine", transaction_id=6)
    killed = Query(options=FROM_SEVEN)
    killed.available_now()
    assert killed.trigger() is None, "the start is in the checkpoint now"
    stream.append(table(7), sink_id="mine", transaction_id=7)
    again = Query(options=FROM_SEVEN, at=killed.at)
    again.available_now()
    assert again.run() == [[7]]


def test_once_from_a_start_that_moves_reads_from_its_second_run_on(cluster: Cluster) -> None:
    stream = cluster.create()
    stream.append(table(1), sink_id="mine", transaction_id=6)
    at, rows = run_once(None, FROM_SEVEN)
    assert rows == [], "the start is in the checkpoint now"
    stream.append(table(7), sink_id="mine", transaction_id=7)
    stream.append(table(8))
    at, rows = run_once(at, FROM_SEVEN)
    assert rows == [7, 8]
    stream.append(table(9))
    assert run_once(at, FROM_SEVEN)[1] == [9]


@pytest.mark.parametrize("options", [FROM_SEVEN, {"startingTimestamp": "2000"}])
def test_once_from_a_start_that_was_found_reads_in_its_first_run(
    cluster: Cluster, options: dict[str, str]
) -> None:
    """A commit behind the time, or the transaction, is there: it is found again."""
    stream = cluster.create()
    times_ms = iter((1_000, 3_000, 4_000, 5_000))
    stream._stream._committer.clock_ms = lambda: next(times_ms)
    stream.append(table(1), sink_id="mine", transaction_id=6)
    stream.append(table(7), sink_id="mine", transaction_id=7)
    stream.append(table(8))
    at, rows = run_once(None, options)
    assert rows == [7, 8]
    stream.append(table(9))
    assert run_once(at, options)[1] == [9]


def test_once_reads_a_stream_beside_one_that_is_idle_and_begins_at_its_end(
    cluster: Cluster,
) -> None:
    cluster.create(1, name="a")
    busy = cluster.create(11, name="b")
    options = {"streams": "a,b", "startingPosition": '{"a": "latest"}'}
    at, rows = run_once(None, options)
    assert rows == []
    busy.append(table(12))
    assert run_once(at, options)[1] == [11, 12]


def test_run_that_repeats_the_first_micro_batch_goes_on_with_rows(cluster: Cluster) -> None:
    """Spark repeats a micro-batch that it has no commit of: it asks for the start and the plan,
    and then for the end of the next one."""
    stream = cluster.create()
    stream.append(table(1), sink_id="mine", transaction_id=6)
    first = Query(options=FROM_SEVEN)
    end = first.reader.latestOffset(first.at, first.limit)
    stream.append(table(7), sink_id="mine", transaction_id=7)
    again = Query(options=FROM_SEVEN)
    assert again.at == end, "transaction 7 begins where the stream ended"
    assert again.reader.partitions(again.at, end) == []
    again.at = end
    again.available_now()
    assert again.run() == [[7]]


def test_first_micro_batch_that_is_repeated_is_the_only_empty_one(cluster: Cluster) -> None:
    """What it starts from is still to come when it is repeated."""
    stream = cluster.create()
    stream.append(table(1), sink_id="mine", transaction_id=6)
    first = Query(options=FROM_SEVEN)
    end = first.reader.latestOffset(first.at, first.limit)
    again = Query(options=FROM_SEVEN)
    assert again.at == end == first.at, "transaction 7 is still to come"
    assert again.reader.partitions(again.at, end) == []
    stream.append(table(7), sink_id="mine", transaction_id=7)
    assert again.trigger() == [7]


def test_restart_does_not_look_for_a_start_that_was_truncated(cluster: Cluster) -> None:
    cluster.create(1, name="a")
    cut = cluster.create(1, 2, 3, name="b")
    options = {"streams": "a,b", "startingPosition": '{"a": "latest", "b": {"segment": 1}}'}
    query = Query(options=options)
    assert query.trigger() is None
    assert query.run() == [[2, 3]]
    cut.retention.truncate("latest")
    cut.append(table(4))
    assert Query(options=options, at=query.at).trigger() == [4]


def test_restart_does_not_look_for_the_transactions_of_a_former_stream(cluster: Cluster) -> None:
    stream = cluster.create()
    stream.append(table(7), sink_id="mine", transaction_id=7)
    options = {**FROM_SEVEN, **LENIENT}
    query = Query(options=options)
    assert query.trigger() == [7]
    cluster.create(11)
    assert Query(options=options, at=query.at).trigger() == [11]


# -- a time that was reached, and then a writer whose clock is behind ------------------------------

HOUR_MS = 3_600_000
FROM_TIME = {"startingTimestamp": str(HOUR_MS + 1)}
ONE_OF_SEVERAL = {"streams": "s", "startingTimestamp": f'{{"s": {HOUR_MS + 1}}}'}


class Writer:
    """Appends rows, one in each commit, at times of its clock; None: a commit without rows."""

    def __init__(self, cluster: Cluster) -> None:
        self.stream = cluster.create()
        for row in range(4):  # the start is row 1
            self.append(row, HOUR_MS + row)

    def append(self, row: int | None, time_ms: int) -> None:
        committer = self.stream._stream._committer
        committer.clock_ms = lambda: time_ms
        if row is None:
            self.stream.commit_segments([])
        else:
            self.stream.append(table(row))


@pytest.mark.parametrize("options", [FROM_TIME, ONE_OF_SEVERAL])
@pytest.mark.parametrize("late", [99, None])
@pytest.mark.parametrize(
    ("limits", "first_rows"), [({}, [1, 2, 3]), ({"maxRowsPerTrigger": "2"}, [1, 2])]
)
def test_first_micro_batch_from_a_time_is_repeated_beside_a_clock_that_is_behind(
    cluster: Cluster,
    options: dict[str, str],
    late: int | None,
    limits: dict[str, str],
    first_rows: list[int],
) -> None:
    """Spark asks for the start anew: behind the last commit before the time is the end then."""
    writer = Writer(cluster)
    first = Query(options={**options, **limits})
    end = first.reader.latestOffset(first.at, first.limit)
    writer.append(late, 1000)
    again = Query(options={**options, **limits})
    assert again.at != first.at
    assert again.rows_between(again.at, end) == first_rows
    again.at = end
    rest = [row for batch in again.run() for row in batch]
    assert first_rows + rest == [1, 2, 3] + ([] if late is None else [late])


def test_clock_that_is_behind_while_the_query_begins_takes_no_rows_of_its_repetition(
    cluster: Cluster,
) -> None:
    writer = Writer(cluster)
    first = Query(options=FROM_TIME)
    writer.append(99, 1000)
    writer.append(4, HOUR_MS)
    end = first.reader.latestOffset(first.at, first.limit)
    again = Query(options=FROM_TIME)
    assert again.rows_between(again.at, end) == [1, 2, 3, 99, 4]


@pytest.mark.parametrize("how", [{}, {"streams": "idle,s"}])
def test_first_micro_batch_from_a_time_that_no_commit_has_reached_names_its_start(
    cluster: Cluster, how: dict[str, str]
) -> None:
    """It has rows at once, also with Trigger.Once. Spark asks for the start anew when it repeats
    it: that is behind the row of a clock that is behind."""
    cluster.create(name="idle")
    writer = Writer(cluster)
    options = {**how, "startingTimestamp": str(HOUR_MS + 4)}
    first = Query(options=options)
    writer.append(4, 1000)
    end = first.reader.latestOffset(first.at, first.limit)
    writer.append(5, HOUR_MS + 5)
    again = Query(options=options)
    assert again.at != first.at
    assert again.rows_between(again.at, end) == first.rows_between(first.at, end) == [4]
    again.at = end
    assert again.run() == [[5]]


def test_repeated_micro_batch_from_a_time_has_the_rows_that_are_left(cluster: Cluster) -> None:
    writer = Writer(cluster)
    first = Query(options=FROM_TIME)
    end = first.reader.latestOffset(first.at, first.limit)
    writer.stream.retention.truncate((2,))
    again = Query(options=FROM_TIME)
    assert again.rows_between(again.at, end) == [2, 3]
    writer.append(99, 1000)
    again = Query(options=FROM_TIME)
    assert again.rows_between(again.at, end) == [2, 3]
    writer.stream.retention.truncate((4,))
    again = Query(options=FROM_TIME)
    with pytest.raises(DataLossError, match=r"the start of the micro-batch \(1, 0, 0\) lies"):
        again.rows_between(again.at, end)


def test_start_of_a_time_does_not_excuse_rows_that_are_lost_behind_the_checkpoint(
    cluster: Cluster,
) -> None:
    """The first micro-batch is empty, as no commit has reached the time; the next one is not the
    first, though it begins there too."""
    writer = Writer(cluster)
    options = {"startingTimestamp": str(HOUR_MS + 4)}
    first = Query(options=options)
    assert first.trigger() is None
    writer.append(4, HOUR_MS + 4)
    writer.append(5, HOUR_MS + 5)
    end = first.reader.latestOffset(first.at, first.limit)
    writer.stream.retention.truncate((5,))
    again = Query(options=options, at=first.at)
    with pytest.raises(DataLossError, match="the position of the checkpoint"):
        again.rows_between(first.at, end)


def test_query_from_a_time_goes_on_from_its_first_micro_batch(cluster: Cluster) -> None:
    """The offset that names the start is a position as others are."""
    writer = Writer(cluster)
    query = Query(options=FROM_TIME)
    assert query.trigger() == [1, 2, 3]
    assert query.trigger() is None
    again = Query(options=FROM_TIME, at=query.at)
    assert again.trigger() is None
    assert again.rows_between(query.at, query.at) == []
    writer.append(4, HOUR_MS)
    for each in (query, again):
        assert each.trigger() == [4]
        assert "start" not in each.at, "which older programs refuse"
