"""Look-ups over commits in manifests and in nodes, compared with a list of all of them."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from spark_ledger.errors import (
    CorruptionError,
    DataLossError,
    NoSuchLedgerError,
    NoSuchStreamError,
)
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import commit_log, committer, sealer
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Commit, CommitMark, Head, SinkRecord
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    commit_nodes,
    free_merged,
    loose,
    numbers,
    pages_of,
    root_of,
    run,
    small_manifests,
    table,
)


async def stream_of(ledgers: FakeLedgers, commits: int) -> Stream:
    stream = await StreamCatalog(ledgers).create("s", SCHEMA)
    for number in range(commits):
        await stream.commit_segments([loose()], sink_id="q", transaction_id=number)
        await stream._committer.sealer.close()
    return stream


@pytest.mark.parametrize("kept", [1, 5, 100])
def test_marks_are_the_first_commits_of_leaves_wherever_commits_are(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many to a handle that has read the root long ago: plans are the same (rule T5)."""
    small_manifests(monkeypatch, leaf=3, fan_out=2, kept=kept)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await stream_of(ledgers, 4)
        old = await another(ledgers)[1].open("s")
        await old._log.manifests.read_root()
        writer = await another(ledgers)[1].open("s")
        for number in range(4, 14):
            await writer.commit_segments([loose()], sink_id="q", transaction_id=number)
            await writer._committer.sealer.close()
        for first in range(14):
            for end in range(first + 1, 15):
                expected = [
                    CommitMark(n, n, n, 10 * n) for n in range(first + 1, end) if n % 3 == 0
                ]
                fresh = await another(ledgers)[1].open("s")
                assert await fresh.marks(first, end) == expected, (first, end)
                assert await old.marks(first, end) == expected, (first, end)

    run(scenario())


