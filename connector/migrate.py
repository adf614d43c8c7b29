"""Copies a Kafka topic's records into a stream, each once, and proves it: counts and checksums.

    python -m connector.migrate --metadata zk://host:2181/ledgers --stream clicks \\
        --checkpoint /data/migrate-clicks --files /exports/clicks
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \\
        connector/migrate.py ... --bootstrap-servers host:9092 --topic clicks

The files have the columns of Spark's Kafka source, as ``spark.read.format("kafka")...write`` leaves
them. Run the same command again to go on after a stop, or to copy what is new. A micro-batch is a
transaction of the stream under the name of the migration, so one that is repeated adds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import spark_ledger
from connector.options import METADATA_ENVIRONMENT
from spark_ledger.errors import ConfigurationError, ConflictError, LedgerError, NoSuchStreamError
from spark_ledger.stream.model import check_stream_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARTITION, OFFSET = "kafka_partition", "kafka_offset"
"""Where a record stood in Kafka: columns of the stream."""

JSON_COLUMNS: Final = (
    "key string, value string, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key:string,value:string>>"
)
COPIED: Final = ("key", "value", "headers", "timestamp", "timestampType", PARTITION, OFFSET)
KAFKA_MISSING: Final = (
    "Spark has no Kafka connector here: run with spark-submit --packages "
    "org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION, with the version of your Spark"
)


@dataclass(frozen=True, slots=True)
class Job:
    """One migration, as the command line gives it."""

    metadata: str
    stream: str
    checkpoint: str
    files: str
    format: str
    base64: bool
    bootstrap_servers: str
    topic: str
    records_per_batch: int
    files_per_batch: int

    @property
    def name(self) -> str:
        """The name under which it commits."""
        return f"migrate/{self.stream}"


@dataclass(frozen=True, slots=True)
class Tally:
    """What a set of records comes to. The checksum does not depend on their order."""

    records: int
    checksum: str


def records_of(frame: DataFrame, job: Job) -> DataFrame:
    """The columns that the stream gets, with the types of Kafka's; what a file lacks is null."""
    from pyspark.sql import functions as F

    names = {name.lower(): name for name in frame.columns}
    if "value" not in names:
        raise ConfigurationError(
            f"the files have no column value, only {', '.join(frame.columns)}: they have to be "
            "records of Kafka, as Spark's Kafka source gives them"
        )
    if job.topic and "topic" in names:
        topic, torn = F.col(names["topic"]), "a record has no topic: is its file whole?"
        frame = frame.where(
            F.when(topic.isNull(), F.raise_error(torn)).otherwise(topic == job.topic)
        )

    def column(name: str, kind: str) -> Column:
        return (
            F.col(names[name.lower()]).cast(kind)
            if name.lower() in names
            else F.lit(None).cast(kind)
        )

    def payload(name: str) -> Column:
        return F.unbase64(column(name, "string")) if job.base64 else column(name, "binary")

    headers = column("headers", "array<struct<key:string,value:binary>>")
    if job.base64 and "value:string" in dict(frame.dtypes).get(names.get("headers", ""), ""):
        text = column("headers", "array<struct<key:string,value:string>>")
        headers = F.transform(
            text, lambda h: F.struct(h["key"].alias("key"), F.unbase64(h["value"]).alias("value"))
        )
    return frame.select(
        payload("key").alias("key"),
        payload("value").alias("value"),
        headers.alias("headers"),
        column("timestamp", "timestamp").alias("timestamp"),
        column("timestampType", "int").alias("timestampType"),
        column("partition", "int").alias(PARTITION),
        column("offset", "bigint").alias(OFFSET),
    )


