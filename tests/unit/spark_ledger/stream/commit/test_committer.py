"""Commits to the store: exactly once under races, lost replies, lost requests and outages."""

from __future__ import annotations

import asyncio
import random

import pytest

from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchStreamError,
    OutcomeUnknownError,
    RetryableError,
)
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.model import Commit, Segment
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run


async def commits_of(stream: Stream) -> list[Commit]:
    return await stream.commits(0, (await stream.head()).next_commit)


def test_a_pair_is_applied_once_and_its_commit_is_returned_whole() -> None:
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


def test_an_older_transaction_is_refused_and_a_newer_one_applied() -> None:
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


def test_an_empty_commit_advances_the_sink() -> None:
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


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize(
    "outcomes",
    [
        [Outcome.LOST_REPLY],
        [Outcome.LOST_REQUEST],
        [Outcome.LOST_REQUEST, Outcome.LOST_REQUEST, Outcome.LOST_REPLY],
        [Outcome.LOST_REQUEST, Outcome.NORMAL],
    ],
)
def test_a_lost_outcome_is_looked_up(outcomes: list[Outcome], remembered: bool) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults(outcomes)
        _, streams = another(ledgers, faults)
        stream = await streams.open("s")
        pair = {"sink_id": "q", "transaction_id": 3} if remembered else {}
        commit = await stream.commit_segments([loose(2)], **pair)  # type: ignore[arg-type]
        assert commit.applied, "we did it, although we were not told"
        assert commit.number == 0
        assert len(await commits_of(stream)) == 1
        following = await stream.commit_segments([loose(1)])
        assert (following.number, following.first_segment) == (1, 1)

    run(scenario())


def test_a_commit_lost_while_another_took_its_place_is_made_again() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        rival = await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REQUEST])
        _, streams = another(ledgers, faults)
        stream = await streams.open("s")

        async def race() -> None:
            while not faults.count("transaction"):
                await asyncio.sleep(0)
            await rival.commit_segments([loose(5, ledger_id=1)])

        commit, _ = await asyncio.gather(stream.commit_segments([loose(2)]), race())
        assert commit.applied
        assert {c.rows for c in await commits_of(stream)} == {5, 2}

    run(scenario())


def test_an_outage_before_anything_was_sent_is_retryable() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        _, streams = another(ledgers, Faults([Outcome.UNAVAILABLE]))
        with pytest.raises(MetadataUnavailableError):
            await (await streams.open("s")).commit_segments(
                [loose()], sink_id="q", transaction_id=1
            )

    run(scenario())


def test_an_outage_after_a_lost_reply_is_an_unknown_outcome_and_a_repetition_tells() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REPLY])
        other, streams = another(ledgers, faults)
        stream = await streams.open("s")

        def go_dark(name: str, path: str) -> object:
            fault = faults(name, path)
            if faults.count("transaction") and name == "get":
                return type(fault)(Outcome.UNAVAILABLE)
            return fault

        other.store.interpose = go_dark  # type: ignore[assignment]
        with pytest.raises(OutcomeUnknownError, match=r"'q', transaction 1.*safe"):
            await stream.commit_segments([loose()], sink_id="q", transaction_id=1)
        other.store.interpose = None
        assert not (await stream.commit_segments([loose()], sink_id="q", transaction_id=1)).applied

    run(scenario())


def test_losing_every_race_ends_in_a_retryable_error(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_long_segment_list_goes_into_a_ledger() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        stream = await streams.create("s", SCHEMA)
        segments = [loose(*[7] * 50, ledger_id=n) for n in range(2000)]
        commit = await stream.commit_segments(segments, sink_id="q", transaction_id=1)
        node = ledgers.store.tree.get("streams/s/commits/0000000/0000000000").value
        assert len(node) < 1000
        (list_ledger,) = ledgers.ledgers
        assert ledgers.ledgers[list_ledger].closed
        assert ledgers.ledgers[list_ledger].metadata.custom_metadata["purpose"] == "segment-list"
        fresh = await another(ledgers)[1].open("s")
        assert (await fresh.commit(0)).segments == commit.segments
        assert (await fresh.commit_at(1234)).segment(1234).ledger_id == 1234
        # a repetition leaves no second list behind
        assert not (await fresh.commit_segments(segments, sink_id="q", transaction_id=1)).applied
        with pytest.raises(ConflictError):
            await fresh.commit_segments(segments, sink_id="q", transaction_id=0)
        assert list(ledgers.ledgers) == [list_ledger]
        await streams.delete("s")
        assert ledgers.ledgers == {}

    run(scenario())


def test_nothing_is_committed_to_a_stream_that_was_deleted_or_made_anew() -> None:
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


def test_a_deletion_that_comes_between_reading_and_committing_wins() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        other, streams = another(ledgers)
        stream = await streams.open("s")
        inner = other.store.transaction

        async def mark_first(operations: object) -> None:
            await StreamCatalog(ledgers)._mark_deleted(StreamNodes(ledgers.store, "s"))
            await inner(operations)  # type: ignore[arg-type]

        other.store.transaction = mark_first  # type: ignore[method-assign, assignment]
        with pytest.raises(NoSuchStreamError):
            await stream.commit_segments([loose()])
        assert ledgers.store.tree.children("streams/s/commits/0000000") == []

    run(scenario())


def test_a_commit_survives_a_schema_change_in_between() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        other = await another(ledgers)[1].open("s")
        await other.merge_schema(SCHEMA.append(SCHEMA.field(0).with_name("new")))
        assert (await stream.commit_segments([loose()])).applied
        assert stream.config.schema_version == 1

    run(scenario())


def test_half_a_pair_is_refused() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        segments: list[Segment] = []
        with pytest.raises(LedgerError, match="together"):
            await stream.commit_segments(segments, sink_id="q")
        with pytest.raises(LedgerError, match="sink id"):
            await stream.commit_segments(segments, sink_id="", transaction_id=1)

    run(scenario())
