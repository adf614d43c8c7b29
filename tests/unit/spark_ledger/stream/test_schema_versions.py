"""Which schema version a batch or a segment gets, beside other versions and new columns (rules T8
and T19)."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    MetadataRestoredError,
    MetadataUnavailableError,
    SchemaMismatchError,
)
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


@pytest.mark.parametrize(
    ("now", "refused"),
    [
        (["a", "ab"], ""),
        (["a", "ab", "abc"], ""),
        (["a", "ac"], "others in their place"),
        (["a", "ba"], "others in their place"),
        (["a"], "these no more"),
    ],
)
def test_rows_are_committed_in_the_columns_that_they_were_written_in_or_not_at_all(
    now: list[str], refused: str
) -> None:
    """The list may be another one behind a restore, and who commits them has not seen theirs."""
    written = replace(loose(), schema_version=1, written_in=schema("ab"))
    with pytest.raises(MetadataRestoredError, match=refused) if refused else nullcontext():
        same, (known, placed) = with_new_schemas(config(*now), [loose(), written], None)
        assert placed == written and placed.written_in is None, "a commit says its version"
        assert len(same.schemas) == len(now) and known.written_in is None


@pytest.mark.parametrize(("now", "is_refused"), [(["a", "xy"], False), (["a"], True)])
def test_rows_of_a_task_that_does_not_say_their_columns_are_committed_if_the_version_is_there(
    now: list[str], is_refused: bool
) -> None:
    """It is of an older version."""
    written = replace(loose(), schema_version=1)
    with pytest.raises(MetadataRestoredError) if is_refused else nullcontext():
        assert with_new_schemas(config(*now), [written], None)[1] == (written,)


def test_segments_say_which_columns_they_were_written_in_until_they_are_in_a_commit() -> None:
    """Those that the stream has had from its beginning go without saying, as do new ones, which
    they bring."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", schema("a"))
        await stream.merge_schema(schema("ab"))
        writer = stream.writer(merge_schema=True)
        for columns in ("a", "ab", "abc"):
            await writer.write(pa.table({name: [1] for name in columns}))
        segments = pickle.loads(pickle.dumps(await writer.finish()))
        assert [each.written_in for each in segments] == [None, schema("ab"), None]
        assert [each.new_schema for each in segments] == [None, None, schema("abc")]
        commit = await stream.commit_segments(segments)
        assert [each.schema_version for each in commit.segments] == [0, 1, 2]
        assert {each.written_in for each in commit.segments} == {None}
        await writer.close()

    run(scenario())


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


@pytest.mark.parametrize("is_told", [True, False])
def test_task_that_has_its_ledger_writes_on_while_the_store_comes_for_a_moment_and_goes(
    is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large partitions are not written again: it would fail, and four of these fail the job. Once
    the store is there it looks at the list of columns."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", schema("a"))
        connected, streams = another(ledgers)
        mine = await streams.open("s")
        writer = mine.writer()
        await writer.write(pa.table({"a": [1]}))

        async def away(path: str) -> None:
            raise MetadataUnavailableError(f"{path}: ZooKeeper did not answer")

        with monkeypatch.context() as patch:
            patch.setattr(connected.store, "get", away)
            patch.setattr(connected.store, "get_latest", away)
            connected.store.reconnect()
            await writer.write(pa.table({"a": [2]}))
            with pytest.raises(MetadataUnavailableError):  # what only the store can tell
                await mine.check_schema(schema("b"))
        if is_told:
            await writer.write(pa.table({"a": [3]}))
            assert not mine._schemas.reading.has_ended
        (segment,) = await writer.finish()
        assert segment.rows == 2 + is_told
        await mine.commit_segments([segment])
        await writer.close()

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
