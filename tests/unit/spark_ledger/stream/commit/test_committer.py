"""Commits to the store: in one order, each pair once, and what they read and write."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest

from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataRestoredError,
    NoSuchStreamError,
    RetryableError,
)
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.model import Commit, Segment
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run

SOON_S = 5.0
"""Longer than any commit here takes, and soon enough for one that would try for ever."""


async def commits_of(stream: Stream) -> list[Commit]:
    return await stream.commits(0, (await stream.head()).next_commit)


def test_commit_repeated_pair_returns_the_first_commit() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        first = await stream.commit_segments(
            [loose(2, 3), loose(1)], sink_id="q", transaction_id=7, run_id="r1"
        )
        assert first.applied
        _, others = another(ledgers)
        again = await (await others.open("s")).commit_segments(
            [loose(9)], sink_id="q", transaction_id=7, run_id="r2"
        )
        assert not again.applied
        assert again == first
        assert (again.rows, again.run_id) == (6, "r1")
        assert (await stream.head()).next_commit == 1
        record = await stream.last_transaction("q")
        assert record is not None
        assert tuple(record) == ("q", 7, 0, "r1")

    run(scenario())


def test_commit_older_transaction_is_refused_and_newer_applied() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        await stream.commit_segments([loose()], sink_id="q", transaction_id=7)
        with pytest.raises(ConflictError, match="checkpoint"):
            await stream.commit_segments([loose()], sink_id="q", transaction_id=6)
        newer = await stream.commit_segments([loose()], sink_id="q", transaction_id=9)
        assert newer.applied
        other = await stream.commit_segments([loose()], sink_id="p/..", transaction_id=1)
        assert other.applied
        assert [c.transaction_id for c in await commits_of(stream)] == [7, 9, 1]

    run(scenario())


def test_commit_without_segments_advances_the_sink() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        empty = await stream.commit_segments([], sink_id="q", transaction_id=1)
        assert (empty.applied, empty.rows, empty.number) == (True, 0, 0)
        assert not (await stream.commit_segments([], sink_id="q", transaction_id=1)).applied

    run(scenario())


def test_appends_without_a_sink_leave_no_sink_record() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        a, b = [await stream.commit_segments([loose()]) for _ in range(2)]
        assert a.applied
        assert b.applied
        assert a.sink_id != b.sink_id
        assert ledgers.store.tree.children("streams/s/sinks") == []

    run(scenario())


def test_commit_losing_every_race_is_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        rival = await StreamCatalog(ledgers).create("s", SCHEMA)
        other, streams = another(ledgers)
        stream = await streams.open("s")
        inner = other.store.transaction

        async def too_late(operations: object) -> None:
            await rival.commit_segments([loose()])
            await inner(operations)  # type: ignore[arg-type]

        monkeypatch.setattr(other.store, "transaction", too_late)
        monkeypatch.setattr(committer, "COMMIT_TIMEOUT_S", 0.02)
        with pytest.raises(RetryableError, match="race"):
            await stream.commit_segments([loose()], sink_id="q", transaction_id=1)
        assert await stream.last_transaction("q") is None

    run(scenario())


def test_many_sinks_at_once_give_a_total_order_without_loss() -> None:
    async def scenario() -> None:
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        faulty = (Outcome.LOST_REPLY, Outcome.LOST_REQUEST, *[Outcome.NORMAL] * 8)

        async def sink(name: str) -> int:
            _, streams = another(ledgers, Faults([rng.choice(faulty) for _ in range(200)]))
            mine = await streams.open("s")
            applied = 0
            for transaction_id in range(8):
                for _ in range(rng.choice([1, 1, 2])):  # some are repeated
                    segments = [loose(transaction_id + 1) for _ in range(rng.randint(0, 2))]
                    commit = await mine.commit_segments(
                        segments, sink_id=name, transaction_id=transaction_id
                    )
                    applied += commit.applied
            return applied

        names = [f"sink-{n}" for n in range(6)]
        assert await asyncio.gather(*map(sink, names)) == [8] * 6, f"seed {seed}"
        commits = await commits_of(stream)
        head = await stream.head()
        for name in names:
            mine = [commit.transaction_id for commit in commits if commit.sink_id == name]
            assert mine == list(range(8)), f"seed {seed}"
        expected_segment = rows = size_bytes = 0
        for commit in commits:
            assert (commit.first_segment, commit.rows_before) == (expected_segment, rows)
            assert commit.bytes_before == size_bytes, f"seed {seed}"
            expected_segment, rows = commit.end_segment, rows + commit.rows
            size_bytes += commit.size_bytes
        assert (head.next_segment, head.rows) == (expected_segment, rows), f"seed {seed}"
        times = [commit.time_ms for commit in commits]
        assert times == sorted(times)

    run(scenario())


def test_buckets_are_made_as_they_are_needed() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for n in range(COMMITS_PER_BUCKET + 2):
            await stream.commit_segments([loose()], sink_id="q", transaction_id=n)
        tree = ledgers.store.tree
        buckets = tree.children("streams/s/commits")
        assert buckets == ["0000000", "0000001"]
        assert tree.children("streams/s/commits/0000001") == ["0000001000", "0000001001"]

    run(scenario())


def test_commit_to_deleted_or_recreated_stream_is_refused() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        stream = await streams.create("s", SCHEMA)
        await stream.commit_segments([loose()])
        _, others = another(ledgers)
        await others.delete("s")
        with pytest.raises(NoSuchStreamError, match="'s'"):
            await stream.commit_segments([loose()])
        fresh = await others.create("s", SCHEMA)
        with pytest.raises(NoSuchStreamError):
            await stream.commit_segments([loose()])
        assert (await fresh.head()).next_commit == 0

    run(scenario())


def test_commit_overtaken_by_a_deletion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "COMMIT_TIMEOUT_S", SOON_S)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        other, streams = another(ledgers)
        stream = await streams.open("s")
        inner = other.store.transaction

        async def mark_first(operations: object) -> None:
            await StreamCatalog(ledgers)._mark_deleted(StreamNodes(ledgers.store, "s"))
            await inner(operations)  # type: ignore[arg-type]

        other.store.transaction = mark_first  # type: ignore[method-assign]
        with pytest.raises(NoSuchStreamError):
            await stream.commit_segments([loose()])
        assert ledgers.store.tree.children("streams/s/commits/0000000") == []

    run(scenario())


def test_commit_after_schema_change_is_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "COMMIT_TIMEOUT_S", SOON_S)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        other = await another(ledgers)[1].open("s")
        await other.merge_schema(SCHEMA.append(SCHEMA.field(0).with_name("new")))
        assert (await stream.commit_segments([loose()])).applied
        assert stream.config.schema_version == 1

    run(scenario())


def test_commit_with_half_a_pair_is_refused() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        segments: list[Segment] = []
        with pytest.raises(LedgerError, match="together"):
            await stream.commit_segments(segments, sink_id="q")
        with pytest.raises(LedgerError, match="sink id"):
            await stream.commit_segments(segments, sink_id="", transaction_id=1)

    run(scenario())


def test_a_commit_reads_and_writes_no_more_than_it_needs() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([])
        stream = await another(ledgers, faults)[1].open("s")
        await stream.commit_segments([loose()])
        faults.calls.clear()
        await stream.commit_segments([loose()])
        assert [name for name, _ in faults.calls] == ["get", "transaction"], "no sink, no bucket"
        assert len(await stream.commits(0, 2)) == 2
        assert len(faults.calls) == 2, "its own commits are known"
        faults.calls.clear()
        await stream.commit_segments([loose()], sink_id="q", transaction_id=1)
        assert sorted(faults.calls) == [
            ("get", "streams/s/head"),
            ("get", "streams/s/sinks/s-q"),
            ("transaction", stream._nodes.identity_path(stream.config.stream_id)),
        ]

    run(scenario())


def test_commit_of_a_schema_version_that_the_stream_lacks_is_refused() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        segment = replace(loose(), schema_version=1)
        with pytest.raises(MetadataRestoredError, match="written in version 1 of its columns"):
            await stream._committer.commit(Proposal((segment,), "q", 1))
        assert (await stream.head()).next_commit == 0

    run(scenario())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REQUEST, Outcome.LOST_REPLY])
def test_a_bucket_whose_creation_is_lost_is_made_by_the_next_attempt(outcome: Outcome) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([outcome], name="create")
        stream = await another(ledgers, faults)[1].open("s")
        assert (await stream.commit_segments([loose()])).applied
        assert faults.outcomes == []
        assert len(await commits_of(stream)) == 1

    run(scenario())


def test_pauses_between_attempts_double_up_to_a_bound() -> None:
    bounds: list[float] = []

    class Recorder(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            bounds.append(b)
            return 0.0

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        stream = await another(ledgers, Faults([Outcome.LOST_REQUEST] * 9))[1].open("s")
        old = stream._committer
        new = committer.Committer(
            ledgers, stream._nodes, old.log, old.schemas, old.heads, rng=Recorder()
        )
        await new.commit(Proposal((loose(),), "q", 1))
        first, most = committer.BACKOFF_S_MIN, committer.BACKOFF_S_MAX
        assert bounds == [min(first * 2**n, most) for n in range(9)]
        assert bounds[-1] == most

    run(scenario())


def test_commit_time_is_the_time_of_day() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        before_ms = time.time_ns() // 1_000_000
        commit = await stream.commit_segments([loose()])
        assert before_ms <= commit.time_ms <= time.time_ns() // 1_000_000

    run(scenario())
