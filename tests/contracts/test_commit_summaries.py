"""Commits read through summaries, over every metadata store: never wrong, whatever is missing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.metadata.base import Create, MetadataStore, Operation
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.memory import MemoryTree
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.commit.commit_rules import Apply, Proposal, decide
from spark_ledger.stream.commit.summary_format import decode_summary, encode_summary
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Commit
from spark_ledger.stream.nodes import (
    COMMITS_PER_BUCKET,
    COMMITS_PER_SUMMARY_STEP,
    StreamNodes,
)
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, loose

STEP = COMMITS_PER_SUMMARY_STEP
Open = Callable[[], Awaitable["Session"]]
Scenario = Callable[[Open], Awaitable[None]]
Run = Callable[[Scenario], None]


class Session:
    """A metadata session that counts its reads, with a stream's handle to use it."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.gets: list[str] = []
        self.ledgers = FakeLedgers(self)  # type: ignore[arg-type]
        self.streams = StreamCatalog(self.ledgers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def get(self, path: str) -> Any:
        self.gets.append(path)
        return await self.store.get(path)

    async def stream(self) -> Stream:
        return await self.streams.open("s")

    async def commits(self) -> list[Commit]:
        """All commits, read by a new handle."""
        stream = await self.stream()
        return await stream.commits_between(0, (await stream.head()).next_segment)

    async def summary(self, bucket: int) -> int:
        """How many commits the summary of a bucket has."""
        nodes = StreamNodes(self.store, "s")
        node = await self.store.get(nodes.bucket_path_of(bucket))
        if not node.value:
            return 0
        stream_id = (await nodes.config()).value.stream_id
        first = bucket * COMMITS_PER_BUCKET
        return len(decode_summary(node.value, stream_id, first, "here"))


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.processes)])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario with a function that opens sessions of one store, and closes them."""
    uri = request.getfixturevalue("metadata_uri") if request.param == "zookeeper" else ""
    tree = MemoryTree()

    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            opened: list[Session] = []

            async def open_session() -> Session:
                opened.append(Session(await open_store(uri) if uri else tree.open_session()))
                return opened[-1]

            try:
                async with asyncio.timeout(60):
                    await scenario(open_session)
            finally:
                await asyncio.gather(*(session.store.close() for session in opened))

        asyncio.run(main())

    return run_scenario


async def build(session: Session, count: int) -> list[Commit]:
    """A stream with so many commits, written by a program that knows no summaries."""
    await session.streams.create("s", SCHEMA)
    nodes = StreamNodes(session.store, "s")
    versioned = await nodes.head()
    head, commits = versioned.value, []
    operations: list[Operation] = []
    for number in range(count):
        if number % COMMITS_PER_BUCKET == 0:
            operations.append(Create(nodes.bucket_path(number), b""))
        entries = [1 + number % 3] * (1 + number % 2)
        proposal = Proposal((loose(*entries),), sink_id="old", transaction_id=number, run_id="r")
        applied = decide(head, None, proposal, now_ms=number, stream_name="s")
        assert isinstance(applied, Apply)
        head = applied.head
        commits.append(applied.commit)
        operations.append(Create(nodes.commit_path(number), codec.encode_commit(applied.commit)))
    for start in range(0, len(operations), 500):
        await session.store.transaction(operations[start : start + 500])
    await session.store.put(nodes.head_path, codec.encode_head(head), versioned.version)
    return commits


def test_a_reader_makes_the_summaries_that_are_missing(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        first, second = await open_session(), await open_session()
        count = 2 * COMMITS_PER_BUCKET + 2 * STEP + 17
        expected = await build(first, count)
        assert await first.commits() == expected
        assert len(first.gets) > count, "one by one, as nothing else is there"
        assert [await first.summary(bucket) for bucket in range(3)] == [
            COMMITS_PER_BUCKET,
            COMMITS_PER_BUCKET,
            2 * STEP,
        ]
        assert await second.commits() == expected
        assert len(second.gets) < 40, "three summaries, 17 commits, head and configuration"

    run(scenario)


def test_committers_extend_the_summary_step_by_step(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        session, other = await open_session(), await open_session()
        stream = await session.streams.create("s", SCHEMA)
        for number in range(3 * STEP - 1):
            await stream.commit_segments([loose(2)], sink_id="q", transaction_id=number)
            assert await other.summary(0) == (number + 1) // STEP * STEP
        last = await (await other.stream()).commit_segments([loose()])
        assert await session.summary(0) == 3 * STEP, "also by one who made only the last of them"
        expected = [await stream.commit(number) for number in range(3 * STEP)]
        assert expected[-1] == last
        other.gets.clear()
        assert await other.commits() == expected
        assert len(other.gets) < 10

    run(scenario)


@pytest.mark.parametrize("what", ["emptied", "damaged", "half", "another stream's", "no summary"])
def test_a_summary_that_cannot_be_used_is_done_without_and_replaced(run: Run, what: str) -> None:
    async def scenario(open_session: Open) -> None:
        session = await open_session()
        expected = await build(session, COMMITS_PER_BUCKET + 5)
        assert await session.commits() == expected
        path = StreamNodes(session.store, "s").bucket_path_of(0)
        node = await session.store.get(path)
        stream_id = (await session.stream()).config.stream_id
        rows = decode_summary(node.value, stream_id, 0, path)
        data = {
            "emptied": b"",
            "damaged": node.value[:-9] + b"123456789",
            "half": encode_summary(stream_id, 0, rows[: COMMITS_PER_BUCKET // 2]),
            "another stream's": encode_summary("0" * 32, 0, rows[::-1]),
            "no summary": b"something else",
        }[what]
        await session.store.put(path, data, node.version)
        reader = await open_session()
        assert await reader.commits() == expected
        assert len(reader.gets) >= COMMITS_PER_BUCKET // 2
        assert (await reader.store.get(path)).value == node.value, "it is repaired"
        last = await open_session()
        assert await last.commits() == expected
        assert len(last.gets) < 20

    run(scenario)


def test_commits_left_out_of_a_summary_are_read_singly(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        session = await open_session()
        expected = await build(session, 2 * STEP)
        assert await session.commits() == expected
        path = StreamNodes(session.store, "s").bucket_path_of(0)
        node = await session.store.get(path)
        stream_id = (await session.stream()).config.stream_id
        rows = list(decode_summary(node.value, stream_id, 0, path))
        rows[3] = rows[7] = rows[-1] = b""
        rows[11] = b'{"v":1}'
        await session.store.put(path, encode_summary(stream_id, 0, rows), node.version)
        reader = await open_session()
        assert await reader.commits() == expected
        singly = {
            gotten.rpartition("/")[2] for gotten in reader.gets if "commits/0000000/" in gotten
        }
        assert {f"{number:010d}" for number in (3, 7, 11, 2 * STEP - 1)} <= singly
        assert len(singly) <= 6

    run(scenario)


def test_two_who_extend_at_once_leave_one_right_summary(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        sessions = [await open_session() for _ in range(4)]
        expected = await build(sessions[0], COMMITS_PER_BUCKET + STEP)
        found = await asyncio.gather(*(session.commits() for session in sessions))
        assert found == [expected] * 4
        assert await sessions[0].summary(0) == COMMITS_PER_BUCKET
        assert await sessions[0].summary(1) == STEP
        nodes = StreamNodes(sessions[0].store, "s")
        versions = [(await nodes.store.get(nodes.bucket_path_of(n))).version for n in (0, 1)]
        assert versions == [1, 1], "each was written once"
        last = await open_session()
        assert await last.commits() == expected

    run(scenario)


def test_committers_race_over_the_border_of_a_bucket_and_readers_look_on(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        sessions = [await open_session() for _ in range(3)]
        before = await build(sessions[0], COMMITS_PER_BUCKET - 2 * STEP - 3)
        goal = COMMITS_PER_BUCKET + STEP + 3
        made: list[Commit] = []

        async def write(session: Session, sink_id: str) -> None:
            stream = await session.stream()
            transaction_id = 0
            while (await stream.head()).next_commit < goal:
                segments = [loose(2)] * rng.choice([0, 1, 1, 3])
                transaction_id += 1
                made.append(
                    await stream.commit_segments(
                        segments, sink_id=sink_id, transaction_id=transaction_id
                    )
                )

        async def look(session: Session) -> None:
            stream = await session.stream()
            end = 0
            while end < goal:
                head = await stream.head()
                end = head.next_commit
                first = rng.randrange(end)
                some = await (await session.stream()).commits(first, end)
                assert [commit.number for commit in some] == list(range(first, end)), seed
                assert some[-1].end_segment == head.next_segment, f"seed {seed}"

        await asyncio.gather(write(sessions[0], "a"), write(sessions[1], "b"), look(sessions[2]))
        expected = before + sorted(made, key=lambda commit: commit.number)
        assert [commit.number for commit in expected] == list(range(len(expected)))
        last = await open_session()
        assert await (await last.stream()).commits(0, len(expected)) == expected, f"seed {seed}"
        assert await last.summary(0) == COMMITS_PER_BUCKET, f"seed {seed}"
        assert await last.summary(1) == STEP, f"seed {seed}"

    run(scenario)


def test_streams_with_summaries_are_deleted_and_made_anew(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        session, late = await open_session(), await open_session()
        await build(session, 2 * STEP)
        stale = CommitLog(
            late.ledgers, StreamNodes(late, "s"), (await late.stream()).config.stream_id
        )
        await stale.range(0, 2 * STEP)
        await session.streams.delete("s")
        assert await session.store.children("streams/s") == []
        expected = await build(session, 2 * STEP + 1)
        old = StreamNodes(session.store, "s")
        node = await session.store.get(old.bucket_path_of(0))
        summary = stale._summary_store.kept(0)
        assert summary is not None
        await stale._summary_store.extend(0, summary._replace(version=node.version), [])
        assert (await session.store.get(old.bucket_path_of(0))).value, "a late one came through"
        reader = await open_session()
        assert await reader.commits() == expected, "but nobody believes it"
        assert await reader.summary(0) == 2 * STEP

    run(scenario)