def source(spark: SparkSession, job: Job, last: Mapping[int, int] | None = None) -> DataFrame:
    """The records: as a stream to copy; with ``last``, those up to these
    offsets of Kafka, to count."""
    reader = spark.readStream if last is None else spark.read
    if job.bootstrap_servers:
        reader = reader.format("kafka").option("subscribe", job.topic)
        reader = reader.option("kafka.bootstrap.servers", job.bootstrap_servers)
        reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
        if last is None:
            reader = reader.option("maxOffsetsPerTrigger", job.records_per_batch)
        records = records_of(reader.load(), job)
        return records if last is None else records.where(_up_to(last))
    if job.format == "json":  # a line that cannot be read is no record of nulls
        reader = reader.schema(JSON_COLUMNS).option("mode", "FAILFAST")
    else:  # the older of two exports may have no headers
        known = spark.read.option("mergeSchema", "true").parquet(job.files).schema
        reader = reader.schema(known)
    if last is None:
        reader = reader.option("maxFilesPerTrigger", job.files_per_batch)
    return records_of(reader.format(job.format).load(job.files), job)


def _up_to(last: Mapping[int, int]) -> Column:
    """Records that were there when the copy ended; a topic goes on growing."""
    from pyspark.sql import functions as F

    wanted = F.lit(False)
    for partition, offset in last.items():
        wanted = wanted | ((F.col(PARTITION) == partition) & (F.col(OFFSET) <= offset))
    return wanted


