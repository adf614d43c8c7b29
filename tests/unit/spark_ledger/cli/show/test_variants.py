"""Variants are printed as what they hold, whatever Spark put into one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import VariantType, VariantVal

from spark_ledger.cli.show.variants import is_variant, variant_of
from spark_ledger.cli.streams import print_rows

WIDE = {f"name{n}": n for n in range(300)}


def stored(text: str) -> dict[str, bytes]:
    """As Spark stores it."""
    made = VariantVal.parseJson(text)
    return {"value": made.value, "metadata": made.metadata}


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -5,
        300,
        -70_000,
        5_000_000_000,
        1e300,
        "",
        "short",
        "x" * 100,
        "\u6771\u4eac",
        [],
        [1, "a", [None], {"b": 2}],
        {},
        {"b": {"c": [1, 2]}, "a": "t"},
        list(range(1000)),
        WIDE,
    ],
)
def test_variant_holds_what_its_json_says(value: Any) -> None:
    assert variant_of(stored(json.dumps(value))) == value


def test_decimal_in_a_variant_keeps_its_digits() -> None:
    assert str(variant_of(stored("12.340"))) in ("12.340", "12.34")


@pytest.mark.parametrize(
    "raw",
    [
        {"value": b"", "metadata": b"\x01\x00\x00"},
        {"value": b"\xff", "metadata": b"\x01\x00\x00"},
        {"value": b"\x02\xff\x01", "metadata": b"\x01\x00\x00"},
        {"value": b"\x00", "metadata": b""},
        {"value": b"\xfc\x00", "metadata": b"\x01\x00\x00"},
    ],
)
def test_damaged_variant_is_shown_as_it_is(raw: dict[str, bytes]) -> None:
    assert variant_of(raw) == raw


def test_rows_with_variants_are_printed_as_values(capsys: pytest.CaptureFixture[str]) -> None:
    type_ = to_arrow_type(VariantType())
    assert is_variant(type_) and not is_variant(pa.int64())
    column = pa.array([stored('{"a": [1, "b"]}'), None], type_)
    batch = pa.record_batch({"v": column})
    assert print_rows([batch], as_json=True) == 2
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{"v": {"a": [1, "b"]}}, {"v": None}]
