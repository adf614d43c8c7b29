"""The handle of a stream: append, read, follow, positions, columns, time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    DataLossError,
    FencedError,
    NoSuchStreamError,
    SchemaMismatchError,
)
from spark_ledger.limits import KIB
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.positions import parse_position
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeWriter
from tests.unit.spark_ledger.stream.world import SCHEMA, another, loose, numbers, run, table


async def new(ledgers: FakeLedgers | None = None) -> Stream:
    return await StreamCatalog(ledgers or FakeLedgers()).create("s", SCHEMA)


def test_append_and_read_back() -> None:
    async def scenario() -> None:
        stream = await new()
        commit = await stream.append(table(0, 3), sink_id="job-1", transaction_id=7)
        assert (commit.number, commit.rows, commit.applied, len(commit.segments)) == (0, 3, True, 1)
        again = await stream.append(table(50, 9), sink_id="job-1", transaction_id=7)
        assert (again, again.applied) == (commit, False)
        await stream.append([table(3, 1), table(4, 1).to_batches()[0]])
        await stream.append(table(5, 1).to_batches()[0])
        assert await numbers(stream.read()) == [0, 1, 2, 3, 4, 5]
        head = await stream.head()
        assert (head.rows, head.next_commit, head.end) == (6, 3, Dlsn(3))
        await stream.close()

    run(scenario())


def test_configuration_that_did_not_change_is_decoded_once() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        first = await stream.refresh()
        assert await stream.refresh() is first
        other = await another(ledgers)[1].open("s")
        await other.merge_schema(SCHEMA.append(pa.field("later", pa.int64())))
        second = await stream.refresh()
        assert second.schema.names == [*SCHEMA.names, "later"]
        assert await stream.refresh() is second
        await stream.commit_segments([loose()])

    run(scenario())


@pytest.mark.parametrize("wrong", ["1", 1.0, True, 2**63, -(2**63) - 1])
def test_transaction_ids_are_whole_numbers(wrong: Any) -> None:
    async def scenario() -> None:
        stream = await new()
        for use in (
            stream.append(table(0, 1), sink_id="j", transaction_id=wrong),
            stream.commit_segments([], sink_id="j", transaction_id=wrong),
        ):
            with pytest.raises(ConfigurationError, match="transaction id"):
                await use
        assert (await stream.head()).next_commit == 0
        await stream.close()

    run(scenario())


def test_a_repetition_is_found_before_its_data_are_written() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        await stream.append(table(0, 3), sink_id="job", transaction_id=1)
        before = ledgers.appends
        await stream.append(table(0, 3), sink_id="job", transaction_id=1)
        assert ledgers.appends == before
        with pytest.raises(ConflictError, match="sinkId"):
            await stream.append(table(0, 3), sink_id="job", transaction_id=0)

    run(scenario())


def test_an_empty_append_is_a_commit_without_rows() -> None:
    async def scenario() -> None:
        stream = await new()
        commit = await stream.append(table(0, 0), sink_id="job", transaction_id=1)
        assert (commit.rows, commit.segments, commit.applied) == (0, (), True)
        assert await numbers(stream.read()) == []

    run(scenario())


def test_concurrent_appends_are_whole_and_share_one_ledger() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        commits = await asyncio.gather(
            *(
                stream.append(table(100 * n, 50), sink_id="j", transaction_id=0)
                if n == 0
                else stream.append(table(100 * n, 50))
                for n in range(8)
            )
        )
        assert sorted(commit.number for commit in commits) == list(range(8))
        assert len(ledgers.ledgers) == 1
        found = await numbers(stream.read())
        runs = [found[start : start + 50] for start in range(0, 400, 50)]
        assert sorted(runs) == [list(range(100 * n, 100 * n + 50)) for n in range(8)]

    run(scenario())


def test_slow_data_do_not_hold_up_other_appends() -> None:
    async def scenario() -> None:
        stream = await new()
        go_on = asyncio.Event()

        async def slowly() -> Any:
            yield table(0)
            await go_on.wait()
            yield table(1)

        slow = asyncio.ensure_future(stream.append(slowly()))
        await asyncio.sleep(0.01)
        await stream.append(table(9))
        assert not slow.done()
        go_on.set()
        assert (await slow).rows == 2
        assert await numbers(stream.read()) == [9, 0, 1]
        for n in range(4):
            await stream.append([table(n)])
        await stream.close()

    run(scenario())


def test_a_failed_append_commits_nothing_and_can_be_repeated() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        ledgers.append_error, ledgers.fail_append_at = FencedError("taken"), 1
        with pytest.raises(FencedError):
            await stream.append(table(0, 3), sink_id="j", transaction_id=1)
        assert await numbers(stream.read()) == []
        assert (await stream.append(table(0, 3), sink_id="j", transaction_id=1)).applied
        assert await numbers(stream.read()) == [0, 1, 2]

    run(scenario())


def test_a_schema_that_does_not_fit_names_the_field_and_merging_adds_it() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        extra = table(0, 1).append_column("price", pa.array([1.5]))
        with pytest.raises(SchemaMismatchError, match=r"'price'.*double.*merge_schema"):
            await stream.append(extra)
        with pytest.raises(SchemaMismatchError, match=r"'text'.*missing"):
            await stream.check_schema(SCHEMA.remove(1))
        await stream.append(extra, merge_schema=True)
        await stream.append(table(1, 1).select(["n"]), merge_schema=True)
        assert stream.schema.names == ["n", "text", "price"]
        rows = [row async for batch in stream.read() for row in batch.to_pylist()]
        assert rows == [
            {"n": 0, "text": "row 0", "price": 1.5},
            {"n": 1, "text": None, "price": None},
        ]
        other = await another(ledgers)[1].open("s")
        assert other.schema.equals(stream.schema)

    run(scenario())


def test_two_writers_that_merge_at_once_agree() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        first = await new(ledgers)
        second = await another(ledgers)[1].open("s")
        await asyncio.gather(
            first.append(table(0).append_column("a", pa.array([1])), merge_schema=True),
            second.append(table(1).append_column("b", pa.array(["x"])), merge_schema=True),
        )
        assert sorted((await first.refresh()).schema.names) == ["a", "b", "n", "text"]
        rows = {
            row["n"]: (row["a"], row["b"])
            async for batch in first.read(schema=first.schema)
            for row in batch.to_pylist()
        }
        assert rows == {0: (1, None), 1: (None, "x")}

    run(scenario())


def test_overwrite_hides_all_rows_before_it_at_once() -> None:
    async def scenario() -> None:
        stream = await new()
        await stream.append(table(0, 3))
        await stream.append(table(10, 2), overwrite=True, sink_id="j", transaction_id=1)
        assert await numbers(stream.read()) == [10, 11]
        with pytest.raises(DataLossError, match=r"\(1, 0, 0\)"):
            await numbers(stream.read(Dlsn(0)))
        assert await numbers(stream.read(Dlsn(0), Dlsn(0))) == []
        assert await stream.position_at_timestamp(0) == Dlsn(1)
        await stream.append([], overwrite=True)
        assert await numbers(stream.read()) == []
        head = await stream.head()
        assert head.earliest == head.end

    run(scenario())


def test_columns_pick_from_the_newest_schema() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        early = await another(ledgers)[1].open("s")
        await stream.append(table(0, 1).append_column("price", pa.array([1.5])), merge_schema=True)
        batches = [batch async for batch in early.read(columns=["price", "n"])]
        assert batches[0].to_pylist() == [{"price": 1.5, "n": 0}]
        with pytest.raises(ConfigurationError, match="no column 'nope'; it has n, text, price"):
            await numbers(early.read(columns=["nope"]))
        with pytest.raises(ConfigurationError, match="not both"):
            await numbers(early.read(columns=["n"], schema=SCHEMA))

    run(scenario())


@pytest.mark.parametrize("position", ["now", 5, (), (1, 2, 3, 4), (-1,), (1.0,), (True,), None])
def test_invalid_positions_are_refused(position: Any) -> None:
    with pytest.raises(ConfigurationError, match="position"):
        parse_position(position)
    assert parse_position((3,)) == Dlsn(3, 0, 0)


def test_a_position_behind_the_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ledger.stream.stream.STALE_READ_DELAY_S", 0.001)

    async def scenario() -> None:
        stream = await new()
        await stream.append(table(0, 3))
        for start, end in ((Dlsn(2), "latest"), (Dlsn(1, 0, 1), "latest"), ("earliest", Dlsn(5))):
            with pytest.raises(ConfigurationError, match=r"behind the end.*; the stream may have"):
                await numbers(stream.read(start, end))
        assert await numbers(stream.read(Dlsn(1))) == []
        assert await numbers(stream.read("latest", "earliest")) == []

    run(scenario())


def test_position_ahead_of_our_metadata_server_is_waited_for() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        reading = asyncio.ensure_future(numbers(stream.read(Dlsn(0), Dlsn(1))))
        await asyncio.sleep(0.01)
        await (await another(ledgers)[1].open("s")).append(table(0, 2))
        assert await reading == [0, 1]

    run(scenario())


def test_read_and_look_up_behind_a_late_watch_see_what_others_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handle that follows the head has the last one; word of the next is on its way."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        reader = await another(ledgers)[1].open("s")
        monkeypatch.setattr(reader._watch, "invalidate", lambda: None)
        await stream.append(table(0, 2), sink_id="q", transaction_id=1)
        assert (await reader.wait_for_commit(after_segment=0, timeout_s=0)).rows == 2
        await stream.append(table(2))
        assert (await reader.head()).rows == 2, "it knows no newer one"
        assert await numbers(reader.read()) == [0, 1, 2]
        assert await numbers(reader.read("earliest", Dlsn(2))) == [0, 1, 2]
        await stream.append(table(3), overwrite=True)
        assert await reader.position_of("q", 1) == Dlsn(2), "the first row that is left"
        await reader.close()

    run(scenario())


def test_tail_delivers_what_comes_and_ends_when_idle() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        await stream.append(table(0, 2))
        reader = await another(ledgers)[1].open("s")

        async def produce() -> None:
            for n in range(2, 8):
                await stream.append(table(n))
                await asyncio.sleep(0.005)

        found, from_now, _ = await asyncio.gather(
            numbers(reader.tail("earliest", idle_timeout=0.3)),
            numbers((await another(ledgers)[1].open("s")).tail(idle_timeout=0.3)),
            produce(),
        )
        assert found == list(range(8))
        assert from_now == list(range(2, 8))
        await reader.close()

    run(scenario())


def test_tail_fails_when_the_stream_is_deleted_and_when_it_falls_behind_truncation() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        follower = asyncio.ensure_future(numbers((await another(ledgers)[1].open("s")).tail()))
        await asyncio.sleep(0.01)
        await StreamCatalog(ledgers).delete("s")
        with pytest.raises(NoSuchStreamError):
            await follower
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.append(table(0))
        batches = (await another(ledgers)[1].open("s")).tail("earliest")
        assert (await anext(batches)).num_rows == 1
        await stream.append(table(1))
        await stream.append(table(2), overwrite=True)
        with pytest.raises(DataLossError, match="truncated"):
            await anext(batches)

    run(scenario())


def test_time_finds_the_first_row_committed_since() -> None:
    async def scenario() -> None:
        stream = await new()
        clock = [1000]
        stream._committer.clock_ms = lambda: clock[0]
        for n, clock[0] in enumerate((1000, 1500, 1500, 2000)):
            await stream.append(table(n))
        expected = {0: 0, 1000: 0, 1001: 1, 1500: 1, 1501: 3, 2000: 3, 2001: 4, 1 << 50: 4}
        for time_ms, segment in expected.items():
            assert await stream.position_at_timestamp(time_ms) == Dlsn(segment)
        commit = await stream.first_commit_since(1200)
        assert commit is not None
        assert commit.number == 1

    run(scenario())


def test_concurrent_appends_do_not_mix_their_rows() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA, entry_bytes=KIB)
        firsts = [1000 * n for n in range(6)]
        commits = await asyncio.gather(*(stream.append(table(first, 300)) for first in firsts))
        assert [commit.rows for commit in commits] == [300] * 6
        for first, commit in zip(firsts, commits, strict=True):
            rows = await numbers(
                stream.read((commit.first_segment,), (commit.end_segment,))  # only this commit's
            )
            assert rows == list(range(first, first + 300))
        await stream.close()

    run(scenario())


def test_segments_of_a_schema_that_another_process_added_are_committed() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        driver = await StreamCatalog(ledgers).create("s", SCHEMA)
        task = await another(ledgers)[1].open("s")
        writer = task.writer(merge_schema=True)
        await writer.write(pa.table({"n": [1], "text": ["x"], "more": [2.5]}))
        (segment,) = await writer.finish()
        assert segment.schema_version == 1
        assert driver.config.schema_version == 0, "it has not heard of it"
        commit = await driver.commit_segments([loose(), segment])
        assert [part.schema_version for part in commit.segments] == [0, 1]
        await writer.close()

    run(scenario())


def test_append_that_was_cancelled_leaves_no_row_for_the_next() -> None:
    """Its caller's patience ended while it waited for room (``asyncio.wait_for``)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        await stream.append(table(0))
        wait_for_room, room = FakeWriter.wait_for_room, asyncio.Event()

        async def full(self: FakeWriter) -> None:
            await room.wait()
            await wait_for_room(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeWriter, "wait_for_room", full)
            leaving = asyncio.ensure_future(stream.append(table(10, 3)))
            behind = asyncio.ensure_future(stream.append(table(20)))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(leaving, 0.01)
            room.set()
            await behind
        await stream.append(table(30))
        assert await numbers(stream.read()) == [0, 20, 30]

    run(scenario())


