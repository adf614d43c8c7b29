"""Streaming writes: each row is in exactly one committed micro-batch, whatever fails."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as sql

from tests.spark.conftest import Lab


def copy_all(lab: Lab, copy: Lab, **options: Any) -> Any:
    """Start a query that copies the stream in batches of ten rows; it has ended."""
    return finished(copy.sink(lab.follow(maxRowsPerTrigger=10), **options))


def finished(writer: Any) -> Any:
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60), "the query did not end"
    return query


@pytest.fixture
def source(lab: Lab) -> Lab:
    """A stream of three commits of ten numbers."""
    for first in range(0, 30, 10):
        lab.numbers(first, first + 10)
    return lab


def test_each_micro_batch_is_one_commit(source: Lab) -> None:
    copy = source.another()
    query = copy_all(source, copy)
    stream = copy.client.stream(copy.name)
    assert copy.stored() == list(range(30))
    commits = stream.commits(0, stream.head().next_commit)
    assert [(c.sink_id, c.transaction_id) for c in commits] == [
        (str(query.id), n) for n in range(3)
    ]
    assert all(str(query.runId) in c.run_id for c in commits)


def test_sink_id_names_the_transactions(source: Lab) -> None:
    copy = source.another()
    copy_all(source, copy, sinkId="nightly")
    record = copy.client.stream(copy.name).last_transaction("nightly")
    assert record is not None and record.transaction_id == 2


def test_watermark_of_who_writes_is_none_of_who_reads(lab: Lab) -> None:
    lab.append(lab.spark.sql("SELECT 0 AS id, TIMESTAMP'2026-01-01 13:00:00' AS at"))
    copy = lab.another()
    late = lab.follow().withWatermark("at", "0 seconds")
    assert late.schema["at"].metadata, "Spark notes it at the column"
    finished(copy.sink(late))
    assert copy.read().schema == lab.read().schema


def test_empty_partitions_and_micro_batches_commit_nothing(source: Lab) -> None:
    copy = source.another()
    finished(copy.sink(source.follow(maxRowsPerTrigger=10).where("id = 15").repartition(3)))
    head = copy.client.stream(copy.name).head()
    assert (head.next_commit, head.next_segment, head.rows) == (1, 1, 1)


def test_partitions_are_committed_in_order(source: Lab) -> None:
    copy = source.another()
    finished(copy.sink(source.follow(minPartitions=3)))
    assert copy.stored() == list(range(30))


def test_driver_that_dies_after_its_commit_repeats_nothing(source: Lab) -> None:
    """Spark did not write down that the batch is done, so the restart runs it again."""
    copy = source.another()
    copy_all(source, copy)
    for name in ("2", ".2.crc"):
        (Path(copy.checkpoint) / "commits" / name).unlink()
    copy_all(source, copy)
    assert copy.stored() == list(range(30))
    source.numbers(30, 35)
    copy_all(source, copy)
    assert copy.stored() == list(range(35))


def test_repeated_batch_under_another_sink_name_is_refused(source: Lab) -> None:
    copy = source.another()
    copy_all(source, copy)
    for name in ("2", ".2.crc"):
        (Path(copy.checkpoint) / "commits" / name).unlink()
    with pytest.raises(Exception, match=r"micro-batch 2 without sinkId.*a second time"):
        copy_all(source, copy, sinkId="renamed")
    copy_all(source, copy)
    source.numbers(30, 40)
    copy_all(source, copy, sinkId="renamed")
    assert copy.stored() == list(range(40))


def test_driver_on_old_copy_of_the_checkpoint_is_refused(source: Lab) -> None:
    copy = source.another()
    copy_all(source, copy)
    backup = copy.checkpoint + "-backup"
    shutil.copytree(copy.checkpoint, backup)
    source.numbers(30, 40)
    source.numbers(40, 50)
    copy_all(source, copy)
    shutil.rmtree(copy.checkpoint)
    shutil.copytree(backup, copy.checkpoint)
    with pytest.raises(Exception, match="slower driver runs on the same checkpoint"):
        copy_all(source, copy)
    assert copy.stored() == list(range(50))


def test_driver_on_copy_of_the_checkpoint_one_batch_behind_is_refused(source: Lab) -> None:
    """The restart plans the batch anew, with the rows that came since; to take it for a repetition
    of the committed one would lose them."""
    copy = source.another()
    copy_all(source, copy)
    backup = copy.checkpoint + "-backup"
    shutil.copytree(copy.checkpoint, backup)
    source.numbers(30, 40)
    finished(copy.sink(source.follow()))
    source.numbers(40, 60)
    shutil.rmtree(copy.checkpoint)
    shutil.copytree(backup, copy.checkpoint)
    for _ in range(2):
        with pytest.raises(Exception, match=r"with 10 rows; now it has 30.*older copy"):
            finished(copy.sink(source.follow()))
    assert copy.stored() == list(range(40))


def test_two_drivers_on_copies_of_a_checkpoint_lose_nothing(source: Lab) -> None:
    """The twin finds its first batch committed and takes it for a repetition; the original is then
    behind the twin and is told so. Nothing is lost or doubled."""
    copy = source.another()
    copy_all(source, copy)
    twin = copy.checkpoint + "-twin"
    shutil.copytree(copy.checkpoint, twin)
    source.numbers(30, 40)
    copy_all(source, copy)
    source.numbers(40, 50)
    source.numbers(50, 60)
    follow = source.follow(maxRowsPerTrigger=10)
    finished(copy.sink(follow).option("checkpointLocation", twin))
    with pytest.raises(Exception, match="slower driver"):
        copy_all(source, copy)
    assert copy.stored() == list(range(60))


def test_two_sinks_on_one_stream_both_commit(source: Lab) -> None:
    copy = source.another()
    other = Lab(copy.spark, copy.cluster, copy.client, source.another().directory, copy.name)
    queries = [
        one.sink(source.follow(maxRowsPerTrigger=10)).trigger(availableNow=True).start()
        for one in (copy, other)
    ]
    assert all(query.awaitTermination(60) for query in queries)
    assert sorted(copy.stored()) == sorted([*range(30), *range(30)])


def test_a_wrong_schema_fails_before_any_task(source: Lab) -> None:
    copy = source.another()
    copy.append(copy.spark.range(1).select(sql.lit("x").alias("id")))
    with pytest.raises(Exception, match=r"column 'id'.*string.*bigint"):
        copy_all(source, copy)
    assert copy.client.stream(copy.name).head().rows == 1


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_other_output_modes_are_refused(source: Lab, mode: str) -> None:
    counts = source.follow().groupBy().count()
    with pytest.raises(Exception, match=f"(?i){mode}|append"):
        finished(source.another().sink(counts).outputMode(mode))


def test_foreach_batch_with_transactions(source: Lab) -> None:
    copy = source.another()

    def write(frame: Any, batch: int) -> None:
        copy.append(frame, txnAppId="each", txnVersion=batch)
        copy.append(frame, txnAppId="each", txnVersion=batch)

    follow = source.follow(maxRowsPerTrigger=10)
    writer = follow.writeStream.foreachBatch(write).option("checkpointLocation", copy.checkpoint)
    finished(writer)
    assert copy.stored() == list(range(30))
