"""Columns written as text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.cli.arguments.ddl import parse_columns
from spark_ledger.errors import ConfigurationError


def test_columns() -> None:
    text = "id BIGINT not null, Name string , price decimal(10, 2), at timestamp, raw binary"
    fields: list[pa.Field[Any]] = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("Name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("raw", pa.binary()),
    ]
    assert parse_columns(text) == pa.schema(fields)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "NAME TYPE"),
        ("id", "'id'"),
        ("id bigint,", "NAME TYPE"),
        ("id bigint, id string", "twice: id"),
        ("id bigit", "'bigit'"),
        ("id bigint(3)", "'bigint'"),
        ("d decimal(2,3)", "decimal(2,3)"),
        ("d decimal(39)", "decimal(39,0)"),
        (f"d decimal({'9' * 5000})", "NAME TYPE"),
    ],
)
def test_parse_columns_names_the_wrong_column(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_columns(text)
    assert words in str(error.value)
