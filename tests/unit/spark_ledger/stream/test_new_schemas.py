"""New columns are part of the commit that brings them: made with it, or not at all (rule T19)."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    FencedError,
    OutcomeUnknownError,
    RewriteError,
    SchemaMismatchError,
)
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.commit.new_schemas import with_new_schemas
from spark_ledger.stream.model import Segment, StreamConfig
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Faults,
    another,
    loose,
    run,
    small_manifests,
    table,
)


def with_column(first: int, name: str, value: object) -> pa.Table:
    return table(first).append_column(name, pa.array([value]))


async def rows_of(stream: Stream) -> list[dict[str, Any]]:
    await stream.refresh()
    return [row async for batch in stream.read() for row in batch.to_pylist()]


async def written(stream: Stream, data: pa.Table) -> list[Segment]:
    """The segments of rows as another process gets them from a task."""
    writer = stream.writer(merge_schema=True)
    await writer.write(data)
    segments = await writer.finish()
    await writer.close()
    return list(pickle.loads(pickle.dumps(segments)))


def test_append_that_fails_adds_no_column() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        ledgers.append_error, ledgers.fail_append_at = FencedError("fenced"), 1
        with pytest.raises(FencedError):
            await stream.append(with_column(0, "typo", 1), merge_schema=True)
        other = await another(ledgers)[1].open("s")
        assert other.schema.names == stream.schema.names == ["n", "text"]
        assert other._schemas.versioned.version == 0

    run(scenario())


def test_append_that_is_refused_adds_no_column() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        required = SCHEMA.set(0, pa.field("n", pa.int64(), nullable=False))
        stream = await StreamCatalog(ledgers).create("s", required)
        for wrong in (pa.table({"text": ["x"], "m": [1]}), pa.table({"n": ["1"], "more": [1]})):
            with pytest.raises(SchemaMismatchError, match="'s': field 'n'"):
                await stream.append(wrong, merge_schema=True)
            with pytest.raises(SchemaMismatchError, match="'s': field 'n'"):
                await stream.check_schema(wrong.schema, merge_schema=True)
        assert (await stream.refresh()).schema_version == 0

    run(scenario())


def test_segments_that_nobody_commits_add_no_column() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        (segment,) = await written(stream, with_column(0, "typo", 1))
        assert segment.new_schema is not None
        assert (await stream.refresh()).schema_version == 0
        commit = await stream.append(with_column(0, "right", 1), merge_schema=True)
        assert [part.schema_version for part in commit.segments] == [1]
        assert stream.schema.names == ["n", "text", "right"], "known without another read"
        assert (await stream.refresh()).schemas[1].equals(stream.schema)

    run(scenario())


def test_columns_of_a_micro_batch_that_nobody_commits_are_none_of_the_next() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        writer = stream.writer(merge_schema=True)
        await writer.write(with_column(0, "typo", 1))
        given_up = await writer.seal()
        await writer.write(with_column(1, "right", 1))
        segments = await writer.finish()
        await given_up.confirm()
        await stream.commit_segments(segments)
        assert (await stream.refresh()).schema.names == ["n", "text", "right"]
        assert await rows_of(stream) == [{"n": 1, "text": "row 1", "right": 1}]
        await writer.close()

    run(scenario())


def test_segments_that_lost_the_race_are_read_in_their_own_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loser wrote entries without the winner's column, and they name the winner's version."""
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        loser = await another(ledgers)[1].open("s")
        segments = await written(loser, with_column(1, "b", "x"))
        await stream.append(with_column(0, "a", 7), merge_schema=True)
        commit = await loser.commit_segments(segments)
        (segment,) = commit.segments
        assert (segment.schema_version, segment.written_version) == (2, 1)
        for _ in range(8):
            await loser.append(with_column(2, "b", "y"), merge_schema=True)
        reader = await another(ledgers)[1].open("s")
        assert reader.schema.names == ["n", "text", "a", "b"]
        rows = [(row["n"], row["a"], row["b"]) for row in await rows_of(reader)]
        assert rows == [(0, 7, None), (1, None, "x"), *[(2, None, "y")] * 8]
        assert await reader.commit(1) == commit, "also from a manifest"
        assert await reader.sealed_commits() > 1

    run(scenario())