def test_append_is_pushed_while_one_before_it_waits_for_confirmation() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await new(ledgers)
        appends = [asyncio.ensure_future(stream.append(table(n))) for n in range(3)]
        async with asyncio.timeout(5):
            while ledgers.appends < 3:
                await asyncio.sleep(0)
        appends[1].cancel()
        ledgers.writers[0].deliver()
        await appends[0]
        await appends[2]
        assert sorted(await numbers(stream.read())) == [0, 2]

    run(scenario())


def test_appends_of_data_to_come_do_not_mix_their_rows() -> None:
    """Each has a writer of its own, also when there is one to spare."""

    async def scenario() -> None:
        stream = await new()
        go_on = asyncio.Event()

        async def rows(first: int) -> AsyncIterator[pa.Table]:
            yield table(first)
            await go_on.wait()
            yield table(first + 1)

        go_on.set()
        await stream.append(rows(0))
        go_on.clear()
        both = [asyncio.ensure_future(stream.append(rows(n))) for n in (10, 20)]
        await asyncio.sleep(0.01)
        go_on.set()
        commits = await asyncio.gather(*both)
        assert [commit.rows for commit in commits] == [2, 2]
        for first, commit in zip((10, 20), commits, strict=True):
            start = Dlsn(commit.first_segment)
            found = await numbers(stream.read(start, Dlsn(commit.end_segment)))
            assert found == [first, first + 1]

    run(scenario())


def test_time_is_found_around_commits_of_clocks_that_were_far_ahead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    year, hour = 365 * 86_400_000, 3_600_000

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        now = [0]
        stream._committer.clock_ms = lambda: now[0]
        clocks = [1, 2, 2 + year, 3, 4, 4 + year, 5 + year, 5, 6]
        for n, clock in enumerate(clocks):
            now[0] = clock * 1 if clock >= year else clock * hour
            await stream.commit_segments([loose(ledger_id=n + 1)])
        times = [commit.time_ms for commit in await stream.commits(0, len(clocks))]
        assert times[3] == 3 * hour and times[8] == 6 * hour, "the year is over at once"
        assert (await stream.head()).time_resets == (3, 7)
        for hours, expected in {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 5, 6: 8}.items():
            found = await stream.first_commit_since(hours * hour)
            assert found is not None
            assert found.number == expected, hours
        assert await stream.first_commit_since(7 * hour) is None

    run(scenario())
    assert "ahead of this clock" in caplog.text
