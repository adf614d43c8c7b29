"""The command line of ``connector.migrate``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector import migrate
from connector.migrate import Job, check_checkpoint, parse, show
from spark_ledger.errors import ConflictError
from tests.unit.connector.world import Cluster, cluster, table

__all__ = ["cluster"]

BASE = ("--metadata", "zk://h/l", "--stream", "s", "--checkpoint", "c")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give either --files or --bootstrap-servers"),
        (("--metadata", ""), "give --metadata, or the environment variable SPARK_LEDGER_METADATA"),
        (("--files", "f", "--bootstrap-servers", "h:1"), "give either --files"),
        (("--bootstrap-servers", "h:1"), "--bootstrap-servers needs --topic"),
        (("--files", "f", "--files-per-batch", "0"), "needs a whole number above 0"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*BASE, *arguments])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_arguments_make_a_job_whose_name_has_the_stream() -> None:
    job, as_json = parse([*BASE, "--files", "f", "--json"])
    assert as_json and job.name == "migrate/s"
    assert job == Job("zk://h/l", "s", "c", "f", "parquet", False, "", "", 1_000_000, 100)


def test_topic_is_read_from_its_brokers_or_from_files() -> None:
    job, _ = parse([*BASE, "--bootstrap-servers", "h:1", "--topic", "t"])
    assert (job.bootstrap_servers, job.topic, job.files) == ("h:1", "t", "")
    job, _ = parse([*BASE, "--files", "f", "--topic", "t"])
    assert (job.bootstrap_servers, job.topic, job.files) == ("", "t", "f")


class Spark:
    """Stands in for a session: what it is asked for, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "readStream"):
            self.asked.append((name,))
            return self

        def call(*given: object) -> Any:
            self.asked.append((name, *given))
            return self

        return call


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    """A session; the expressions on columns need a real one, and are left out."""
    monkeypatch.setattr(migrate, "records_of", lambda frame, job: frame)
    monkeypatch.setattr(migrate, "_up_to", lambda last: ("up to", last))
    return Spark()


KAFKA = [
    ("format", "kafka"),
    ("option", "subscribe", "t"),
    ("option", "kafka.bootstrap.servers", "h:1"),
    ("option", "startingOffsets", "earliest"),
    ("option", "includeHeaders", "true"),
]


def test_topic_is_copied_from_its_first_record_in_micro_batches_of_a_size(spark: Any) -> None:
    job, _ = parse([*BASE, "--bootstrap-servers", "h:1", "--topic", "t"])
    migrate.source(spark, job)
    assert spark.asked == [
        ("readStream",),
        *KAFKA,
        ("option", "maxOffsetsPerTrigger", 1_000_000),
        ("load",),
    ]


@pytest.mark.parametrize("last", [{}, {0: 5, 1: 7}])
def test_topic_is_counted_up_to_the_records_that_were_copied(
    spark: Any, last: dict[int, int]
) -> None:
    """It goes on growing: what came since would differ from the stream."""
    job, _ = parse([*BASE, "--bootstrap-servers", "h:1", "--topic", "t"])
    migrate.source(spark, job, last)
    assert spark.asked == [("read",), *KAFKA, ("load",), ("where", ("up to", last))]


@pytest.mark.parametrize("last", [None, {}])
def test_line_of_json_that_cannot_be_read_ends_the_copy_and_the_proof(
    spark: Any, last: dict[int, int] | None
) -> None:
    """Else Spark makes nulls of it on both sides, which then agree."""
    migrate.source(spark, parse([*BASE, "--files", "f", "--format", "json"])[0], last)
    assert ("option", "mode", "FAILFAST") in spark.asked


def test_files_of_two_exports_have_the_columns_of_both(spark: Any) -> None:
    migrate.source(spark, parse([*BASE, "--files", "f"])[0])
    assert spark.asked[:4] == [
        ("readStream",),
        ("read",),
        ("option", "mergeSchema", "true"),
        ("parquet", "f"),
    ]


def test_micro_batch_is_committed_if_it_or_a_later_one_is(cluster: Cluster, tmp_path: Path) -> None:
    job = replace(parse([*BASE, "--files", "f"])[0], checkpoint=str(tmp_path))
    assert migrate.committed(job, 0) is None, "there is no stream yet"
    migrate.check_checkpoint(job)
    stream = cluster.create(1, 2)
    assert migrate.committed(job, 0) is None, "the rows of somebody else"
    migrate.check_checkpoint(job)
    stream.append(table(3, 4, 5), sink_id=job.name, transaction_id=4)
    assert [migrate.committed(job, number) for number in (3, 4, 5)] == [3, 3, None]
    local = [str(tmp_path), f"file://{tmp_path}", f"file:{tmp_path}"]
    for folder in local:
        with pytest.raises(ConflictError, match="of which the checkpoint"):
            migrate.check_checkpoint(replace(job, checkpoint=folder))
    (tmp_path / "offsets").mkdir()
    for folder in (*local, "hdfs://h/c", "s3a://b/c"):
        migrate.check_checkpoint(replace(job, checkpoint=folder))


def test_report_is_two_lines_or_one_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    report: dict[str, object] = {"stream": "s", "records": 4, "copied": 1, "proved": False}
    show(report, as_json=False)
    assert capsys.readouterr().out == "stream s: 4 records, 1 of this run\nNOT PROVED\n"
    show(report, as_json=True)
    assert json.loads(capsys.readouterr().out) == report


@pytest.mark.parametrize(
    ("scheme", "made"),
    [("file://", ""), ("file:", "offsets/old"), ("", "c/commits"), ("", "c/offsets.old/0")],
)
def test_checkpoint_that_is_not_of_the_migration_is_refused_once_the_stream_has_its_records(
    cluster: Cluster, tmp_path: Path, scheme: str, made: str
) -> None:
    """Its first micro-batches would be taken for those of then, and their records left out. Also
    an empty folder, as somebody makes it who has lost the old one."""
    job = parse(["--metadata", "zk://h/l", "--stream", "s", "--files", "f",
                 "--checkpoint", f"{scheme}{tmp_path}/c"])[0]  # fmt: skip
    check_checkpoint(job)  # there is no such stream yet
    stream = cluster.create(1)
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    check_checkpoint(job)  # it has no record of the migration
    stream.append(table(2), sink_id=job.name, transaction_id=0)
    with pytest.raises(ConflictError, match="of which the checkpoint"):
        check_checkpoint(job)
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    check_checkpoint(job)


def test_checkpoint_that_is_elsewhere_is_not_looked_for(cluster: Cluster) -> None:
    job = parse([*BASE[:-1], "s3a://bucket/c", "--files", "f"])[0]
    cluster.create().append(table(2), sink_id=job.name, transaction_id=0)
    check_checkpoint(job)
