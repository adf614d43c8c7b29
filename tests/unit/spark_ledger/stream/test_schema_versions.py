"""Which schema version a batch or a segment gets, beside other versions and new columns (rules T8
and T19)."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_ledger.errors import SchemaMismatchError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.new_schemas import with_new_schemas
from spark_ledger.stream.model import Segment, StreamConfig
from spark_ledger.stream.schema_registry import SchemaRegistry
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import another, loose, run


def schema(columns: str) -> pa.Schema:
    return pa.schema([(name, pa.int64()) for name in columns])


def config(*versions: str) -> StreamConfig:
    return StreamConfig("s", "i", tuple(map(schema, versions)))


def segment(columns: str) -> Segment:
    """A segment whose entries were written in these columns, which the stream may lack."""
    return replace(loose(), schema_version=9, new_schema=schema(columns))


@pytest.mark.parametrize(
    ("before", "layouts", "also", "after", "versions"),
    [
        (["a"], ["ab"], None, ["a", "ab"], [1]),
        (["a"], ["ab", "ab"], None, ["a", "ab"], [1, 1]),
        (["a"], ["ab", "abc"], None, ["a", "ab", "abc"], [1, 2]),
        (["a"], ["abc", "ab"], None, ["a", "abc", "ab", "abc"], [1, 2]),
        (["a", "ac"], ["ab"], None, ["a", "ac", "ab", "acb"], [2]),
        (["a", "ac"], ["ab", "ad"], None, ["a", "ac", "ab", "acb", "ad", "acbd"], [2, 4]),
        (["a", "ab"], ["ab"], None, None, [1]),
        (["a", "ab"], ["a"], None, None, [0]),
        (["a", "ab", "abc"], ["ab", "a"], None, None, [1, 0]),
        (["a"], [], "ad", ["a", "ad"], []),
        (["a"], ["ab"], "ad", ["a", "ab", "abd"], [1]),
        (["a"], ["ab"], "ba", ["a", "ab"], [1]),
        (["a", "ab"], [], "b", None, []),
    ],
)
def test_segments_get_the_version_of_their_columns_and_the_newest_has_all(
    before: list[str],
    layouts: list[str],
    also: str | None,
    after: list[str] | None,
    versions: list[int],
) -> None:
    """Where ``after`` is None the configuration is the same object: nothing is written."""
    old = config(*before)
    known = loose()
    offered = [*map(segment, layouts), known]
    grown, placed = with_new_schemas(old, offered, None if also is None else schema(also))
    assert (grown is old) == (after is None)
    assert ["".join(each.names) for each in grown.schemas] == (after or before)
    assert [each.schema_version for each in placed] == [*versions, 0]
    assert all(each.new_schema is None for each in placed) and placed[-1] is known
    assert set(grown.schema.names) == set("".join([*before, *layouts, also or ""]))


async def registry(*versions: str) -> tuple[SchemaRegistry, FakeLedgers]:
    ledgers = FakeLedgers()
    stream = await StreamCatalog(ledgers).create("s", schema(versions[0]))
    for each in versions[1:]:
        await stream.merge_schema(schema(each))
    return stream._schemas, ledgers


def test_batch_gets_the_version_that_has_its_columns() -> None:
    async def scenario() -> None:
        schemas, _ = await registry("a", "ab", "abc")
        for columns, version in (("a", 0), ("ba", 1), ("cab", 2)):
            for merge in (False, True):
                fit = await schemas.fit(schema(columns), merge=merge)
                assert (fit.schema_version, fit.is_new) == (version, False)
        for columns in ("ac", "abd", "c"):
            with pytest.raises(SchemaMismatchError):
                await schemas.fit(schema(columns), merge=False)
        fit = await schemas.fit(schema("ac"), merge=True)
        assert (fit.schema_version, fit.schema.names, fit.is_new) == (2, ["a", "b", "c"], False)
        fit = await schemas.fit(schema("ad"), merge=True)
        assert (fit.schema_version, "".join(fit.schema.names), fit.is_new) == (3, "abcd", True)

    run(scenario())


def test_new_columns_are_added_to_those_that_another_process_has_added_meanwhile() -> None:
    async def scenario() -> None:
        schemas, ledgers = await registry("a")
        assert (await schemas.fit(schema("a"), merge=True)).schema_version == 0
        _, others = another(ledgers)
        await (await others.open("s")).merge_schema(schema("ab"))
        fit = await schemas.fit(schema("ac"), merge=True)
        assert (fit.schema_version, "".join(fit.schema.names), fit.is_new) == (2, "abc", True)

    run(scenario())


def test_columns_that_were_merged_once_are_refused_without_leave() -> None:
    """Of the same columns asked for last, the answer is not that of another question."""

    async def scenario() -> None:
        schemas, _ = await registry("a")
        assert (await schemas.fit(schema("ab"), merge=True)).is_new
        with pytest.raises(SchemaMismatchError, match="not a column of the stream"):
            await schemas.fit(schema("ab"), merge=False)
        only = schema("ac")
        with pytest.raises(SchemaMismatchError, match="not among the columns to be merged"):
            await schemas.fit(schema("ab"), merge=only)
        assert (await schemas.fit(schema("ab"), merge=True)).is_new

    run(scenario())


def test_new_columns_of_one_micro_batch_follow_one_another() -> None:
    async def scenario() -> None:
        schemas, ledgers = await registry("a")
        first = await schemas.fit(schema("ab"), merge=True)
        second = await schemas.fit(schema("ac"), merge=True, pending=[first])
        assert [each.schema_version for each in (first, second)] == [1, 2]
        assert "".join(second.schema.names) == "abc"
        pending = [first, second]
        for columns, version in (("abc", 2), ("c", 2), ("ab", 2), ("a", 0)):
            fit = await schemas.fit(schema(columns), merge=True, pending=pending)
            assert fit.schema_version == version, columns
            assert fit.is_new == (version > 0)
            assert (fit.schema is second.schema) == (version > 0)
        other = await another(ledgers)[1].open("s")
        for columns in ("x", "xy", "xyz"):
            await other.merge_schema(schema(columns))
        third = await schemas.fit(schema("ad"), merge=True, pending=pending)
        assert third.schema_version == 4, "behind all that the stream has by now"
        assert "".join(third.schema.names) == "abcd"

    run(scenario())


def test_rows_of_two_schemas_that_expect_one_version_are_two_segments() -> None:
    """Another process adds its column first, while a micro-batch with both is written."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", schema("a"))
        writer = stream.writer(merge_schema=True)
        await writer.write(pa.table({"a": [1], "b": [10]}))
        await (await another(ledgers)[1].open("s")).merge_schema(schema("ax"))
        await writer.write(pa.table({"a": [2], "x": [20]}))
        await writer.write(pa.table({"a": [3], "b": [30]}))
        segments = await writer.finish()
        assert [each.rows for each in segments] == [1, 1, 1]
        await stream.commit_segments(segments)
        await writer.close()
        fresh = await another(ledgers)[1].open("s")
        assert sorted(fresh.schema.names) == ["a", "b", "x"]
        rows = [row async for each in fresh.read() for row in each.to_pylist()]
        assert rows == [
            {"a": 1, "x": None, "b": 10},
            {"a": 2, "x": 20, "b": None},
            {"a": 3, "x": None, "b": 30},
        ]

    run(scenario())