@pytest.mark.parametrize("kept", [1, 6, 100])
def test_first_transaction_of_a_sink_is_found_among_those_of_others(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gaps between numbers, equal numbers of other sinks, and truncated commits."""
    small_manifests(monkeypatch, leaf=2, fan_out=2, kept=kept)

    async def scenario() -> None:
        seed = random.randrange(1 << 30)
        draw = random.Random(seed)
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        newest = {"a": 0, "b": 0, "c": 0}
        commits: list[Commit] = []
        for _ in range(14):
            sink = draw.choice("aabbbc")
            newest[sink] += draw.choice([1, 1, 1, 2, 3])
            commits.append(
                await stream.commit_segments([loose()], sink_id=sink, transaction_id=newest[sink])
            )
            await stream._committer.sealer.close()
        earliest = draw.choice([0, 0, 3, 8])
        if earliest:
            await stream.retention.truncate((earliest,))
        fresh = await another(ledgers)[1].open("s")
        head = await fresh.head()
        for sink, last in newest.items():
            of_sink = [c for c in commits if c.sink_id == sink]
            if not of_sink:
                continue
            record = SinkRecord(sink, last, of_sink[-1].number, "")
            for wanted in range(last + 2):
                expected = next(
                    (c for c in of_sink if c.transaction_id >= wanted and c.number >= earliest),
                    None,
                )
                found = await fresh._log.first_of_sink(head, record, wanted)
                assert found == expected, f"seed {seed}: {sink} {wanted}"

    for _ in range(3):
        run(scenario())


def test_segments_missing_between_two_parts_of_a_read_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_log, "_DECODED_AT_ONCE_MAX", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await stream_of(ledgers, 6)
        path = "streams/s/commits/0000000/0000000003"
        node = await ledgers.store.get(path)
        emptied = {**json.loads(node.value), "segments": []}
        await ledgers.store.put(path, json.dumps(emptied).encode(), node.version)
        stream = await another(ledgers)[1].open("s")
        with pytest.raises(CorruptionError, match="no commit holds segment 3"):
            await stream.commits(0, 6)
        assert len(await stream.commits(0, 4)) == 4

    run(scenario())


def test_long_list_that_was_read_stays_where_it_is_when_its_commit_is_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leaf of a hundred long lists would be larger than an entry."""
    small_manifests(monkeypatch, kept=0)
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.commit_segments([loose()] * 3)
        other = await another(ledgers)[1].open("s")
        assert len((await other.commit(0)).segments) == 3
        await other.commit_segments([loose()] * 3)
        await other._committer.sealer.close()
        assert commit_nodes(ledgers) == []
        for number in range(2):
            node = await other._log._stored_nodes.get(number)
            commit, pointer = codec.decode_commit(node, number, "node")
            assert pointer is not None and commit.segments == ()

    run(scenario())


def test_many_commits_at_once_are_sealed_in_bounded_steps_and_all_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a stream that was written faster than sealed: several leaves share a ledger, and a page
    above takes some of them (rule T12)."""
    small_manifests(monkeypatch, leaf=2, fan_out=2, kept=1)
    monkeypatch.setattr(sealer, "SEAL_EVERY", 1000)
    monkeypatch.setattr(sealer, "LEAVES_PER_SEAL_MAX", 3)
    monkeypatch.setattr(sealer, "SEAL_BUDGET_S", 60.0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await stream_of(ledgers, 22)
        assert len(commit_nodes(ledgers)) == 22
        left = [22]
        change = ledgers.store.transaction

        async def noting(operations: object) -> None:
            await change(operations)  # type: ignore[arg-type]
            left.append(len(commit_nodes(ledgers)))

        ledgers.store.transaction = noting  # type: ignore[method-assign]
        await stream._committer.sealer.seal(22)
        assert commit_nodes(ledgers) == [20, 21]
        assert max(a - b for a, b in pairwise(left)) == 6
        assert await free_merged(ledgers)
        assert set(ledgers.ledgers) == {p.pointer.ledger_id for p in await pages_of(stream)}
        assert root_of(ledgers).level_to_merge() is None
        for handle in (stream, await another(ledgers)[1].open("s")):
            assert [c.number for c in await handle.commits(0, 22)] == list(range(22))

    run(scenario())


def test_damaged_order_is_not_sealed_where_one_leaf_follows_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=9, kept=0)
    monkeypatch.setattr(sealer, "SEAL_EVERY", 1000)

    async def scenario(field: str) -> None:
        ledgers = FakeLedgers()
        await stream_of(ledgers, 6)
        path = "streams/s/commits/0000000/0000000004"
        node = await ledgers.store.get(path)
        damaged = {**json.loads(node.value), field: 1}
        await ledgers.store.put(path, json.dumps(damaged).encode(), node.version)
        other = await another(ledgers)[1].open("s")
        with pytest.raises(CorruptionError, match="commit 4 begins before commit 3 ends"):
            await other._committer.sealer.seal(6)
        assert 4 in commit_nodes(ledgers)

    for field in ("first_segment", "rows_before", "bytes_before"):
        run(scenario(field))


def test_damaged_order_behind_what_is_sealed_leaves_the_root_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A root with pages that are not in order could not be read, and no commit of them any more."""
    small_manifests(monkeypatch, leaf=2, fan_out=9, kept=0)
    monkeypatch.setattr(sealer, "SEAL_EVERY", 1000)

    async def scenario(field: str) -> None:
        ledgers = FakeLedgers()
        stream = await stream_of(ledgers, 6)
        await stream._committer.sealer.seal(4)
        path = "streams/s/commits/0000000/0000000004"
        node = await ledgers.store.get(path)
        damaged = {**json.loads(node.value), field: 1}
        await ledgers.store.put(path, json.dumps(damaged).encode(), node.version)
        other = await another(ledgers)[1].open("s")
        with pytest.raises(CorruptionError, match="commit 4 begins before commit 2 ends"):
            await other._committer.sealer.seal(6)
        assert commit_nodes(ledgers) == [4, 5]
        reader = await another(ledgers)[1].open("s")
        assert [each.number for each in await reader.commits(0, 4)] == [0, 1, 2, 3]

    for field in ("first_segment", "rows_before", "bytes_before"):
        run(scenario(field))


def test_record_of_a_commit_that_is_lost_and_not_truncated_is_data_loss() -> None:
    """Its transaction was applied, and what became of its rows is not that somebody dropped
    them."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await stream_of(ledgers, 4)
        record = await stream.last_transaction("q")
        assert record is not None and record.commit == 3

        async def lost(number: int) -> Commit:
            raise DataLossError("the manifests cannot be read")

        stream._log.get = lost  # type: ignore[method-assign]
        with pytest.raises(DataLossError, match="cannot be read"):
            await stream.commit_of(record)
        await stream.retention.truncate("latest")
        assert (await stream.commit_of(record)).truncated

    run(scenario())


def test_record_of_a_commit_whose_segment_list_is_lost_is_truncated_only_if_somebody_dropped_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 50)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await stream_of(ledgers, 4)
        record = await stream.last_transaction("q")
        assert record is not None
        kept = dict(ledgers.ledgers)
        ledgers.ledgers.clear()
        other = await another(ledgers)[1].open("s")
        with pytest.raises(NoSuchLedgerError):
            await other.commit_of(record)
        ledgers.ledgers.update(kept)
        behind, stale = await another(ledgers)[1].open("s"), await stream._nodes.head()
        await stream.retention.truncate("latest")
        ledgers.ledgers.clear()
        nodes, read = behind._nodes, behind._nodes.head

        async def lags(*, latest: bool = False) -> Versioned[Head]:
            return await read(latest=True) if latest else stale

        nodes.head = lags  # type: ignore[method-assign]
        assert (await behind.commit_of(record)).truncated
        await StreamCatalog(ledgers).delete("s")
        with pytest.raises(NoSuchStreamError):
            await behind.commit_of(record)

    run(scenario())


@pytest.mark.parametrize("sealed", [False, True])
def test_read_of_a_few_rows_of_a_long_stream_looks_few_commits_up(
    sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many follow; and of many rows more with each step."""
    small_manifests(monkeypatch, leaf=5, fan_out=4, kept=3 if sealed else 1000)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        writer = stream.writer()
        for number in range(120):
            await writer.write(table(number))
            await stream.commit_segments(await writer.finish())
        await stream._committer.sealer.close()
        head = await stream.head()
        reader = await another(ledgers)[1].open("s")
        assert await numbers(reader.read(Dlsn(50), Dlsn(51))) == [50]
        assert len(reader._log._cache) <= 16 + 12, "and those of the search for the first"
        reader = await another(ledgers)[1].open("s")
        steps: list[int] = []
        many = reader._log.range

        async def noting(first: int, end: int) -> list[Commit]:
            steps.append(end - first)
            return await many(first, end)

        monkeypatch.setattr(reader._log, "range", noting)
        assert await numbers(reader.read("earliest", head.end)) == list(range(120))
        assert steps == [16, 32, 64, 8]
        await writer.close()

    run(scenario())
