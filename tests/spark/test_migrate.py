"""``connector.migrate``: a topic's records in files become a stream, each once, and provably."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from connector import migrate
from spark_ledger.errors import ConflictError
from tests.spark.conftest import Lab

KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key:string,value:binary>>"
)


def export(spark: Any, folder: Path, partition: int, offsets: Sequence[int]) -> None:
    """A file of records, as Spark's Kafka source gives them; some have no key."""
    frame = spark.range(offsets[0], offsets[-1] + 1, 1, 1).selectExpr(
        "IF(id % 3 = 0, NULL, CAST(concat('k', id) AS BINARY)) AS key",
        f"CAST(concat('{partition}-', id) AS BINARY) AS value",
        "'clicks' AS topic",
        f"{partition} AS partition",
        "id AS offset",
        "timestamp_seconds(1700000000 + id) AS timestamp",
        "0 AS timestampType",
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers",
    )
    frame.write.mode("append").parquet(str(folder))


def job_of(lab: Lab, folder: Path) -> migrate.Job:
    given = {"metadata": lab.cluster.uri, "stream": lab.name, "files": str(folder)}
    given |= {"checkpoint": lab.checkpoint, "topic": "clicks"}
    job, _ = migrate.parse([f"--{name}={value}" for name, value in given.items()])
    return job


def stored(lab: Lab) -> list[tuple[int, int]]:
    """Where the rows of the stream stood in Kafka, in stream order, read without Spark."""
    return [
        (row["kafka_partition"], row["kafka_offset"])
        for batch in lab.client.stream(lab.name).read()
        for row in batch.to_pylist()
    ]


def forget_newest_commit(checkpoint: Path) -> None:
    """What a driver leaves that dies behind its commit: Spark has not noted that it was done."""
    commits = checkpoint / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / f"{newest}").unlink()
    (commits / f".{newest}.crc").unlink()


def test_migration_copies_each_record_once_and_proves_it(
    lab: Lab, spark: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "topic"
    for partition in (0, 1):
        export(spark, folder, partition, range(5, 25))
    job = job_of(lab, folder)
    report = migrate.run(spark, job)
    assert (report["proved"], report["copied"], report["records"]) == (True, 40, 40)
    assert stored(lab) == [(partition, n) for partition in (0, 1) for n in range(5, 25)]
    face = lab.read(includeMetadata="kafka", includeHeaders="true")
    first = face.where("offset = 0").collect()[0]
    assert (first.value, first.timestampType, first.timestamp.year) == (b"0-5", 0, 2023)
    assert first.headers[0].value == b"x"

    # A driver died behind its commit, and new records came: these alone are copied.
    forget_newest_commit(Path(lab.checkpoint))
    export(spark, folder, 0, range(25, 30))
    report = migrate.run(spark, job)
    assert (report["proved"], report["copied"], report["records"]) == (True, 5, 45)
    assert len(set(stored(lab))) == len(stored(lab)) == 45

    # What somebody else appends is in no file, and shows.
    lab.append(lab.read().where("kafka_offset = 7"))
    report = migrate.run(spark, job)
    assert (report["proved"], report["copied"]) == (False, 0)

    shutil.rmtree(lab.checkpoint)
    with pytest.raises(ConflictError, match="of which the checkpoint"):
        migrate.run(spark, job)


def test_files_are_read_as_they_are_or_not_at_all(spark: Any, tmp_path: Path) -> None:
    """What both sides would lose alike no proof would show."""

    def job(folder: Path, *more: str) -> migrate.Job:
        given = ["--metadata=zk://h/l", "--stream=s", "--checkpoint=c", f"--files={folder}", *more]
        return migrate.parse(given)[0]

    def read(job: migrate.Job) -> list[Any]:
        return list(migrate.source(spark, job, {}).orderBy(migrate.OFFSET).collect())

    export(spark, tmp_path / "two", 0, range(2))
    whole = spark.read.parquet(str(tmp_path / "two"))
    whole.write.json(str(tmp_path / "json"))
    json = ("--format=json", "--base64")
    for row in read(job(tmp_path / "json", *json)):
        assert row.value == b"0-%d" % row.kafka_offset
        assert [(each.key, each.value) for each in row.headers] == [("h", b"x")]

    later = whole.drop("headers").withColumn("offset", whole["offset"] + 2)
    later.write.mode("append").parquet(str(tmp_path / "two"))
    found = {row.kafka_offset: row.headers is None for row in read(job(tmp_path / "two"))}
    assert found == {0: False, 1: False, 2: True, 3: True}

    lines = next((tmp_path / "json").glob("*.json")).read_text().splitlines()
    for name, bad, told in (
        ("torn", lines[0][:60], "MALFORMED_RECORD"),
        ("other", lines[0].replace('"offset":0', '"offset":"x"'), "MALFORMED_RECORD"),
        ("none", lines[0].replace('"topic":"clicks",', ""), "a record has no topic"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(f"{bad}\n{lines[1]}\n")
        with pytest.raises(Exception, match=told):
            read(job(tmp_path / name, "--topic=clicks", *json))
    assert [row.kafka_offset for row in read(job(tmp_path / "none", *json))] == [0, 1]
    assert read(job(tmp_path / "json", "--topic=others", *json)) == []


def test_proof_tells_a_null_from_a_value_in_another_column(spark: Any) -> None:
    """Spark's hash passes over nulls: (null, x) and (x, null) have the same one."""
    plain = dict.fromkeys(migrate.COPIED, "CAST(NULL AS BINARY)")
    plain[migrate.PARTITION] = "0"
    first, second = migrate.COPIED[:2]
    sums = {
        migrate.tally(
            spark.range(1).selectExpr(
                *(f"{what} AS {name}" for name, what in {**plain, column: "binary('x')"}.items())
            )
        )[0].checksum
        for column in (first, second)
    }
    assert len(sums) == 2
