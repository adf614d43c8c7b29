"""Batch reads and writes through Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as sql
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_ledger.types import Dlsn
from tests.spark.conftest import Lab


def test_appended_rows_are_read(lab: Lab) -> None:
    lab.numbers(0, 100, partitions=3)
    lab.numbers(100, 150)
    assert lab.ids() == list(range(150))
    head = lab.client.stream(lab.name).head()
    assert (head.next_commit, head.next_segment, head.rows) == (2, 4, 150)


def test_segments_follow_partitions(lab: Lab) -> None:
    lab.numbers(0, 40, partitions=4)
    assert lab.stored() == list(range(40))


def test_empty_partitions_write_no_entry(lab: Lab) -> None:
    lab.append(lab.spark.range(0, 10, 1, 1).repartition(4).where("id = 3"))
    lab.append(lab.spark.range(0, 10, 1, 2).where("id > 100"))
    head = lab.client.stream(lab.name).head()
    assert (head.next_commit, head.next_segment, head.rows) == (1, 1, 1)


def test_read_is_cut_into_partitions(lab: Lab) -> None:
    lab.append(lab.spark.range(0, 2000, 1, 1), entryBytes="2k")
    frame = lab.read(minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    sizes = [
        row.n
        for row in frame.groupBy(sql.spark_partition_id()).agg(sql.count("*").alias("n")).collect()
    ]
    assert sum(sizes) == 2000 and max(sizes) < 800
    assert [row.id for row in frame.collect()] == list(range(2000))


def test_positions_and_times_bound_a_read(lab: Lab) -> None:
    for first in range(0, 30, 10):
        lab.numbers(first, first + 10)
    stream = lab.client.stream(lab.name)
    start = '{"segment": 1, "entry": 0, "slot": 5}'
    assert lab.ids(startingPosition=start) == list(range(15, 30))
    assert lab.ids(startingPosition=start, endingPosition='{"segment": 2, "slot": 1}') == list(
        range(15, 21)
    )
    second = stream.commit(1).time_ms
    assert lab.ids(startingTimestamp=second, endingTimestamp=stream.commit(2).time_ms) == list(
        range(10, 20)
    )
    assert lab.ids(startingPosition="latest") == []


def test_metadata_column_has_the_position_of_each_row(lab: Lab) -> None:
    lab.numbers(0, 3)
    lab.numbers(3, 5)
    rows = lab.read(includeMetadata=True).select("id", "_ledger.*").collect()
    assert [(row.id, row.segment, row.entry, row.slot, row.commit) for row in rows] == [
        (0, 0, 0, 0, 0),
        (1, 0, 0, 1, 0),
        (2, 0, 0, 2, 0),
        (3, 1, 0, 0, 1),
        (4, 1, 0, 1, 1),
    ]
    commit = lab.client.stream(lab.name).commit(1)
    assert rows[3].ledger_id == commit.segments[0].ledger_id
    assert round(rows[3].commit_time.timestamp() * 1000) == commit.time_ms
    assert lab.read(includeMetadata=True).where("_ledger.segment = 1").count() == 2


def test_times_in_a_session_outside_utc_are_those_of_the_commits(lab: Lab) -> None:
    """A time without a zone is UTC, not the session's; a commit's time is a moment."""
    before = lab.spark.conf.get("spark.sql.session.timeZone")
    lab.spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        lab.numbers(0, 10)
        lab.numbers(10, 20)
        commits = lab.client.stream(lab.name).commits(0, 2)
        written = datetime.fromtimestamp(commits[1].time_ms / 1000, UTC)
        text = written.replace(tzinfo=None).isoformat(timespec="milliseconds")
        assert lab.ids(startingTimestamp=text) == list(range(10, 20))
        assert lab.ids(endingTimestamp=text) == list(range(10))
        times = lab.read(includeMetadata=True).selectExpr("unix_millis(_ledger.commit_time) ms")
        assert sorted(row.ms for row in times.distinct().collect()) == [
            commit.time_ms for commit in commits
        ]
    finally:
        lab.spark.conf.set("spark.sql.session.timeZone", before)


def test_a_declared_schema_picks_and_widens(lab: Lab) -> None:
    lab.append(
        lab.spark.range(3).select(sql.col("id").cast("int").alias("a"), sql.lit("x").alias("b"))
    )
    schema = StructType([StructField("b", StringType()), StructField("a", LongType())])
    given = lab._given(lab.spark.read, {}).schema(schema).load()
    assert given.schema == schema
    assert [tuple(row) for row in given.collect()] == [("x", 0), ("x", 1), ("x", 2)]
    with pytest.raises(Exception, match="no column 'c', which the declared schema names"):
        lab._given(lab.spark.read, {}).schema("c long").load().collect()
    with pytest.raises(Exception, match=r"'a' is stored as int, .* as boolean") as told:
        lab._given(lab.spark.read, {}).schema("a boolean").load().collect()
    first = str(told.value).splitlines()[0]
    assert "SchemaMismatchError: stream" in first and "Traceback" not in str(told.value)
    fields = "segment bigint, entry bigint, slot bigint, ledger_id bigint, commit bigint"
    text = f"_ledger struct<{fields.replace(' ', ':').replace(',:', ',')},commit_time:timestamp>"
    positioned = lab._given(lab.spark.read, {"includeMetadata": True}).schema(f"{text}, A bigint")
    assert [(row.A, row._ledger.commit) for row in positioned.load().collect()] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]


def test_a_sql_view_reads_and_writes(lab: Lab) -> None:
    lab.numbers(0, 3)
    lab.spark.sql(
        f"CREATE TEMPORARY VIEW v_{lab.name} USING ledger "
        f"OPTIONS (metadata '{lab.cluster.uri}', stream '{lab.name}', minPartitions '2')"
    )
    lab.spark.sql(f"INSERT INTO v_{lab.name} SELECT 7")
    assert [r.id for r in lab.spark.sql(f"SELECT id FROM v_{lab.name}").collect()] == [0, 1, 2, 7]


def test_view_that_declares_char_is_refused_with_what_to_use(lab: Lab) -> None:
    lab.append(lab.spark.sql("SELECT 'ab' AS name"))
    options = f"OPTIONS (metadata '{lab.cluster.uri}', stream '{lab.name}')"
    lab.spark.sql(f"CREATE TEMPORARY VIEW c_{lab.name} (name CHAR(5)) USING ledger {options}")
    with pytest.raises(Exception, match=r"'name' has the type char\(5\).*declare it as string"):
        lab.spark.table(f"c_{lab.name}").collect()
    lab.spark.sql(f"CREATE TEMPORARY VIEW t_{lab.name} (name STRING) USING ledger {options}")
    lab.spark.sql(f"INSERT INTO t_{lab.name} SELECT CAST('cd' AS CHAR(5))")
    found = lab.spark.sql(f"SELECT rpad(name, 5) AS name FROM t_{lab.name}").collect()
    assert [row.name for row in found] == ["ab   ", "cd   "]


def test_frames_and_views_keep_their_end_until_loaded_anew(lab: Lab) -> None:
    view = (
        f"CREATE OR REPLACE TEMPORARY VIEW w_{lab.name} USING ledger "
        f"OPTIONS (metadata '{lab.cluster.uri}', stream '{lab.name}')"
    )
    lab.numbers(0, 3)
    frame = lab.read()
    lab.spark.sql(view)
    assert (frame.count(), lab.spark.table(f"w_{lab.name}").count()) == (3, 3)
    lab.numbers(3, 5)
    assert (frame.count(), lab.spark.table(f"w_{lab.name}").count()) == (3, 3)
    lab.spark.sql(view)
    assert (lab.read().count(), lab.spark.table(f"w_{lab.name}").count()) == (5, 5)


def test_catalog_table_is_refused_with_what_to_use(lab: Lab) -> None:
    lab.numbers(0, 3)
    options = f"OPTIONS (metadata '{lab.cluster.uri}', stream '{lab.name}')"
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        lab.spark.sql(f"CREATE TABLE t_{lab.name} USING ledger {options}")
    with pytest.raises(Exception, match=r"option metadata is missing.*CREATE TEMPORARY VIEW"):
        lab.spark.sql(f"CREATE TABLE c_{lab.name} USING ledger {options} AS SELECT 1L AS id")
    lab.spark.sql(f"CREATE TABLE u_{lab.name} (id bigint) USING ledger {options}")
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        lab.spark.table(f"u_{lab.name}").collect()


def test_transactions_are_applied_once(lab: Lab) -> None:
    lab.numbers(0, 3, txnAppId="job", txnVersion=1)
    lab.numbers(0, 3, txnAppId="job", txnVersion=1)
    lab.numbers(50, 53, txnAppId="job", txnVersion=0)
    lab.numbers(3, 5, txnAppId="job", txnVersion=2)
    lab.numbers(5, 6, txnAppId="other", txnVersion=1)
    assert lab.stored() == [0, 1, 2, 3, 4, 5]


def test_overwrite_replaces_in_one_commit(lab: Lab) -> None:
    lab.numbers(0, 5)
    lab.numbers(5, 8, mode="overwrite")
    assert lab.ids() == [5, 6, 7]
    assert lab.client.stream(lab.name).head().earliest == Dlsn(1)


def test_create_stream_uses_its_options(lab: Lab) -> None:
    with pytest.raises(Exception, match=r"does not exist.*createStream=true"):
        lab.numbers(0, 3, createStream=False)
    lab.numbers(0, 3, ensembleSize=2, writeQuorum=2, ackQuorum=1, compression="zstd")
    config = lab.client.stream(lab.name).config
    assert str(config.quorums) == "E2 WQ2 AQ1"
    assert config.compression.value == "zstd"


def test_a_wrong_schema_names_the_field(lab: Lab) -> None:
    lab.numbers(0, 3)
    with pytest.raises(Exception, match=r"column 'id'.*bigint.*string"):
        lab.append(lab.spark.range(3).select(sql.col("id").cast("string").alias("id")))
    with pytest.raises(Exception, match=r"'extra'.*mergeSchema"):
        lab.append(lab.spark.range(3).withColumn("extra", sql.lit(1)))
    with pytest.raises(Exception, match="'months' has the type interval year"):
        lab.append(lab.spark.sql("SELECT 1L AS id, INTERVAL '1' YEAR AS months"))
    assert lab.stored() == [0, 1, 2]


def test_column_names_that_differ_in_case_only_are_refused(lab: Lab) -> None:
    """At any depth: ``unit/spark_ledger/stream/format/test_schema.py`` has the others."""
    columns = "array(map(1, named_struct('id', 1, 'Id', 2))) AS deep"
    where = "field deep.element.value"
    wrong = rf"stream '{lab.name}': {where}: the names 'id' and 'Id' differ in case only"
    with pytest.raises(Exception, match=wrong):
        lab.append(lab.spark.sql(f"SELECT {columns}"))
    assert lab.name not in lab.client.list_streams()
    lab.numbers(0, 3)
    with pytest.raises(Exception, match=wrong):
        lab.append(lab.spark.sql(f"SELECT {columns}"), mergeSchema=True)
    assert lab.stored() == [0, 1, 2]


def test_metadata_column_cannot_be_written(lab: Lab) -> None:
    lab.numbers(0, 3)
    rows = lab.read(includeMetadata=True)
    for target in (lab, lab.another()):
        for merge in (False, True):
            with pytest.raises(Exception, match=r"stream 's\d+': field '_ledger'.*drop or rename"):
                target.append(rows, mergeSchema=merge)
    assert lab.stored() == [0, 1, 2]


def test_merge_schema_adds_a_column(lab: Lab) -> None:
    lab.numbers(0, 2)
    lab.append(lab.spark.range(2, 4, 1, 1).withColumn("extra", sql.lit("x")), mergeSchema=True)
    lab.numbers(4, 5)
    assert [tuple(row) for row in lab.read().collect()] == [
        (0, None),
        (1, None),
        (2, "x"),
        (3, "x"),
        (4, None),
    ]


def test_recreated_stream_is_written_and_read(lab: Lab) -> None:
    """Spark's processes live on, and have handles of the first stream."""
    for value in ("id", "cast(id AS string) AS id"):
        written = lab.spark.range(3).coalesce(1).selectExpr(value)
        lab.append(written)
        assert lab.read().collect() == written.collect()
        query = lab.another().sink(lab.follow()).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        lab.client.delete_stream(lab.name)
    with pytest.raises(Exception, match=f"'{lab.name}' does not exist"):
        lab.read()


def test_save_modes_that_spark_refuses(lab: Lab) -> None:
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        lab.numbers(0, 1, mode="errorifexists")


def test_a_stream_by_path(lab: Lab) -> None:
    lab.numbers(0, 3)
    frame = lab.spark.read.format("ledger").option("metadata", lab.cluster.uri).load(lab.name)
    assert frame.count() == 3


def test_row_that_is_too_large_is_named(lab: Lab) -> None:
    small = lab.spark.range(1).select(sql.lit("x").alias("text"))
    lab.append(small)
    large = lab.spark.range(1).select(sql.expr("repeat('x', 17000000)").alias("text"))
    with pytest.raises(Exception, match=r"row 0 .*bytes"):
        lab.append(large, compression="none")
    assert lab.client.stream(lab.name).head().rows == 1, "nothing of the failed write is visible"
