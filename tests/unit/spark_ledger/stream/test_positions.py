"""Positions that callers give: in any order, of rows that are there, behind the end, or dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError, DataLossError
from spark_ledger.stream import stream as stream_module
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.positions import Position
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, numbers, run, table

Read = Callable[[Stream], AsyncIterator[pa.RecordBatch]]


async def of_three() -> Stream:
    stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
    for number in range(3):
        await stream.append(table(number))
    return stream


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.read(Dlsn(3, 0, 1)),
        lambda s: s.read(Dlsn(4), Dlsn(1)),
        lambda s: s.read(Dlsn(1), Dlsn(4)),
        lambda s: s.read("latest", Dlsn(4)),
        lambda s: s.read(Dlsn(4), "earliest"),
        lambda s: s.tail(Dlsn(4), idle_timeout=0),
    ],
)
def test_read_of_a_position_behind_the_end_is_refused(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "STALE_READ_DELAY_S", 0.0)

    async def scenario() -> None:
        with pytest.raises(ConfigurationError, match=r"behind the end of the stream, \(3, 0, 0\)"):
            await numbers(read(await of_three()))

    run(scenario())


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda s: s.read(Dlsn(3), Dlsn(1)), []),
        (lambda s: s.read("latest", "earliest"), []),
        (lambda s: s.read(Dlsn(0), Dlsn(0)), []),
        (lambda s: s.read("earliest", Dlsn(2, 0, 1)), [1, 2]),
        (lambda s: s.read(Dlsn(1), "latest"), [1, 2]),
        (lambda s: s.tail("earliest", idle_timeout=0), [1, 2]),
        (lambda s: s.tail(Dlsn(3), idle_timeout=0), []),
    ],
)
def test_read_behind_a_truncation_has_what_lies_between_its_positions(
    read: Read, found: list[int]
) -> None:
    async def scenario() -> None:
        stream = await of_three()
        await stream.retention.truncate((1,))
        assert await numbers(read(stream)) == found
        for lost in (stream.read(Dlsn(0), Dlsn(1)), stream.tail(Dlsn(0), idle_timeout=0)):
            with pytest.raises(DataLossError, match=r"before \(1, 0, 0\) were truncated"):
                await numbers(lost)

    run(scenario())


def test_tail_has_the_columns_that_are_asked_for() -> None:
    async def scenario() -> None:
        stream = await of_three()
        columns: dict[str, pa.DataType] = {"text": pa.string(), "n": pa.float64()}
        other = pa.schema(columns)
        for tail, schema in (
            (
                stream.tail("earliest", idle_timeout=0, columns=["text"]),
                pa.schema([other.field(0)]),
            ),
            (stream.tail("earliest", idle_timeout=0, schema=other), other),
        ):
            batches = [batch async for batch in tail]
            assert all(batch.schema.equals(schema) for batch in batches)
            assert [batch.column(0).to_pylist() for batch in batches] == [
                [f"row {number}"] for number in range(3)
            ]

    run(scenario())


def test_tail_whose_next_rows_were_dropped_says_so() -> None:
    """It would pass over them otherwise."""

    async def scenario() -> None:
        stream = await of_three()
        following = stream.tail(Dlsn(2), idle_timeout=5)
        assert (await anext(following)).column("n").to_pylist() == [2]
        for number in (3, 4):
            await stream.append(table(number))
        await stream.retention.truncate((4,))
        with pytest.raises(DataLossError, match=r"from position \(3, 0, 0\) on"):
            await anext(following)
        await stream.close()

    run(scenario())


@pytest.mark.parametrize(("upto", "end"), [(1, "latest"), (2, Dlsn(3)), (3, Dlsn(1, 0, 1))])
def test_read_whose_rows_are_dropped_before_they_are_looked_up_says_so(
    upto: int, end: Dlsn | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the head and that for the commits: no row is passed over."""

    async def scenario() -> None:
        stream = await of_three()
        resolve = stream._resolve

        async def late(*positions: Position) -> tuple[Dlsn, Dlsn]:
            found = await resolve(*positions)
            await stream.retention.truncate((upto,))
            return found

        monkeypatch.setattr(stream, "_resolve", late)
        with pytest.raises(DataLossError, match="truncated"):
            await numbers(stream.read("earliest", end))

    run(scenario())


def test_commits_of_a_part_of_a_plan_are_read_in_the_schema_that_is_asked_for() -> None:
    async def scenario() -> None:
        stream = await of_three()
        columns: dict[str, pa.DataType] = {"n": pa.float64()}
        for schema in (None, pa.schema(columns)):
            chunks = stream.read_commit_chunks(range(1, 3), Dlsn(1), Dlsn(3), schema=schema)
            found = [each.batch async for chunk in chunks for each in chunk]
            assert all(batch.schema.equals(schema or SCHEMA) for batch in found)
            assert [n for batch in found for n in batch.column("n").to_pylist()] == [1, 2]

    run(scenario())
