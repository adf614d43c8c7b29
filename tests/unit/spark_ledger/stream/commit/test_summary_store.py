"""When summaries are read and written, and that nothing about them can hold up or fail a commit."""

from __future__ import annotations

import asyncio
import json

import pytest

from spark_ledger.errors import CorruptionError, NotFoundError
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.stream import nodes
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import commit_log, committer, summary_format, summary_store
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.commit.summary_format import decode_summary, encode_summary
from spark_ledger.stream.commit.summary_store import COMMITS_WORTH_A_SUMMARY, SUMMARIES_KEPT_MAX
from spark_ledger.stream.model import Commit
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, COMMITS_PER_SUMMARY_STEP, StreamNodes
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run

STEP = COMMITS_PER_SUMMARY_STEP
BUCKET = "streams/s/commits/0000000"


async def committed(stream: Stream, count: int) -> list[Commit]:
    return [await stream.commit_segments([loose(2)]) for _ in range(count)]


async def fresh(ledgers: FakeLedgers) -> tuple[Stream, Faults]:
    faults = Faults([])
    stream = await another(ledgers, faults)[1].open("s")
    faults.calls.clear()
    return stream, faults


def length(ledgers: FakeLedgers, stream: Stream, bucket: int = 0) -> int:
    """How many commits the summary of a bucket has."""
    store = ledgers.store
    assert isinstance(store, MemoryMetadataStore)
    path = stream._nodes.bucket_path_of(bucket)
    data = store.tree.get(path).value
    if not data:
        return 0
    first = bucket * COMMITS_PER_BUCKET
    return len(decode_summary(data, stream.config.stream_id, first, path))


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.NORMAL])
def test_commit_succeeds_if_its_summary_cannot_be_written(outcome: Outcome) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([outcome], name="put")
        stream = await another(ledgers, faults)[1].open("s")
        commits = await committed(stream, STEP)
        assert commits[-1].applied
        assert faults.outcomes == [], "the summary was tried"
        assert length(ledgers, stream) == (STEP if outcome is Outcome.LOST_REPLY else 0)
        commits += await committed(stream, STEP)
        assert length(ledgers, stream) == 2 * STEP, "the next step makes up for it"
        other, _ = await fresh(ledgers)
        assert await other.commits(0, 2 * STEP) == commits

    run(scenario())


def test_only_the_commit_that_completes_a_step_looks_at_the_summary() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([])
        stream = await another(ledgers, faults)[1].open("s")
        for number in range(2 * STEP):
            faults.calls.clear()
            for _ in range(2):  # the repetition completes nothing
                await stream.commit_segments([loose()], sink_id="q", transaction_id=number)
            looks = [name for name, path in faults.calls if path == BUCKET and name != "create"]
            assert looks == (["get", "put"] if number % STEP == STEP - 1 else []), number

    run(scenario())


@pytest.mark.parametrize("slow", ["get", "put"])
def test_a_commit_does_not_wait_long_for_its_summary(
    monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    monkeypatch.setattr(commit_log, "EXTEND_TIMEOUT_S", 0.01)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)

        def interpose(name: str, path: str) -> Fault:
            return Fault(delay_s=3600 if name == slow and path == BUCKET else 0)

        stream = await another(ledgers, interpose)[1].open("s")
        commits = await committed(stream, 2 * STEP)
        assert [commit.number for commit in commits] == list(range(2 * STEP))
        assert length(ledgers, stream) == 0

    run(scenario())


def test_a_reader_does_not_wait_long_for_a_summary_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summary_store, "EXTEND_TIMEOUT_S", 0.01)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        monkeypatch.setattr(stream._log, "summarize", lambda end: asyncio.sleep(0))
        commits = await committed(stream, STEP)

        def interpose(name: str, path: str) -> Fault:
            return Fault(delay_s=3600 if name == "put" else 0)

        reader = await another(ledgers, interpose)[1].open("s")
        assert await reader.commits(0, STEP) == commits
        assert length(ledgers, stream) == 0
        assert await (await fresh(ledgers))[0].commits(0, STEP) == commits
        assert length(ledgers, stream) == STEP

    run(scenario())


def test_a_reader_takes_a_summary_only_where_it_saves_reads() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 2 * STEP + 20)

        async def reads(*ranges: tuple[int, int]) -> int:
            reader, faults = await fresh(ledgers)
            for first, end in ranges:
                assert await reader.commits(first, end) == commits[first:end]
            return faults.count("get")

        few = COMMITS_WORTH_A_SUMMARY - 1
        assert await reads((10, 10 + few)) == few
        assert await reads((STEP - few - 1, STEP)) == 1
        assert await reads((10, 10 + STEP)) == 1
        assert await reads((0, STEP - 1)) == 1
        assert await reads((2 * STEP, 2 * STEP + 20)) == 1 + 20
        assert await reads((0, 2 * STEP), (0, STEP)) == 1, "and then they are cached"
        assert await reads((0, STEP), (2 * STEP, 2 * STEP + 20)) == 1 + 20
        assert await reads((0, STEP), (STEP, 2 * STEP)) == 1, "one summary serves both"
        assert await reads((0, 2 * STEP + 20)) == 1 + 20
        assert await reads((2 * STEP, 2 * STEP + 10), (2 * STEP + 10, 2 * STEP + 20)) == 1 + 20
        assert await reads((0, 10), (10, 20), (20, 23), (STEP, 2 * STEP - 1)) == 1, (
            "small steps use it as well"
        )

    run(scenario())


