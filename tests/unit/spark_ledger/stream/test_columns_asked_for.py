"""Columns that a reader picks: in the order in which they were asked for, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_ledger.stream.blocking import Stream, StreamConnection
from tests.unit.spark_ledger.stream.test_blocking import connection
from tests.unit.spark_ledger.stream.world import SCHEMA, table

__all__ = ["connection"]


@pytest.fixture
def stream(connection: StreamConnection) -> Iterator[Stream]:
    with connection.create_stream("s", SCHEMA) as made:
        made.append(table(7, 2))
        yield made


@pytest.mark.parametrize("columns", [["text", "n"], ["n", "text"], ["text"], ["n", "n"]])
@pytest.mark.parametrize("is_tail", [False, True])
def test_columns_come_in_the_order_in_which_they_were_asked_for(
    stream: Stream, columns: list[str], is_tail: bool
) -> None:
    if is_tail:
        batches = list(stream.tail("earliest", idle_timeout=0.0, columns=columns))
    else:
        batches = list(stream.read(columns=columns))
    values = {"n": [7, 8], "text": ["row 7", "row 8"]}
    assert [batch.schema.names for batch in batches] == [columns]
    assert [column.to_pylist() for column in batches[0].columns] == [values[n] for n in columns]


@pytest.mark.parametrize("is_tail", [False, True])
def test_schema_says_order_and_types_and_what_is_missing_is_null(
    stream: Stream, is_tail: bool
) -> None:
    types: dict[str, pa.DataType] = {"more": pa.string(), "text": pa.string(), "n": pa.float64()}
    wanted = pa.schema(types)
    if is_tail:
        batches = list(stream.tail("earliest", idle_timeout=0.0, schema=wanted))
    else:
        batches = list(stream.read(schema=wanted))
    assert [batch.schema for batch in batches] == [wanted]
    assert batches[0].column("more").to_pylist() == [None, None]
    assert batches[0].column("n").to_pylist() == [7.0, 8.0]
