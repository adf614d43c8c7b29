"""Every Spark type makes the round trip, values and nulls, batch and streaming."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.spark.conftest import Lab

UTC = datetime.UTC

COLUMNS: dict[str, str] = {
    "bool": "CAST(true AS boolean)",
    "byte": "CAST(-128 AS tinyint)",
    "short": "CAST(-32768 AS smallint)",
    "int": "CAST(-2147483648 AS int)",
    "long": "CAST(-9223372036854775808 AS bigint)",
    "float": "CAST(1.5 AS float)",
    "double": "CAST(-2.5e300 AS double)",
    "decimal_small": "CAST(-12.34 AS decimal(10,2))",
    "decimal_large": "CAST('12345678901234567890123456.789012345678' AS decimal(38,12))",
    "text": "'Grüße, 東京'",
    "bytes": "X'00FF10'",
    "day": "DATE'1582-10-15'",
    "instant": "TIMESTAMP'2026-03-29 01:59:59.123456'",
    "local": "TIMESTAMP_NTZ'0001-01-01 00:00:00.000001'",
    "pause": "INTERVAL '-3 04:05:06.000007' DAY TO SECOND",
    "hours": "INTERVAL '7' HOUR",
    "nothing": "NULL",
    "items": "array(1, NULL, 3)",
    "no_items": "array()",
    "pairs": "map('a', 1.5D, 'b', NULL)",
    "nested": "named_struct('x', array(named_struct('y', map(1, DATE'2020-02-29'))), 'z', 'q')",
    "collated": "'Abc' COLLATE UTF8_LCASE",
    "variant": "parse_json('{\"a\": [1, 2]}')",
    "boxed": "named_struct('v', parse_json('[1]'))",
    "not_utf8": "CAST(X'FF80' AS string)",
}


def frame(lab: Lab) -> Any:
    given = ", ".join(f"{value} AS {name}" for name, value in COLUMNS.items())
    nulls = ", ".join(
        f"CAST(NULL AS {field.dataType.simpleString()}) AS {field.name}"
        for field in lab.spark.sql(f"SELECT {given}").schema
    )
    return lab.spark.sql(f"SELECT 0 AS n, {given} UNION ALL SELECT 1 AS n, {nulls}").coalesce(1)


def nullable(frame: Any) -> StructType:
    """The schema of a DataFrame, with everything in it nullable."""
    return StructType.fromJson(json.loads(frame._jdf.schema().asNullable().json()))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_every_type_makes_the_round_trip(lab: Lab, zone: str) -> None:
    before = lab.spark.conf.get("spark.sql.session.timeZone")
    lab.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        written = frame(lab)
        lab.append(written)
        back = lab.read()
        assert back.schema == nullable(written)
        text = [f"CAST({name} AS string) AS {name}" for name in ["n", *COLUMNS]]
        expected, found = (one.selectExpr(*text).orderBy("n").collect() for one in (written, back))
        assert found == expected
        assert all(value is None for name, value in found[1].asDict().items() if name != "n")
        typed = back.where("n = 0").drop("variant", "nested", "boxed").collect()[0]
        assert typed.decimal_large == Decimal("12345678901234567890123456.789012345678")
        assert typed.bytes == b"\x00\xff\x10"
        assert typed.day == datetime.date(1582, 10, 15)
    finally:
        lab.spark.conf.set("spark.sql.session.timeZone", before)


def test_every_type_makes_the_round_trip_through_a_query(lab: Lab) -> None:
    written = frame(lab)
    lab.append(written)
    copy = lab.another()
    query = copy.sink(lab.follow()).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert copy.read().schema == nullable(written)
    text = [f"CAST({name} AS string) AS {name}" for name in ["n", *COLUMNS]]
    expected, found = (
        one.selectExpr(*text).orderBy("n").collect() for one in (written, copy.read())
    )
    assert found == expected


def test_stream_created_by_a_write_takes_nulls(lab: Lab) -> None:
    """That the first rows had none, and Spark knew, says nothing of those to come."""
    first = "SELECT id, 'x' AS kind, named_struct('a', array(1)) AS s FROM range(0, 1, 1, 1)"
    later = (
        "SELECT id, CAST(NULL AS string) AS kind, named_struct('a', array(CAST(NULL AS int))) AS s "
        "FROM range(1, 2, 1, 1)"
    )
    for query in (first, later):
        lab.append(lab.spark.sql(query))
    assert [tuple(row) for row in lab.read().select("id", "kind", "s.a").collect()] == [
        (0, "x", [1]),
        (1, None, [None]),
    ]


def test_not_null_column_of_a_stream_stays_not_null(lab: Lab) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    lab.client.create_stream(lab.name, schema)
    lab.numbers(0, 3)
    assert not lab.read().schema["id"].nullable
    with pytest.raises(Exception, match="field 'id' must not be null, but the data have a null"):
        lab.append(lab.spark.sql("SELECT CAST(NULL AS bigint) AS id"))
    assert lab.stored() == [0, 1, 2]


def test_large_rows_and_many_rows_are_read(lab: Lab) -> None:
    lab.append(lab.spark.sql("SELECT id, repeat('x', 3000000) AS s FROM range(0, 4, 1, 1)"))
    lab.append(lab.spark.sql("SELECT id, 'y' AS s FROM range(0, 200000, 1, 2)"))
    back = lab.read().selectExpr("count(*) AS n", "sum(length(s)) AS m").collect()[0]
    assert (back.n, back.m) == (200004, 12_200_000)


def test_column_takes_what_it_gives_back_and_no_other_kind(lab: Lab) -> None:
    """Arrow does not tell these types apart, and a geometry of another SRID ends each read."""

    def point(srid: int) -> str:
        return f"st_geomfromwkb(X'0101000000000000000000F03F0000000000000040', {srid})"

    def append(to: Lab, n: int, x: str, pause: str) -> None:
        to.append(lab.spark.sql(f"SELECT {n} AS n, {x} AS x, INTERVAL {pause} AS p"))

    any_one, one = lab.another(), lab.another()
    append(
        any_one, 0, f"explode(array({point(4326)}, {point(3857)}))", "'2 00:00:00' DAY TO SECOND"
    )
    append(one, 0, point(4326), "'1' DAY")
    append(any_one, 1, point(3857), "'1' DAY")
    for told, *given in (
        (r"'x': the stream has type geometry\(4326\), .* geometry\(3857\)", point(3857), "'1' DAY"),
        (r"'p': the stream has type interval day, ", point(4326), "'1 07:30:00' DAY TO SECOND"),
    ):
        with pytest.raises(Exception, match=told):
            append(one, 1, *given)
    shown = ("n", "st_srid(x)", "CAST(p AS string)")
    rows = [
        [tuple(row) for row in each.read().selectExpr(*shown).collect()] for each in (one, any_one)
    ]
    text = "INTERVAL '2 00:00:00' DAY TO SECOND"
    assert rows[0] == [(0, 4326, "INTERVAL '1' DAY")]
    assert sorted(rows[1]) == [(0, 3857, text), (0, 4326, text), (1, 3857, text.replace("2", "1"))]
