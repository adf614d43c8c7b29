"""A metadata server that lags: where an old answer would do harm, the newest is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import pyarrow as pa
import pytest

from spark_ledger.errors import DataLossError, NotFoundError
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Commit, Retention
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import freed, optimize, write, written
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    free_merged,
    loose,
    numbers,
    root_of,
    run,
    small_manifests,
    table,
)


async def behind(ledgers: FakeLedgers, *nodes: str) -> Stream:
    """A handle whose server knows nothing newer of these nodes of the stream, unless it is asked
    for the latest."""
    stream = await another(ledgers)[1].open("s")
    store = stream._nodes.store
    old = {path: await store.get(path) for path in (f"streams/s/{node}" for node in nodes)}
    inner = store.get

    async def get(path: str) -> Versioned[bytes]:
        return old[path] if path in old else await inner(path)

    store.get = get  # type: ignore[method-assign]
    return stream


async def one_by_one(stream: Stream) -> list[Commit]:
    return [await stream.commit(number) for number in range(20)]


async def by_segment(stream: Stream) -> list[Commit]:
    return [await stream.commit_at(number) for number in range(20)]


@pytest.mark.parametrize("look", [one_by_one, by_segment, lambda s: s.commits(0, 20)])
@pytest.mark.parametrize("known", [0, 5])
def test_commits_that_were_sealed_since_are_found(
    look: Callable[[Stream], Awaitable[list[Commit]]], known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = []
        for number in range(20):
            if number == known:
                reader = await behind(ledgers, "manifests")
            commits.append(await stream.commit_segments([loose()]))
            await stream._committer.sealer.close()
        assert root_of(ledgers).sealed == 18 and len(root_of(ledgers).levels) > 2
        await free_merged(ledgers)
        assert await look(reader) == commits

    run(scenario())


def test_rows_that_were_packed_since_are_read_from_their_pack() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await written(ledgers)
        await optimize(stream)
        reader = await behind(ledgers, "packs")
        await write(stream, range(6, 12))
        head = await stream.head()
        ranges = ranges_between(await stream.commits(0, 12), head.earliest, head.end)
        await optimize(stream)
        await freed(stream, ledgers)
        found = [each.batch async for each in reader.read_ranges(ranges)]
        assert [n for batch in found for n in batch.column("n").to_pylist()] == list(range(24))

    run(scenario())


def test_handle_sees_what_it_has_committed() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        stream = await behind(ledgers, "head")
        for number in range(3):
            await stream.append(table(number))
            assert (await stream.head()).next_commit == number + 1
        assert await numbers(stream.read()) == [0, 1, 2]

    run(scenario())


@pytest.mark.parametrize(
    "found",
    [
        lambda stream: numbers(stream.read()),
        lambda stream: numbers(stream.tail("earliest", idle_timeout=0)),
        lambda stream: numbers_up_to(stream, stream.position_at_timestamp(1 << 50)),
        lambda stream: numbers_up_to(stream, stream.position_of_row(3)),
        lambda stream: numbers_up_to(stream, stream.position_of("sink", 3)),
        lambda stream: numbers_since(stream, 2),
    ],
)
def test_what_ends_now_has_all_that_was_acknowledged_before(
    found: Callable[[Stream], Awaitable[list[int]]],
) -> None:
    """By another process, over a server that is ahead of ours."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        stream._committer.clock_ms = count(1_000).__next__
        await stream.append(table(0), sink_id="sink", transaction_id=0)
        reader = await behind(ledgers, "head")
        for number in (1, 2):
            await stream.append(table(number), sink_id="sink", transaction_id=number)
        assert await found(reader) == [0, 1, 2]

    run(scenario())


async def numbers_up_to(stream: Stream, end: Awaitable[Dlsn | None]) -> list[int]:
    position = await end
    return await numbers(stream.read("earliest", "latest" if position is None else position))


async def numbers_since(stream: Stream, number: int) -> list[int]:
    """Those up to a commit that is looked for by its time."""
    found = await stream.first_commit_since((await stream.commit(number)).time_ms)
    assert found is not None
    return await numbers(stream.read("earliest", Dlsn(found.end_segment)))


def test_ledger_that_a_commit_names_while_it_is_given_back_stays() -> None:
    """The second look sees that commit, which the first did not (rule T17)."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = []
        for number in range(3):
            writer = stream.writer()
            await writer.write(table(number))
            commits.append(await stream.commit_segments(await writer.finish()))
            await writer.close()
        await stream.retention.truncate((2,))
        keeper = await behind(ledgers, "head")
        change = keeper._nodes.store.transaction

        async def after_a_commit(operations: Sequence[Operation]) -> None:
            keeper._nodes.store.transaction = change  # type: ignore[method-assign]
            await stream.commit_segments(commits[0].segments)
            await change(operations)

        keeper._nodes.store.transaction = after_a_commit  # type: ignore[method-assign]
        reclaimer = keeper.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        await reclaimer.step(2)
        named = {commits[n].segments[0].ledger_id for n in (0, 2)}
        assert set(ledgers.ledgers) == named
        assert await numbers((await another(ledgers)[1].open("s")).read()) == [2, 0]

    run(scenario())


def test_hold_of_rows_that_were_dropped_since_is_refused_and_withdrawn() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA, retention=Retention(rows=9))
        for _ in range(4):
            await stream.commit_segments([loose()])
        reader = await behind(ledgers, "head")
        await stream.retention.truncate((2,))
        with pytest.raises(DataLossError):
            await reader.retention.hold("slow", (1,), for_s=60)
        assert await stream.retention.holds() == []

    run(scenario())


def test_columns_that_a_task_has_seen_are_no_lost_ones_because_the_driver_does_not_know_them() -> (
    None
):
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        driver = await behind(ledgers, "config")
        await stream.merge_schema(pa.schema({"more": pa.int64()}))
        writer = stream.writer()
        await writer.write(table(1).append_column("more", pa.array([7])))
        (segment,) = await writer.finish()
        await writer.close()
        commit = await driver.commit_segments([segment])
        assert commit.segments[0].schema_version == 1

    run(scenario())


def test_commit_of_a_plan_is_found_by_a_server_that_does_not_know_it_yet() -> None:
    """As in a task: it asks no head, and its server is caught up by the look for manifests."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.append(table(0))
        reader = await (another(ledgers)[1]).open("s")
        store = reader._nodes.store
        inner, latest = store.get, store.get_latest
        known = set(ledgers.store.tree._nodes)

        async def get(path: str) -> Versioned[bytes]:
            if known and path not in known:
                raise NotFoundError(f"metadata node {path} does not exist")
            return await inner(path)

        async def get_latest(path: str) -> Versioned[bytes]:
            known.clear()
            return await latest(path)

        store.get, store.get_latest = get, get_latest  # type: ignore[method-assign]
        expected = [*await stream.commits(0, 1), await stream.append(table(1))]
        assert await reader.commits(0, 2) == expected
        assert await reader.commit(1) == expected[1]

    run(scenario())
