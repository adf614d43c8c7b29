"""Small parts: task identity, messages, partitions, schemas, patience, registration."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from connector import pyspark_ledger, retry
from connector.datasource import LedgerDataSource
from connector.read.partitions import LedgerPartition, StreamPartition
from connector.read.planner import Plan
from connector.schema import (
    METADATA_TYPE,
    arrow_schema_of,
    check_declared,
    read_schema,
    spark_schema_of,
)
from connector.write.task import TaskIdentity, TaskWritten, segments_by_partition, streaming_task
from spark_ledger.errors import (
    ConfigurationError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.stream.format.metadata_column import ledger_type
from spark_ledger.stream.model import SegmentRange
from spark_ledger.types import EntryId, LedgerId
from tests.unit.connector.fakes import make_segment

PROPERTIES = {
    "sql.streaming.queryId": "q",
    "streaming.sql.batchId": "7",
    "spark.jobGroup.id": "r",
}


def context(properties: dict[str, str]) -> SimpleNamespace:
    return SimpleNamespace(
        getLocalProperty=properties.get, partitionId=lambda: 3, attemptNumber=lambda: 1
    )


def test_a_task_knows_who_it_is() -> None:
    assert streaming_task(context(PROPERTIES)) == TaskIdentity("q", "r", 7, 3, 1)


@pytest.mark.parametrize("missing", sorted(PROPERTIES))
def test_a_missing_task_property_is_named(missing: str) -> None:
    rest = {name: value for name, value in PROPERTIES.items() if name != missing}
    with pytest.raises(ConfigurationError, match=missing):
        streaming_task(context(rest))


def test_no_task_and_no_number() -> None:
    with pytest.raises(ConfigurationError, match="inside Spark tasks"):
        streaming_task(None)
    with pytest.raises(ConfigurationError, match="not a batch number"):
        streaming_task(context({**PROPERTIES, "streaming.sql.batchId": "x"}))


def test_segments_follow_the_partitions() -> None:
    one, two, three = (make_segment(0, (n,)) for n in (1, 2, 3))
    messages = [
        TaskWritten(2, 0, "id", (three,)),
        None,
        TaskWritten(0, 1, "id", (one, two)),
        TaskWritten(1, 0, "id"),
    ]
    assert segments_by_partition(messages) == (one, two, three)


def test_partitions_survive_pickling() -> None:
    ranges = tuple(SegmentRange(make_segment(n, (2, 3)), (0, 1), (1, 2), 5, 6) for n in range(3))
    partition = StreamPartition("id", Plan(ranges, 4))
    assert pickle.loads(pickle.dumps(partition)) == partition
    raw = pickle.loads(pickle.dumps(LedgerPartition(LedgerId(1), EntryId(2), EntryId(3), 0)))
    assert (raw.ledger_id, raw.first_entry, raw.last_entry) == (1, 2, 3)


def field(name: str, data_type: spark.DataType, nullable: bool = True) -> spark.StructField:
    return spark.StructField(name, data_type, nullable)


EVERY_TYPE = spark.StructType(
    [
        field("interval", spark.DayTimeIntervalType(1, 3)),
        field("collated", spark.StringType("UTF8_LCASE")),
        field("variant", spark.VariantType()),
        field("map", spark.MapType(spark.StringType(), spark.ArrayType(spark.IntegerType(), True))),
        field("nothing", spark.NullType()),
        field("instant", spark.TimestampType()),
        field("local", spark.TimestampNTZType()),
        field("time", spark.TimeType(6)),
        field("decimal", spark.DecimalType(38, 10)),
        spark.StructField("noted", spark.LongType(), True, {"comment": "why"}),
        field("struct", spark.StructType([field("x", spark.DayTimeIntervalType(1, 1))])),
    ]
)


def test_spark_types_survive_the_arrow_schema() -> None:
    stored = arrow_schema_of(EVERY_TYPE)
    assert spark_schema_of(stored, include_metadata=False) == EVERY_TYPE
    assert read_schema(EVERY_TYPE).equals(stored)


def test_everything_in_a_stored_schema_takes_nulls() -> None:
    inner = spark.StructType([field("x", spark.DayTimeIntervalType(1, 1), False)])
    items = spark.ArrayType(spark.MapType(spark.StringType(), inner, False), False)
    nothing = spark.ArrayType(spark.NullType(), False)  # as array() has it
    given = spark.StructType([field("items", items, False), field("nothing", nothing, False)])
    back = spark_schema_of(arrow_schema_of(given), include_metadata=False)
    assert "false" not in back.json().lower()
    assert back.simpleString() == given.simpleString()


def test_a_kept_type_that_no_longer_fits_is_not_used() -> None:
    stored = pa.schema([pa.field("a", pa.int64(), metadata={b"spark.type": b'"string"'})])
    assert spark_schema_of(stored, include_metadata=False)["a"].dataType == spark.LongType()


def test_types_without_arrow_are_named() -> None:
    schema = spark.StructType([field("months", spark.YearMonthIntervalType())])
    with pytest.raises(SchemaMismatchError, match=r"'months' has the type interval year to month"):
        arrow_schema_of(schema)


def test_a_map_whose_keys_have_no_type_is_named() -> None:
    schema = spark.StructType([field("tags", spark.MapType(spark.NullType(), spark.NullType()))])
    with pytest.raises(SchemaMismatchError, match=r"'tags' has the type map<void,void>.*cast it"):
        arrow_schema_of(schema)


def test_the_metadata_column() -> None:
    schema = spark_schema_of(pa.schema([("a", pa.int64())]), include_metadata=True)
    assert schema.names == ["a", "_ledger"] and schema["_ledger"].dataType == METADATA_TYPE
    assert read_schema(schema).field("_ledger").type.equals(ledger_type())


def test_declared_schemas() -> None:
    stored = pa.schema([("a", pa.int32()), ("b", pa.string())])

    def check(*fields: spark.StructField, include_metadata: bool = False) -> None:
        check_declared(
            spark.StructType(list(fields)),
            stored,
            include_metadata=include_metadata,
            subject="stream 's'",
        )

    check(field("b", spark.StringType()))
    check(field("b", spark.StringType()), field("a", spark.LongType()))
    check(field("_ledger", METADATA_TYPE, False), include_metadata=True)
    with pytest.raises(SchemaMismatchError, match=r"no column 'c'.* its columns are a, b"):
        check(field("c", spark.LongType()))
    with pytest.raises(SchemaMismatchError, match="column 'a' is stored as int32"):
        check(field("a", spark.MapType(spark.StringType(), spark.StringType())))
    with pytest.raises(SchemaMismatchError, match="'_ledger' must be"):
        check(field("_ledger", spark.LongType()), include_metadata=True)


def test_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_PAUSES_S", (0.0,))
    errors = [MetadataUnavailableError("gone"), MetadataUnavailableError("gone")]

    def call() -> int:
        if errors:
            raise errors.pop()
        return 7

    assert retry.retry_transient(call, "it") == 7
    errors.append(MetadataUnavailableError("gone"))
    with pytest.raises(MetadataUnavailableError):
        retry.retry_transient(call, "it", budget_s=-1.0)
    errors[:] = [OutcomeUnknownError("perhaps")]  # type: ignore[list-item]
    with pytest.raises(OutcomeUnknownError):
        retry.retry_transient(call, "it")
    errors[:] = [OutcomeUnknownError("perhaps")]  # type: ignore[list-item]
    assert retry.retry_transient(call, "it", idempotent=True) == 7


def test_the_data_source_hides_option_values() -> None:
    source = LedgerDataSource({"ledger.password": "hunter2", "stream": "s"})
    assert "hunter2" not in repr(source)
    assert LedgerDataSource.name() == "ledger"
    assert pickle.loads(pickle.dumps(source)).options == source.options


def test_automatic_registration_finds_the_source() -> None:
    assert pyspark_ledger.DefaultSource is LedgerDataSource
    with pytest.raises(AttributeError):
        _ = pyspark_ledger.Other


def test_imports_stay_light() -> None:
    code = (
        "import sys, connector, connector.pyspark_ledger\n"
        "import connector.read.planner, connector.read.offsets\n"
        "heavy = {'pyspark', 'pyarrow', 'grpc', 'kazoo'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
