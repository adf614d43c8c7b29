"""Commits in nodes and in manifests, over every metadata store: each is found, whoever wrote it.

Also those of streams of the former format, whose buckets have summaries: they are read, and moved
into manifests, and the program that made them refuses them then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.metadata.base import Create, MetadataStore, Operation
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.memory import MemoryTree
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_nodes import UNSEALED_IN_BUCKET_MANY
from spark_ledger.stream.commit.commit_rules import Apply, Proposal, decide
from spark_ledger.stream.commit.sealer import COMMITS_KEPT_AS_NODES, SEAL_EVERY
from spark_ledger.stream.format import codec
from spark_ledger.stream.manifest.format import _encode as encode_summary
from spark_ledger.stream.manifest.tree import COMMITS_PER_LEAF
from spark_ledger.stream.model import Commit
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, loose, table

Open = Callable[[], Awaitable["Session"]]
Scenario = Callable[[Open], Awaitable[None]]
Run = Callable[[Scenario], None]


class Session:
    """A metadata session that counts its reads, with a stream's handle to use it."""

    def __init__(self, store: MetadataStore, shared: FakeLedgers) -> None:
        self.store = store
        self.gets: list[str] = []
        self.ledgers = FakeLedgers(self)  # type: ignore[arg-type]
        self.ledgers.ledgers, self.ledgers.writers = shared.ledgers, shared.writers
        self.streams = StreamCatalog(self.ledgers)
        self.nodes = StreamNodes(store, "s")

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

    async def numbers(self) -> list[int]:
        """The numbers of the commits that have nodes."""
        found = []
        for bucket in await self.store.children(self.nodes.commits_path):
            found += await self.store.children(f"{self.nodes.commits_path}/{bucket}")
        return [int(number) for number in found]


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.processes)])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a scenario with a function that opens sessions of one store, and closes them."""
    uri = request.getfixturevalue("metadata_uri") if request.param == "zookeeper" else ""
    tree = MemoryTree()

    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            opened: list[Session] = []
            shared = FakeLedgers()

            async def open_session() -> Session:
                store = await open_store(uri) if uri else tree.open_session()
                opened.append(Session(store, shared))
                return opened[-1]

            try:
                async with asyncio.timeout(60):
                    await scenario(open_session)
            finally:
                await asyncio.gather(*(session.store.close() for session in opened))

        asyncio.run(main())

    return run_scenario


async def former(session: Session, count: int, summarized: int = 0) -> list[Commit]:
    """A stream as a program wrote it that knew no manifests: nodes, and summaries of buckets."""
    await session.streams.create("s", SCHEMA)
    nodes = session.nodes
    config, versioned = await nodes.config(), await nodes.head()
    before = codec.encode_config(replace(config.value, has_manifests=False))
    await session.store.put(nodes.config_path, before, config.version)
    await session.store.delete(nodes.manifests_path)
    head, commits = versioned.value, []
    operations: list[Operation] = []
    data: list[bytes] = []
    for number in range(count):
        entries = [1 + number % 3] * (1 + number % 2)
        proposal = Proposal((loose(*entries),), sink_id="old", transaction_id=number, run_id="r")
        applied = decide(head, None, proposal, now_ms=number, stream_name="s")
        assert isinstance(applied, Apply)
        head = applied.head
        commits.append(applied.commit)
        data.append(codec.encode_commit(applied.commit))
    for first in range(0, count, COMMITS_PER_BUCKET):
        rows = data[first : min(first + COMMITS_PER_BUCKET, summarized)]
        operations.append(Create(nodes.bucket_path(first), summary_of(head.stream_id, first, rows)))
    operations += [Create(nodes.commit_path(n), node) for n, node in enumerate(data)]
    for start in range(0, len(operations), 500):
        await session.store.transaction(operations[start : start + 500])
    await session.store.put(nodes.head_path, codec.encode_head(head), versioned.version)
    return commits


def summary_of(stream_id: str, first: int, rows: Sequence[bytes]) -> bytes:
    return encode_summary(stream_id, 0, first, len(rows), b"\n".join(rows)) if rows else b""


def test_former_stream_is_read_with_and_without_its_summaries(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        first = await open_session()
        count = 2 * COMMITS_PER_BUCKET + 217
        expected = await former(first, count, summarized=count - 17)
        assert await first.commits() == expected
        assert len(first.gets) < 40, "three summaries, 17 commits, head, root and configuration"
        path = first.nodes.bucket_path_of(1)
        node = await first.store.get(path)
        rows = node.value
        for damaged in (b"", rows[:-9] + b"123456789", b"something else", rows[:-1]):
            version = (await first.store.get(path)).version
            await first.store.put(path, damaged, version)
            second = await open_session()
            assert await second.commits() == expected
            assert len(second.gets) > COMMITS_PER_BUCKET, "one by one, as nothing else is there"

    run(scenario)


def test_commit_left_out_of_a_summary_is_read_singly(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        session = await open_session()
        count = UNSEALED_IN_BUCKET_MANY + 5
        expected = await former(session, count)
        stream_id = (await session.stream()).config.stream_id
        rows = [codec.encode_commit(commit) for commit in expected]
        rows[3] = rows[7] = rows[-1] = b""
        path = session.nodes.bucket_path_of(0)
        node = await session.store.get(path)
        await session.store.put(path, summary_of(stream_id, 0, rows), node.version)
        reader = await open_session()
        assert await reader.commits() == expected
        singly = {got.rpartition("/")[2] for got in reader.gets if "commits/0000000/" in got}
        assert {f"{number:010d}" for number in (3, 7, count - 1)} <= singly
        assert len(singly) <= 6

    run(scenario)


def test_former_stream_is_moved_into_manifests_by_the_commits_that_follow(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        session, late = await open_session(), await open_session()
        count = COMMITS_PER_BUCKET + 130
        expected = await former(session, count, summarized=count)
        old_handle = await late.stream()
        assert await old_handle.commit(0) == expected[0]
        stream = await session.stream()
        while len(await session.numbers()) > COMMITS_KEPT_AS_NODES + COMMITS_PER_LEAF:
            expected.append(await stream.commit_segments([loose(2)]))
            await stream._committer.sealer.close()
            assert len(expected) < count + 5 * SEAL_EVERY, "it never ends"
        assert await session.store.children(session.nodes.commits_path) == ["0000001"]
        reader = await open_session()
        assert await reader.commits() == expected
        assert await old_handle.commits(0, len(expected)) == expected
        assert (await old_handle.append(table(1))).number == len(expected), "it goes on as well"

    run(scenario)


def test_program_that_knows_no_manifests_refuses_the_stream_with_a_sentence(run: Run) -> None:
    """Such a program decodes the configuration with 1 as the newest version, before anything that
    it does, and its commits check the configuration's version (rule T13)."""

    async def scenario(open_session: Open) -> None:
        session = await open_session()
        await former(session, SEAL_EVERY - 1)
        before = await session.nodes.config()
        node = await session.store.get(session.nodes.config_path)
        codec.decode_node(node.value, codec._ConfigNode, "p")
        stream = await session.stream()
        await stream.commit_segments([loose(2)])
        await stream.close()
        after = await session.nodes.config()
        assert after.version == before.version + 1, "a commit of the former program is refused"
        node = await session.store.get(session.nodes.config_path)
        with pytest.raises(CorruptionError, match="version 2, but this program knows only 1; use"):
            codec.decode_node(node.value, codec._ConfigNode, "p")

    run(scenario)


def test_committers_and_readers_race_over_what_is_sealed(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        sessions = [await open_session() for _ in range(3)]
        before = await former(sessions[0], COMMITS_PER_BUCKET - 60)
        goal = COMMITS_PER_BUCKET + 60
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
            await stream._committer.sealer.close()

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
        assert len(await last.numbers()) < len(expected) - COMMITS_PER_LEAF, f"seed {seed}"

    run(scenario)


def test_former_stream_and_one_with_manifests_are_deleted_and_made_again(run: Run) -> None:
    async def scenario(open_session: Open) -> None:
        session = await open_session()
        await former(session, 2 * SEAL_EVERY)
        await session.streams.delete("s")
        assert await session.store.children("streams/s") == []
        stream = await session.streams.create("s", SCHEMA)
        for n in range(COMMITS_PER_LEAF + COMMITS_KEPT_AS_NODES + 3):
            await stream.append(table(n))
        assert len(await session.numbers()) == COMMITS_KEPT_AS_NODES + 3
        await stream.close()
        await session.streams.delete("s")
        assert await session.store.children("streams") == []
        assert session.ledgers.ledgers == {}
        expected = await former(session, 3)
        assert await (await open_session()).commits() == expected

    run(scenario)