def test_a_summary_that_is_kept_is_read_again_once_it_should_have_grown() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, STEP)
        reader, faults = await fresh(ledgers)
        await reader.commits(0, STEP)
        await committed(stream, STEP - 1)
        faults.calls.clear()
        await reader.commits(STEP, 2 * STEP - 1)
        assert faults.count("get") == STEP - 1, "it cannot have grown"
        await committed(stream, 1 + STEP)
        faults.calls.clear()
        await reader.commits(2 * STEP - 1, 3 * STEP)
        assert faults.count("get") == 1

    run(scenario())


def test_number_of_kept_summaries_is_bounded() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for bucket in range(SUMMARIES_KEPT_MAX + 3):
            path = stream._nodes.bucket_path_of(bucket)
            await ledgers.store.create(path, b"")
            await stream._log._summary_store.load(bucket)
            await stream._log._summary_store.find(0, [1])  # used again and again
        kept = list(stream._log._summary_store._kept)
        assert len(kept) == SUMMARIES_KEPT_MAX
        assert kept[-2:] == [SUMMARIES_KEPT_MAX + 2, 0]

    run(scenario())


def test_long_segment_lists_are_found_through_their_pointer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_ledger.stream.commit.committer.SEGMENT_LIST_NODE_BYTES_MAX", 500)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, STEP - 2)
        commits.append(await stream.commit_segments([loose(2)] * 40))
        commits += await committed(stream, 1)
        assert length(ledgers, stream) == STEP
        path = stream._nodes.bucket_path_of(0)
        rows = decode_summary(
            (await ledgers.store.get(path)).value, stream.config.stream_id, 0, path
        )
        assert rows == tuple(
            [(await ledgers.store.get(stream._nodes.commit_path(n))).value for n in range(STEP)]
        ), "a summary repeats the nodes"
        reader, _ = await fresh(ledgers)
        assert await reader.commits(0, STEP) == commits

    run(scenario())


def test_a_committer_that_cannot_read_the_whole_step_leaves_the_summary_as_it_is() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, STEP - 1)
        await ledgers.store.delete(stream._nodes.commit_path(3))
        other, _ = await fresh(ledgers)
        assert (await other.commit_segments([loose()])).number == STEP - 1
        assert length(ledgers, stream) == 0
        assert (await stream.commits(0, STEP))[: STEP - 1] == commits, "this one had them cached"

    run(scenario())


def test_a_wrong_commit_in_a_summary_is_a_gap_and_not_skipped() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.commit_segments([loose(1)] * 2)
        await committed(stream, STEP - 1)
        path = stream._nodes.bucket_path_of(0)
        node = await ledgers.store.get(path)
        rows = list(decode_summary(node.value, stream.config.stream_id, 0, path))
        shorter = json.loads(rows[0])
        shorter["segments"].pop()
        rows[0] = json.dumps(shorter).encode()
        data = encode_summary(stream.config.stream_id, 0, rows)
        await ledgers.store.put(path, data, node.version)
        reader, _ = await fresh(ledgers)
        with pytest.raises(CorruptionError, match="no commit holds segment 1; commit 0"):
            await reader.commits(0, STEP)

    run(scenario())


def test_bucket_missing_on_a_lagging_server_is_no_error() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        log = CommitLog(ledgers, StreamNodes(ledgers.store, "s"), stream.config.stream_id)
        assert await log._summary_store.load(5) is None
        await log.summarize(5 * COMMITS_PER_BUCKET + 1)
        assert await ledgers.store.children("streams/s/commits") == []
        commits = await committed(stream, STEP)
        other, _ = another(ledgers)
        inner = other.store.get

        async def lags(path: str) -> object:
            if path == BUCKET:
                raise NotFoundError("not here yet")
            return await inner(path)

        other.store.get = lags  # type: ignore[method-assign, assignment]
        assert await (await StreamCatalog(other).open("s")).commits(0, STEP) == commits

    run(scenario())


def test_a_committer_with_little_room_for_commits_makes_the_summary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_log, "CACHE_WEIGHT_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, STEP)
        assert length(ledgers, stream) == STEP
        assert await (await fresh(ledgers))[0].commits(0, STEP) == commits

    run(scenario())


def test_summary_of_exactly_the_largest_size_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [b"a" * 10, b"b" * 200]
    data = encode_summary("id", 0, nodes)
    monkeypatch.setattr(summary_format, "SUMMARY_BYTES_MAX", len(data))
    assert encode_summary("id", 0, nodes) == data
    monkeypatch.setattr(summary_format, "SUMMARY_BYTES_MAX", len(data) - 1)
    assert decode_summary(encode_summary("id", 0, nodes), "id", 0, "p") == (nodes[0], b"")


