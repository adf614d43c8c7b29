"""Streaming reads: triggers, limits, starting positions, restarts, lost data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import Lab

Until = Callable[[Callable[[], bool], str], None]


def ends(progress: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(one["sources"][0]["endOffset"]) for one in progress]


def test_available_now_in_limited_batches(lab: Lab) -> None:
    for first in range(0, 60, 10):
        lab.numbers(first, first + 10)
    rows, progress = lab.collect(lab.follow(maxRowsPerTrigger=20))
    assert sorted(row.id for row in rows) == list(range(60))
    assert [one["numInputRows"] for one in progress] == [20, 20, 20]
    stream_id = lab.client.stream(lab.name).config.stream_id
    read = ends(progress)
    assert [end.pop("last")["commit"] for end in read] == [1, 3, 5]
    assert read == [{"entry": 0, "segment": n, "stream": stream_id} for n in (2, 4, 6)]
    newest = json.loads(progress[0]["sources"][0]["latestOffset"])
    waited_ms = newest.pop("millisBehind")
    assert waited_ms > 0
    assert newest.pop("bytesBehind") == sum(
        commit.size_bytes for commit in lab.client.stream(lab.name).commits(2, 6)
    )
    end = {"entry": 0, "segment": 6, "stream": stream_id}
    assert newest == {**end, "name": lab.name, "rowsBehind": 40}
    from_here = lab.read(startingPosition=json.dumps(ends(progress)[1]))
    assert sorted(row.id for row in from_here.collect()) == list(range(40, 60))


def test_limits_by_bytes_cut_segments_at_entries(lab: Lab) -> None:
    lab.append(lab.spark.range(0, 3000, 1, 1), entryBytes="2k", compression="none")
    rows, progress = lab.collect(lab.follow(maxBytesPerTrigger="8k"))
    assert sorted(row.id for row in rows) == list(range(3000))
    assert len(progress) >= 3
    assert all(end["segment"] in (0, 1) for end in ends(progress))


def test_trigger_once_reads_all_in_one_batch(lab: Lab) -> None:
    for first in range(0, 30, 10):
        lab.numbers(first, first + 10)
    rows, progress = lab.collect(lab.follow(maxRowsPerTrigger=10), once=True)
    assert len(rows) == 30
    assert [one["numInputRows"] for one in progress] == [30]


@pytest.mark.parametrize("trigger", [{}, {"processingTime": "200 milliseconds"}])
def test_running_query_follows_the_stream(lab: Lab, until: Until, trigger: dict[str, str]) -> None:
    lab.numbers(0, 10)
    writer = lab.follow().writeStream.format("memory").queryName(f"live_{lab.name}")
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        table = lab.spark.table(f"live_{lab.name}")
        until(lambda: table.count() == 10, "the rows that were there")
        lab.numbers(10, 25)
        until(lambda: table.count() == 25, "the rows that came")
        assert query.exception() is None
    finally:
        query.stop()
    assert sorted(row.id for row in table.collect()) == list(range(25))


def test_minimum_rows_hold_a_batch_back(lab: Lab, until: Until) -> None:
    lab.numbers(0, 5)
    follow = lab.follow(minRowsPerTrigger=8, maxTriggerDelay="1h")
    query = follow.writeStream.format("memory").queryName(f"held_{lab.name}").start()
    try:
        table = lab.spark.table(f"held_{lab.name}")
        until(
            lambda: query.status["isTriggerActive"] or not query.status["isDataAvailable"], "start"
        )
        lab.numbers(5, 10)
        until(lambda: table.count() == 10, "the rows")

        def sizes() -> list[int]:
            return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]

        until(lambda: sum(sizes()) == 10, "the progress of the batch")
        assert sizes() == [10]
    finally:
        query.stop()


def test_starting_positions_and_times(lab: Lab) -> None:
    for first in range(0, 30, 10):
        lab.numbers(first, first + 10)
    start = lab.follow(startingPosition='{"segment": 1, "slot": 5}')
    assert sorted(row.id for row in lab.collect(start)[0]) == list(range(15, 30))
    time_ms = lab.client.stream(lab.name).commit(2).time_ms
    assert sorted(r.id for r in lab.collect(lab.follow(startingTimestamp=time_ms))[0]) == list(
        range(20, 30)
    )
    assert lab.collect(lab.follow(startingPosition="latest"))[0] == []


def test_the_metadata_column_in_a_query(lab: Lab) -> None:
    lab.numbers(0, 2)
    lab.numbers(2, 4)
    rows, _ = lab.collect(lab.follow(includeMetadata=True))
    assert sorted((r.id, r._ledger.segment, r._ledger.slot, r._ledger.commit) for r in rows) == [
        (0, 0, 0, 0),
        (1, 0, 1, 0),
        (2, 1, 0, 1),
        (3, 1, 1, 1),
    ]


def test_a_restart_goes_on_where_it_stopped(lab: Lab) -> None:
    copy = lab.another()
    lab.numbers(0, 10)
    for first in (10, 20):
        query = (
            copy.sink(lab.follow(startingPosition="earliest")).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(60)
        assert copy.stored() == list(range(first))
        lab.numbers(first, first + 10)


def test_query_from_latest_that_fails_in_its_first_micro_batch_reads_what_comes_then(
    lab: Lab, tmp_path: Path
) -> None:
    """Spark asks for the start anew, which is another one by then (rule T31)."""
    found: list[int] = []
    fails = [True]

    def take(rows: Any, number: int) -> None:
        assert not fails, "the first time"
        found.extend(row.id for row in rows.collect())

    lab.numbers(0, 10)
    query = (
        lab.follow(startingPosition="latest")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(Exception, match="the first time"):
        query.start().awaitTermination(60)
    lab.numbers(10, 20)
    fails.clear()
    assert query.start().awaitTermination(60)
    assert sorted(found) == list(range(10, 20))


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}])
def test_runs_from_a_transaction_to_come_read_it_once_it_is_there(
    lab: Lab, tmp_path: Path, trigger: dict[str, bool]
) -> None:
    """Each run is a source process of its own, whose checkpoint ends where the options begin."""
    lab.numbers(0, 10, txnAppId="mine", txnVersion=6)
    found: list[int] = []
    query = (
        lab.follow(startingTransaction='{"sink": "mine", "transaction": 7}')
        .writeStream.foreachBatch(lambda rows, _: found.extend(row.id for row in rows.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(**trigger)
    )
    for version in (7, 8, 9):
        assert query.start().awaitTermination(60)
        assert sorted(found) == list(range(10, 10 * version - 60))
        lab.numbers(10 * version - 60, 10 * version - 50, txnAppId="mine", txnVersion=version)


def test_truncated_rows_fail_or_are_skipped(lab: Lab) -> None:
    lab.numbers(0, 10)
    lab.numbers(10, 20, mode="overwrite")
    with pytest.raises(Exception, match=r"lies before the first row kept.*failOnDataLoss=false"):
        lab.collect(lab.follow(startingPosition='{"segment": 0}'))
    lenient = lab.follow(startingPosition='{"segment": 0}', failOnDataLoss=False)
    assert sorted(row.id for row in lab.collect(lenient)[0]) == list(range(10, 20))


def recreate(lab: Lab, *commits: tuple[int, int]) -> None:
    lab.client.delete_stream(lab.name)
    for first, end in commits:
        lab.numbers(first, end)


def test_recreated_stream_between_two_runs_fails_or_is_followed(lab: Lab) -> None:
    copy = lab.another()
    lab.numbers(0, 10)

    def run(**options: bool) -> None:
        sink = copy.sink(lab.follow(**options)).trigger(availableNow=True)
        assert sink.start().awaitTermination(60)

    run()
    recreate(lab, (100, 110), (110, 120), (120, 130))
    with pytest.raises(Exception, match=rf"{lab.name}' was deleted and created again.*failOnDa"):
        run()
    assert copy.stored() == list(range(10))
    run(failOnDataLoss=False)
    lab.numbers(130, 140)
    run()
    assert copy.stored() == [*range(10), *range(100, 140)]


@pytest.mark.parametrize("lenient", [False, True])
def test_recreated_stream_under_a_query_fails_or_is_followed(
    lab: Lab, until: Until, lenient: bool
) -> None:
    lab.numbers(0, 10)
    follow = lab.follow(failOnDataLoss=not lenient)
    query = follow.writeStream.format("memory").queryName(f"again_{lab.name}").start()
    try:
        table = lab.spark.table(f"again_{lab.name}")
        until(lambda: table.count() == 10, "the rows that were there")
        recreate(lab, (100, 120), (120, 130))
        until(lambda: table.count() == 40 or not query.isActive, "the new rows, or the end")
        if lenient:
            assert query.exception() is None
            expected = [*range(10), *range(100, 130)]
            assert sorted(row.id for row in table.collect()) == expected
        else:
            assert f"stream '{lab.name}' was deleted" in str(query.exception())
    finally:
        query.stop()


def test_a_start_behind_the_end_fails(lab: Lab) -> None:
    lab.numbers(0, 10)
    with pytest.raises(Exception, match="lies behind the end"):
        lab.collect(lab.follow(startingPosition='{"segment": 5}'))


def test_a_failing_task_is_repeated_without_loss(lab: Lab) -> None:
    """The first attempt of each task fails after the source, in a map over its rows."""
    lab.append(lab.spark.range(0, 1000, 1, 1), entryBytes="1k")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            yield batch
            context = TaskContext.get()
            assert context is not None
            if number == 0 and context.attemptNumber() == 0:
                raise RuntimeError("injected: first attempt")

    follow = lab.follow(minPartitions=2)
    copy = lab.another()
    query = (
        copy.sink(follow.mapInArrow(fail_once, follow.schema)).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(60)
    assert sorted(copy.stored()) == list(range(1000))


def test_continuous_trigger_is_refused(lab: Lab) -> None:
    lab.numbers(0, 1)
    with pytest.raises(Exception, match=r"(?i)continuous"):
        query = lab.follow().writeStream.format("noop").trigger(continuous="1 second").start()
        query.awaitTermination(30)