def test_segments_of_a_version_that_is_new_to_the_process_that_commits_are_committed() -> None:
    """A driver that has been there for long, and a task that has just opened the stream."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        driver = await StreamCatalog(ledgers).create("s", SCHEMA)
        other = await another(ledgers)[1].open("s")
        await other.append(with_column(0, "a", 7), merge_schema=True)
        task = await another(ledgers)[1].open("s")
        segments = await written(task, with_column(1, "a", 8))
        assert [(part.schema_version, part.new_schema) for part in segments] == [(1, None)]
        assert driver.config.schema_version == 0
        await driver.commit_segments([*await written(task, table(2)), *segments])
        assert [(row["n"], row["a"]) for row in await rows_of(driver)] == [
            (0, 7),
            (2, None),
            (1, 8),
        ]

    run(scenario())


def test_long_list_of_segments_that_lost_the_race_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 10)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        loser = await another(ledgers)[1].open("s")
        old = await loser.writer().write(table(5))
        assert old == 1
        segments = [*await written(loser, table(5)), *await written(loser, with_column(1, "b", 2))]
        await stream.append(with_column(0, "a", 7), merge_schema=True)
        commit = await loser.commit_segments(segments)
        assert [part.schema_version for part in commit.segments] == [0, 2]
        reader = await another(ledgers)[1].open("s")
        assert await reader.commit(1) == commit
        assert [(row["n"], row["b"]) for row in await rows_of(reader)] == [
            (0, None),
            (5, None),
            (1, 2),
        ]

    run(scenario())


def test_racing_columns_of_different_types_are_refused_and_nothing_is_changed() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        loser = await another(ledgers)[1].open("s")
        segments = await written(loser, with_column(1, "a", "text"))
        await stream.append(with_column(0, "a", 7), merge_schema=True)
        with pytest.raises(SchemaMismatchError, match=r"'s': field 'a'.*int64.*string"):
            await loser.commit_segments(segments)
        assert (await stream.head()).next_commit == 1
        assert (await stream.refresh()).schema_version == 1

    run(scenario())


def test_racing_columns_of_one_name_and_type_are_one_column() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        loser = await another(ledgers)[1].open("s")
        segments = await written(loser, with_column(1, "a", 8))
        await stream.append(with_column(0, "a", 7), merge_schema=True)
        await loser.commit_segments(segments)
        assert [row["a"] for row in await rows_of(loser)] == [7, 8]
        assert loser.config.schema_version == 1

    run(scenario())


@pytest.mark.parametrize(
    ("name", "added", "is_other"),
    [("a", "one", False), ("a", "other", True), ("A", "other", True), ("more", "other", True)],
)
def test_racing_columns_that_differ_in_metadata_are_written_again(
    name: str, added: str, is_other: bool
) -> None:
    """Metadata may say what the values are: then the rows would be read as those of the winner.
    Who writes them again is asked whether they fit."""

    def point(name: str, kind: str) -> pa.Field[Any]:
        part = pa.field("wkb", pa.binary(), metadata={"srid": kind, "wkb": "true"})
        return pa.field(name, pa.struct([part]))

    newest = SCHEMA.append(point(name, "one"))
    if name == "more":
        newest = newest.append(point("a", "one"))
    config = StreamConfig("s", "id", (SCHEMA, newest))
    layout = SCHEMA.append(point("a", added))
    segment = Segment(-1, loose().ledger_id, *loose_bounds(), 1, 1, 1, (1,), new_schema=layout)
    with pytest.raises(RewriteError, match=r"'[aA]' first") if is_other else nullcontext():
        assert with_new_schemas(config, [segment], None)[0] is config


def test_racing_columns_that_differ_in_what_may_be_null_are_written_again() -> None:
    """Rows with a null inside would not fit the column as the winner declared it."""
    strict = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    config = StreamConfig("s", "id", (SCHEMA, SCHEMA.append(pa.field("a", strict))))
    lenient = SCHEMA.append(pa.field("a", pa.struct([("x", pa.int64())])))
    segment = Segment(-1, loose().ledger_id, *loose_bounds(), 1, 1, 1, (1,), new_schema=lenient)
    with pytest.raises(RewriteError, match=r"'a' first.*write the rows again"):
        with_new_schemas(config, [segment], None)


def loose_bounds() -> tuple[Any, Any]:
    return loose().first_entry, loose().last_entry


def test_two_new_columns_in_one_micro_batch_are_two_versions() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        writer = stream.writer(merge_schema=True)
        await writer.write(with_column(0, "a", 1))
        await writer.write(with_column(1, "b", "x"))
        await writer.write(with_column(2, "a", 2))
        with pytest.raises(SchemaMismatchError, match=r"'a'.*int64.*string"):
            await stream.writer(merge_schema=True).write(
                [with_column(0, "a", 1), with_column(1, "a", "x")]
            )
        commit = await stream.commit_segments(await writer.finish())
        assert [part.schema_version for part in commit.segments] == [1, 2]
        assert stream.schema.names == ["n", "text", "a", "b"]
        rows = [(row["a"], row["b"]) for row in await rows_of(stream)]
        assert rows == [(1, None), (None, "x"), (2, None)]
        await writer.close()

    run(scenario())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_commit_of_new_column_with_lost_answer_is_made_once(outcome: Outcome) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        stream = await another(ledgers, Faults([outcome]))[1].open("s")
        commit = await stream.append(with_column(0, "a", 1), merge_schema=True)
        assert commit.applied and [part.schema_version for part in commit.segments] == [1]
        assert stream.config.schema_version == 1
        assert (await stream.append(with_column(1, "a", 2))).number == 1
        assert [row["a"] for row in await rows_of(stream)] == [1, 2]

    run(scenario())


def test_undecided_commit_whose_column_does_not_fit_any_more_has_an_unknown_outcome() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        rival = await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REQUEST])
        stream = await another(ledgers, faults)[1].open("s")

        async def change() -> None:
            while not faults.count("transaction"):
                await asyncio.sleep(0)
            await rival.merge_schema(SCHEMA.append(pa.field("a", pa.string())))
            await stream.refresh()

        changing = asyncio.ensure_future(change())
        with pytest.raises(OutcomeUnknownError):
            await stream.append(with_column(0, "a", 1), merge_schema=True)
        await changing

    run(scenario())


@pytest.mark.parametrize("outcomes", [[], [Outcome.LOST_REPLY], [Outcome.LOST_REQUEST]])
def test_append_without_rows_adds_its_columns_with_its_commit(outcomes: list[Outcome]) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        stream = await another(ledgers, Faults(outcomes))[1].open("s")
        await stream.append(with_column(0, "a", 1).slice(0, 0), merge_schema=True)
        assert stream.schema.names == ["n", "text", "a"], "known without another read"
        assert (await stream.refresh()).schema.names == ["n", "text", "a"]
        assert (await stream.head()).next_commit == 1

    run(scenario())


@pytest.mark.parametrize(
    "outcomes",
    [[Outcome.LOST_REPLY], [Outcome.LOST_REQUEST], [Outcome.LOST_REQUEST, Outcome.LOST_REPLY]],
)
def test_columns_added_at_once_are_added_once_whatever_is_lost(outcomes: list[Outcome]) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        stream = await another(ledgers, Faults(outcomes))[1].open("s")
        wider = SCHEMA.append(pa.field("a", pa.string()))
        assert (await stream.merge_schema(wider)).names == wider.names
        config = await stream.refresh()
        assert [schema.names for schema in config.schemas] == [SCHEMA.names, wider.names]

    run(scenario())


def test_columns_behind_rows_of_an_older_version_are_added_to_the_newest() -> None:
    """A micro-batch of rows that lack a column of the stream, and then of rows with a new one."""

    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        await stream.append(with_column(0, "a", 7), merge_schema=True)
        writer = stream.writer(merge_schema=True)
        await writer.write(table(1))
        await writer.write(with_column(2, "b", "x"))
        commit = await stream.commit_segments(await writer.finish())
        assert [part.schema_version for part in commit.segments] == [0, 2]
        assert [each.names for each in (await stream.refresh()).schemas] == [
            ["n", "text"],
            ["n", "text", "a"],
            ["n", "text", "a", "b"],
        ]
        rows = [(row["n"], row["a"], row["b"]) for row in await rows_of(stream)]
        assert rows == [(0, 7, None), (1, None, None), (2, None, "x")]
        await writer.close()

    run(scenario())


@pytest.mark.parametrize("of_writer", [False, True])
def test_what_a_write_says_of_new_columns_counts_and_not_what_its_writer_does(
    of_writer: bool,
) -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        writer = stream.writer(merge_schema=of_writer)
        for says in (None, False):
            if says is None and of_writer:
                continue
            with pytest.raises(SchemaMismatchError, match="merge_schema"):
                await writer.write(with_column(0, "more", 1), merge_schema=says)
            writer.abandon()
        await writer.write(with_column(1, "more", 1), merge_schema=None if of_writer else True)
        await stream.commit_segments(await writer.finish())
        assert await rows_of(stream) == [{"n": 1, "text": "row 1", "more": 1}]
        await writer.close()

    run(scenario())


def test_columns_of_segments_are_known_behind_a_lost_reply() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        segments = await written(stream, with_column(0, "more", 1))
        other = await another(ledgers, Faults([Outcome.LOST_REPLY]))[1].open("s")
        assert (await other.commit_segments(segments)).applied
        assert other.schema.names == ["n", "text", "more"]

    run(scenario())


def test_data_that_come_in_parts_bring_their_columns_and_empty_data_only_if_that_is_wanted() -> (
    None
):
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        await stream.append(with_column(0, "typo", 1).slice(0, 0))
        assert (await stream.refresh()).schema.names == ["n", "text"]
        parts = [with_column(0, "a", 1), with_column(1, "b", "x")]
        await stream.append(parts, merge_schema=True)
        rows = [(row["n"], row["a"], row["b"]) for row in await rows_of(stream)]
        assert rows == [(0, 1, None), (1, None, "x")]

    run(scenario())