@pytest.fixture
def unsummarized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Committers write no summaries."""

    async def nothing(_log: CommitLog, _end: int) -> None:
        return None

    monkeypatch.setattr(CommitLog, "summarize", nothing)


@pytest.mark.usefixtures("unsummarized")
def test_cached_commits_count_towards_a_step() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 2 * STEP)
        reader, faults = await fresh(ledgers)
        await reader.commits(0, STEP - 20)
        assert await reader.commits(STEP - 20, 2 * STEP) == commits[STEP - 20 :]
        assert length(ledgers, stream) == 2 * STEP
        assert faults.count("put") == 1

    run(scenario())


@pytest.mark.usefixtures("unsummarized")
def test_commits_that_the_cache_cannot_hold_are_summarized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "CACHE_WEIGHT_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, STEP + 3)
        reader, _ = await fresh(ledgers)
        assert await reader.commits(0, STEP + 3) == commits
        assert length(ledgers, stream) == STEP
        reader, _ = await fresh(ledgers)
        assert await reader.commits(0, STEP + 3) == commits

    run(scenario())


@pytest.mark.usefixtures("unsummarized")
def test_a_reader_that_begins_later_or_reads_little_writes_no_summary() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 2 * STEP)
        reader, faults = await fresh(ledgers)
        assert await reader.commits(10, 10 + STEP) == commits[10 : 10 + STEP]
        reader, more = await fresh(ledgers)
        await reader.commits(0, 15)
        await reader.commits(15, 15 + STEP - 1)
        assert faults.count("put") == more.count("put") == 0
        assert await reader.commits(15 + STEP - 1, 2 * STEP) == commits[15 + STEP - 1 :]

    run(scenario())


def test_the_last_commit_of_a_bucket_completes_that_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nodes, summary_store, commit_log, committer):
        monkeypatch.setattr(module, "COMMITS_PER_BUCKET", 2 * STEP)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 3 * STEP - 1)
        path = stream._nodes.bucket_path_of(0)
        node = await ledgers.store.get(path)
        assert len(decode_summary(node.value, stream.config.stream_id, 0, path)) == 2 * STEP
        path = stream._nodes.bucket_path_of(1)
        assert (await ledgers.store.get(path)).value == b""
        commits += await committed(stream, 1)
        node = await ledgers.store.get(path)
        assert len(decode_summary(node.value, stream.config.stream_id, 2 * STEP, path)) == STEP
        for first, end in ((0, 3 * STEP), (2 * STEP - 3, 3 * STEP), (2 * STEP, 3 * STEP)):
            reader, faults = await fresh(ledgers)
            assert await reader.commits(first, end) == commits[first:end]
            assert faults.count("get") <= 2 + 3

    run(scenario())


@pytest.mark.usefixtures("unsummarized")
@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.NORMAL])
def test_read_succeeds_if_a_summary_cannot_be_written(outcome: Outcome) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        commits = await committed(await StreamCatalog(ledgers).create("s", SCHEMA), STEP)
        faults = Faults([outcome], name="put")
        reader = await another(ledgers, faults)[1].open("s")
        assert await reader.commits(0, STEP) == commits
        assert faults.outcomes == [], "the summary was tried"

    run(scenario())


@pytest.mark.usefixtures("unsummarized")
def test_summary_extended_by_a_reader_gives_the_right_commits() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, 2 * STEP + 7)
        reader, _ = await fresh(ledgers)
        for first, end in ((0, STEP), (STEP, 2 * STEP), (2 * STEP, 2 * STEP + 7)):
            assert await reader.commits(first, end) == commits[first:end]
        assert length(ledgers, stream) == 2 * STEP

    run(scenario())


def test_damaged_row_of_a_summary_is_read_from_its_own_node() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        commits = await committed(stream, STEP)
        node = await ledgers.store.get(BUCKET)
        rows = list(decode_summary(node.value, stream.config.stream_id, 0, BUCKET))
        rows[5] = b"{}"
        data = encode_summary(stream.config.stream_id, 0, rows)
        await ledgers.store.put(BUCKET, data, node.version)
        reader, faults = await fresh(ledgers)
        assert await reader.commits(0, STEP) == commits
        asked = [path for _, path in faults.calls if path.startswith(f"{BUCKET}/")]
        assert asked == [f"{BUCKET}/0000000005"]

    run(scenario())


def test_summary_that_another_has_extended_is_read_again() -> None:
    """Its version is gone: whoever kept it would lose every race from then on."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await committed(stream, STEP)
        slow = CommitLog(ledgers, stream._nodes, stream.config.stream_id)._summary_store
        summary = await slow.load(0)
        assert summary is not None
        await committed(stream, STEP)
        await slow.extend(0, summary, summary.nodes)
        assert slow.kept(0) is None, "of two that extend it one loses"
        again = await slow.load(0)
        assert again is not None and again.end == 2 * STEP

    run(scenario())