def copy(spark: SparkSession, job: Job) -> int:
    """Copy what the checkpoint does not know; how many records these were."""
    copied, tasks = 0, spark.sparkContext.defaultParallelism

    def append(batch: DataFrame, number: int) -> None:
        nonlocal copied
        is_there = committed(job, number) is not None
        # A commit has the rows of a partition of Kafka in their order. A plain sort would make 200
        # tasks (spark.sql.shuffle.partitions), each with the cost of a Python task.
        ordered = batch.repartitionByRange(tasks, PARTITION, OFFSET)
        ordered = ordered.sortWithinPartitions(PARTITION, OFFSET)
        writer = ordered.write.format("ledger").mode("append")
        writer = writer.option("metadata", job.metadata).option("stream", job.stream)
        writer.option("txnAppId", job.name).option("txnVersion", number).save()
        copied += 0 if is_there else committed(job, number) or 0
        print(f"micro-batch {number}: {copied:,} records copied", file=sys.stderr, flush=True)

    query = source(spark, job).writeStream.foreachBatch(append)
    query = query.option("checkpointLocation", job.checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    return copied


def committed(job: Job, number: int) -> int | None:
    """How many records the newest micro-batch has, if it is this one or a later one."""
    try:
        with spark_ledger.connect(job.metadata) as client, client.stream(job.stream) as stream:
            last = stream.last_transaction(job.name)
            if last is None or last.transaction_id < number:
                return None
            return stream.commit_of(last).rows
    except NoSuchStreamError:
        return None


def check_checkpoint(job: Job) -> None:
    """Raises ConflictError if the stream has records of this migration, of which the checkpoint
    knows nothing: they would be taken for those that come first now."""
    try:
        with spark_ledger.connect(job.metadata) as client, client.stream(job.stream) as stream:
            last = stream.last_transaction(job.name)
    except NoSuchStreamError:
        return
    folder = job.checkpoint.removeprefix("file:")
    is_local = "://" not in folder  # and a Path would make one slash of the two
    if last is not None and is_local and not Path(folder, "offsets").is_dir():
        raise ConflictError(
            f"stream {job.stream!r} has records of this migration, of which the checkpoint "
            f"{job.checkpoint} knows nothing: give the checkpoint of then, or another stream"
        )


def tally(records: DataFrame) -> dict[int, Tally]:
    """Count and checksum by partition of Kafka; -1 where the files do not say."""
    from pyspark.sql import functions as F

    # A hash passes over nulls: what is null counts beside it.
    number = F.xxhash64(*COPIED, *(F.isnull(name) for name in COPIED)).cast("decimal(38,0)")
    groups = records.groupBy(F.coalesce(F.col(PARTITION), F.lit(-1)).alias("p"))
    found = groups.agg(F.count("*").alias("records"), F.sum(number).alias("sum")).collect()
    return {row.p: Tally(row.records, f"{int(row['sum']) % 2**64:016x}") for row in found}


def prove(spark: SparkSession, job: Job) -> tuple[dict[int, Tally], dict[int, Tally]]:
    """The tallies of source and stream, up to the last record that was copied."""
    from pyspark.sql import functions as F

    reader = spark.read.format("ledger").option("metadata", job.metadata)
    stored = reader.option("stream", job.stream).load()
    ours = stored.where(F.col(PARTITION).isNotNull()) if job.bootstrap_servers else stored
    ends = ours.groupBy(PARTITION).agg(F.max(OFFSET).alias("last")).collect()
    last = {row[PARTITION]: row["last"] for row in ends} if job.bootstrap_servers else {}
    return tally(source(spark, job, last)), tally(ours)


def run(spark: SparkSession, job: Job) -> dict[str, object]:
    """Copy, and prove. The report has ``proved``: whether source and stream agree."""
    check_stream_name(job.stream)
    check_checkpoint(job)
    copied = copy(spark, job)
    with spark_ledger.connect(job.metadata) as client:
        if job.stream not in client.list_streams():
            raise NoSuchStreamError(f"there are no records to copy, and so no {job.stream!r}")
    theirs, ours = prove(spark, job)
    return {
        "stream": job.stream,
        "copied": copied,
        "records": sum(each.records for each in ours.values()),
        "proved": theirs == ours,
        "partitions": {
            partition: {
                "source": asdict(theirs.get(partition, Tally(0, ""))),
                "stream": asdict(ours.get(partition, Tally(0, ""))),
            }
            for partition in sorted({*theirs, *ours})
        },
    }


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("needs a whole number above 0")
    return int(text)


def parse(arguments: Sequence[str]) -> tuple[Job, bool]:
    """The migration, and whether the report is wanted as JSON."""
    parser = argparse.ArgumentParser(prog="python -m connector.migrate", description=__doc__)
    metadata = os.environ.get(METADATA_ENVIRONMENT, "")
    parser.add_argument("--metadata", default=metadata, help="the cluster: zk://host:2181/ledgers")
    parser.add_argument("--stream", required=True, help="made, if it does not exist")
    parser.add_argument("--checkpoint", required=True, help="folder that says what was copied")
    parser.add_argument("--files", default="", help="folder of records in files")
    parser.add_argument("--format", choices=("parquet", "json"), default="parquet")
    parser.add_argument(
        "--base64", action="store_true", help="key, value and headers in JSON are base64"
    )
    parser.add_argument("--bootstrap-servers", default="", help="Kafka's brokers")
    parser.add_argument("--topic", default="", help="with files: of several topics only this one")
    parser.add_argument("--records-per-batch", type=_number, default=1_000_000, help="from Kafka")
    parser.add_argument("--files-per-batch", type=_number, default=100, help="from files")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    given = vars(parser.parse_args(arguments))
    as_json = given.pop("json")
    if not given["metadata"]:
        parser.error(f"give --metadata, or the environment variable {METADATA_ENVIRONMENT}")
    if bool(given["files"]) == bool(given["bootstrap_servers"]):
        parser.error("give either --files or --bootstrap-servers")
    if given["bootstrap_servers"] and not given["topic"]:
        parser.error("--bootstrap-servers needs --topic")
    return Job(**given), as_json


def show(report: dict[str, object], *, as_json: bool) -> None:
    """Print the report."""
    if as_json:
        print(json.dumps(report))
        return
    print(f"stream {report['stream']}: {report['records']} records, {report['copied']} of this run")
    print("proved: counts and checksums agree" if report["proved"] else "NOT PROVED")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The command."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    job, as_json = parse(sys.argv[1:] if arguments is None else arguments)
    spark = SparkSession.builder.appName(job.name).getOrCreate()
    try:
        report = run(spark, job)
    except LedgerError as error:
        sys.exit(f"error: {error}")
    except PySparkException as error:
        lacks_kafka = "data source: kafka" in str(error)
        sys.exit(f"error: {KAFKA_MISSING if lacks_kafka else error}")
    show(report, as_json=as_json)
    if not report["proved"]:
        sys.exit("error: source and stream differ; the report says in which partitions")
    sys.exit(0)


if __name__ == "__main__":
    main()
