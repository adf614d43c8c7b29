"""Looking commits up: right for every segment and time, with few reads and no listing."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    DataLossError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import commit_log
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.model import Commit
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


async def build(ledgers: FakeLedgers, shape: list[tuple[int, int]]) -> tuple[Stream, list[Commit]]:
    """A stream with a commit of so many segments, so many ms after the one before."""
    stream = await StreamCatalog(ledgers).create("s", SCHEMA)
    clock = Clock()
    stream._committer.clock_ms = clock
    commits = []
    for segments, later_ms in shape:
        clock.now_ms += later_ms
        commits.append(await stream.commit_segments([loose(2)] * segments))
    return stream, commits


async def fresh(ledgers: FakeLedgers) -> tuple[Stream, Faults]:
    faults = Faults([])
    stream = await another(ledgers, faults)[1].open("s")
    return stream, faults


def test_commits_are_found_by_segment_and_by_time() -> None:
    async def scenario() -> None:
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        ledgers = FakeLedgers()
        shape = [(rng.choice([0, 0, 1, 1, 1, 5]), rng.choice([0, 0, 1, 50])) for _ in range(60)]
        _, commits = await build(ledgers, shape)
        total = commits[-1].end_segment
        for segment in range(total):
            stream, _ = await fresh(ledgers)
            found = await stream.commit_at(segment)
            assert found.first_segment <= segment < found.end_segment, f"seed {seed}"
        for time_ms in range(990, commits[-1].time_ms + 3):
            stream, _ = await fresh(ledgers)
            expected = next((c for c in commits if c.time_ms >= time_ms), None)
            assert await stream.first_commit_since(time_ms) == expected, f"seed {seed}"
            position = await stream.position_at_timestamp(time_ms)
            assert position.segment == (expected.first_segment if expected else total)

    run(scenario())


def test_between_returns_exactly_the_commits_of_the_segments() -> None:
    async def scenario() -> None:
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        ledgers = FakeLedgers()
        _, commits = await build(ledgers, [(rng.choice([0, 1, 3]), 1) for _ in range(50)])
        total = commits[-1].end_segment
        for _ in range(60):
            first, end = sorted((rng.randint(0, total), rng.randint(0, total)))
            stream, _ = await fresh(ledgers)
            expected = [
                c for c in commits if c.segments and c.first_segment < end and c.end_segment > first
            ]
            assert await stream.commits_between(first, end) == (expected if first < end else [])
            if first == end:
                continue
            limit = rng.randint(1, 40)
            limited = await stream.commits_between(first, end, max_rows=limit)
            assert limited == expected[: len(limited)], f"seed {seed}"
            rows = [c.rows for c in limited]
            assert sum(rows[:-1]) < limit, f"seed {seed}"
            assert sum(rows) >= limit or limited == expected, f"seed {seed}"
            sizes = await stream.commits_between(first, end, max_bytes=20 * limit)
            assert sizes == expected[: len(sizes)], f"seed {seed}"

    run(scenario())


def test_even_streams_take_few_reads_and_never_a_listing() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await build(ledgers, [(3, 10)] * 2000)
        stream, faults = await fresh(ledgers)
        before = faults.count("get")
        await stream.commit_at(3456)
        assert faults.count("get") - before <= 6
        before = faults.count("get")
        await stream.commits_between(3000, 6000, max_rows=50)
        assert faults.count("get") - before <= 40, "a far-behind reader takes what it needs"
        assert faults.count("children") == 0

    run(scenario())


def test_uneven_streams_take_at_most_twice_a_binary_search() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await build(ledgers, [(1, 1)] * 1000 + [(200, 0)] * 3)
        for segment in (999, 1000, 1100, 1599, 500):
            stream, faults = await fresh(ledgers)
            await stream.commit_at(segment)
            assert faults.count("get") <= 2 * 10 + 5

    run(scenario())


def test_commit_read_once_is_not_read_again() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await build(ledgers, [(1, 1)] * 300)
        stream, faults = await fresh(ledgers)
        commits = await stream.commits_between(0, 300)
        assert len(commits) == 300
        before = faults.count("get")
        again = await stream.commits_between(0, 300)
        assert all(one is other for one, other in zip(again, commits, strict=True))
        assert faults.count("get") - before == 1, "only the head"

    run(scenario())


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        _, commits = await build(ledgers, [(1, 1)] * 100)
        monkeypatch.setattr(commit_log, "COMMITS_KEPT_BYTES_MAX", 20 * commits[0].memory_bytes)
        stream, _ = await fresh(ledgers)
        assert len(await stream.commits(0, 100)) == 100
        assert 1 < len(stream._log._cache) <= 20
        assert (await stream.commit(3)).number == 3

    run(scenario())


def test_missing_commit_error_says_why() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream, _ = await build(ledgers, [(1, 1)] * 5)
        with pytest.raises(NotFoundError, match="not made yet"):
            await stream.commit(5)
        await stream.append([], overwrite=True)
        other, _ = await fresh(ledgers)
        with pytest.raises(DataLossError, match="truncated"):
            await other.commit_at(2)
        store = ledgers.store
        assert isinstance(store, MemoryMetadataStore)
        await store.delete("streams/s/commits/0000000/0000000002")
        with pytest.raises(DataLossError, match="truncated"):
            await other.commit(2)
        await store.delete("streams/s/commits/0000000/0000000005")
        with pytest.raises(CorruptionError, match="is missing"):
            await (await fresh(ledgers))[0].commit(5)
        await stream.commit_segments([loose()])
        await store.delete("streams/s/commits/0000000/0000000006")
        with pytest.raises(CorruptionError, match="is missing"):
            await other.commit(6)
        await StreamCatalog(ledgers).delete("s")
        with pytest.raises(NoSuchStreamError):
            await other.commit(6)

    run(scenario())


def test_segments_that_no_commit_holds_are_corruption() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await build(ledgers, [(2, 1)] * 4)
        path = "streams/s/commits/0000000/0000000001"
        node = await ledgers.store.get(path)
        shorter = json.loads(node.value)
        shorter["segments"].pop()
        await ledgers.store.put(path, json.dumps(shorter).encode(), node.version)
        stream, _ = await fresh(ledgers)
        with pytest.raises(CorruptionError, match="no commit holds segment 3"):
            await stream.commit_at(3)

    run(scenario())


def test_a_segment_behind_the_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr("spark_ledger.stream.stream.STALE_READ_DELAY_S", 0.001)
        ledgers = FakeLedgers()
        stream, _ = await build(ledgers, [(1, 1)] * 2)
        with pytest.raises(ConfigurationError, match="behind the end"):
            await stream.commit_at(2)

    run(scenario())


def test_commit_read_by_number_is_cached() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        _, commits = await build(ledgers, [(1, 1)] * 5)
        stream, faults = await fresh(ledgers)
        assert await stream.commits(1, 4) == commits[1:4]
        before = faults.count("get")
        assert await stream.commits(1, 4) == commits[1:4]
        assert await stream.commit(2) == commits[2]
        assert faults.count("get") == before

    run(scenario())


def test_the_cache_counts_a_commit_once_and_as_applied() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        _, commits = await build(ledgers, [(3, 1), (0, 1)])
        log = CommitLog(ledgers, StreamNodes(ledgers.store, "s"), "id")
        for commit in (replace(commits[0], applied=False), commits[0], commits[1]):
            log.remember(commit)
        assert (await log.get(0)).applied
        assert log.memory_bytes == commits[0].memory_bytes + commits[1].memory_bytes

    run(scenario())


def test_cache_drops_the_least_recently_used_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        _, commits = await build(ledgers, [(1, 1)] * 5)
        one = commits[0].memory_bytes
        monkeypatch.setattr(commit_log, "COMMITS_KEPT_BYTES_MAX", 3 * one)
        log = CommitLog(ledgers, StreamNodes(ledgers.store, "s"), "id")
        for commit in commits[:3]:
            log.remember(commit)
        await log.get(0)
        log.remember(commits[3])
        assert list(log._cache) == [2, 0, 3], "exactly what fits"
        assert log.memory_bytes == 3 * one
        monkeypatch.setattr(commit_log, "COMMITS_KEPT_BYTES_MAX", 1)
        log.remember(commits[4])
        assert list(log._cache) == [4], "the newest stays, however large"
        assert log.memory_bytes == one

    run(scenario())


def test_limit_above_all_rows_returns_every_commit() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream, commits = await build(ledgers, [(1, 1), (0, 1), (2, 1)] * 20 + [(0, 1)])
        total = commits[-1].end_segment
        expected = [commit for commit in commits if commit.segments]
        assert await stream.commits_between(0, total, max_rows=10**9) == expected
        assert await stream.commits_between(0, total, max_bytes=10**9) == expected
        rows = sum(commit.rows for commit in expected)
        assert await stream.commits_between(0, total, max_rows=rows) == expected
        assert await stream.commits_between(0, total, max_rows=rows - 1) == expected
        assert await stream.commits_between(0, total, max_rows=rows - 4) == expected[:-1]
        size_bytes = sum(commit.size_bytes for commit in expected)
        assert await stream.commits_between(0, total, max_bytes=size_bytes - 39) == expected
        assert await stream.commits_between(0, total, max_bytes=size_bytes - 40) == expected[:-1]
        assert await stream.commits_between(1, 4, max_rows=5, max_bytes=10**9) == expected[1:3]
        assert await stream.commits_between(1, 4, max_rows=10**9, max_bytes=41) == expected[1:3]
        assert await stream.commits_between(1, 4, max_rows=1, max_bytes=1) == expected[1:2]

    run(scenario())


def test_a_limit_that_the_first_commit_reaches_reads_nothing_more() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        _, commits = await build(ledgers, [(1, 1)] * 40)
        stream, faults = await fresh(ledgers)
        assert await stream.commits_between(0, 40, max_rows=2) == commits[:1]
        assert faults.count("get") == 5, "configuration, head, root, the commit and its neighbour"

    run(scenario())


def test_ranges_end_at_the_head_and_may_be_empty() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream, commits = await build(ledgers, [(2, 1)] * 3)
        head = await stream.head()
        log = stream._log
        assert await log.between(head, 0, 1000) == commits
        assert await log.between(head, 3, 1000, max_rows=1000) == commits[1:]
        assert await log.between(head, 4, 4) == []
        assert await log.between(head, 5, 4) == []
        assert await log.between(head, 6, 1000) == []
        assert await log.range(2, 2) == []

    run(scenario())


def test_an_empty_stream_has_no_commit_of_any_time() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        assert await stream.first_commit_since(0) is None
        assert await stream.position_at_timestamp(0) == (0, 0, 0)

    run(scenario())


def test_search_by_time_never_finds_overwritten_commits() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream, commits = await build(ledgers, [(1, 10)] * 3)
        last = await stream.commit_segments([loose(2)], overwrite=True)
        reader, _ = await fresh(ledgers)
        for time_ms in (0, commits[0].time_ms, commits[1].time_ms):
            assert await reader.first_commit_since(time_ms) == last
            assert await reader.position_at_timestamp(time_ms) == (3, 0, 0)

    run(scenario())


@pytest.mark.parametrize("place", [1, 3])
@pytest.mark.parametrize("max_rows", [None, 1000])
def test_missing_segments_are_never_skipped(place: int, max_rows: int | None) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await build(ledgers, [(2, 1)] * 4)
        path = f"streams/s/commits/0000000/000000000{place}"
        node = await ledgers.store.get(path)
        shorter = json.loads(node.value)
        shorter["segments"].pop()
        await ledgers.store.put(path, json.dumps(shorter).encode(), node.version)
        stream, _ = await fresh(ledgers)
        missing = 2 * place + 1
        message = f"no commit holds segment {missing}; commit {place} ends before {missing}"
        with pytest.raises(CorruptionError, match=message):
            await stream.commits_between(0, 8, max_rows=max_rows)
        assert len(await stream.commits_between(0, missing)) == place + 1, "what is there is read"

    run(scenario())


def test_commit_missing_after_deletion_is_no_corruption() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream, _ = await build(ledgers, [(1, 1)] * 3)
        other, _ = await fresh(ledgers)
        await StreamCatalog(ledgers)._mark_deleted(stream._nodes)
        await ledgers.store.delete(stream._nodes.commit_path(1))
        with pytest.raises(NoSuchStreamError):
            await other.commit(1)

    run(scenario())


def test_commit_just_before_the_earliest_was_truncated() -> None:
    """Retention deletes nodes up to the earliest commit, and not one of them is still to come."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream, _ = await build(ledgers, [(1, 0)] * 3)
        await stream.commit_segments([loose()], overwrite=True)
        reader, _ = await fresh(ledgers)
        for number in range(3):
            await ledgers.store.delete(stream._nodes.commit_path(number))
            with pytest.raises(DataLossError, match=f"commit {number} was truncated"):
                await reader.commit(number)
        assert (await reader.commit(3)).number == 3

    run(scenario())
