"""What a commit reads and writes, how it waits, and what it leaves open when it gives up."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    LedgerClosedError,
    MetadataUnavailableError,
    NoSuchStreamError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Commit
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Quorums
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeWriter
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run


async def commits_of(stream: Stream) -> list[Commit]:
    return await stream.commits(0, (await stream.head()).next_commit)


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


def test_segments_of_a_schema_version_to_come_are_our_own_bug() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        segment = replace(loose(), schema_version=1)
        with pytest.raises(AssertionError, match="version"):
            await stream._committer.commit(Proposal((segment,), "q", 1))

    run(scenario())


def test_giving_up_with_a_lost_reply_leaves_the_outcome_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "COMMIT_TIMEOUT_S", -1.0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        for outcome in (Outcome.LOST_REQUEST, Outcome.LOST_REPLY):
            stream = await another(ledgers, Faults([outcome]))[1].open("s")
            with pytest.raises(OutcomeUnknownError, match="may or may not have taken effect"):
                await stream.commit_segments([loose()], sink_id="q", transaction_id=1)
        stream = await another(ledgers)[1].open("s")
        again = await stream.commit_segments([loose()], sink_id="q", transaction_id=1)
        assert not again.applied, "the second one had taken effect"

    run(scenario())


@pytest.mark.parametrize("error", ["closed", "unavailable", "another store"])
@pytest.mark.parametrize("lost_first", [True, False])
def test_what_ends_a_lookup_leaves_the_outcome_open(error: str, lost_first: bool) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REQUEST] if lost_first else [])
        other, streams = another(ledgers, faults)
        stream = await streams.open("s")
        raised = {
            "closed": LedgerClosedError("closed"),
            "unavailable": MetadataUnavailableError("away"),
            "another store": ConfigurationError("another"),
        }[error]
        reads = other.store.get

        async def fail(path: str) -> object:
            if faults.count("transaction") == lost_first:
                raise raised
            return await reads(path)

        other.store.get = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(OutcomeUnknownError if lost_first else type(raised)):
            await stream.commit_segments([loose()], sink_id="q", transaction_id=1)

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
        new = committer.Committer(ledgers, stream._nodes, old.log, old.schemas, rng=Recorder())
        await new.commit(Proposal((loose(),), "q", 1))
        first, most = committer.BACKOFF_S_MIN, committer.BACKOFF_S_MAX
        assert bounds == [min(first * 2**n, most) for n in range(9)]
        assert bounds[-1] == most

    run(scenario())


def test_commits_are_made_at_the_time_of_day() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        before_ms = time.time_ns() // 1_000_000
        commit = await stream.commit_segments([loose()])
        assert before_ms <= commit.time_ms <= time.time_ns() // 1_000_000

    run(scenario())


def test_a_long_list_fills_entries_of_its_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        segments = [loose(2, ledger_id=100_000 + n) for n in range(40)]
        data = codec.encode_segment_list(tuple(segments))
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", len(data))
        monkeypatch.setattr(committer, "ENTRY_PAYLOAD_BYTES_MAX", 400)
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create(
            "s", SCHEMA, ensemble_size=4, write_quorum=2, ack_quorum=1
        )
        first = await stream.commit_segments(segments)
        assert ledgers.ledgers == {}, "it just fits"
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", len(data) - 1)
        second = await stream.commit_segments(segments)
        (ledger,) = ledgers.ledgers.values()
        assert ledger.closed
        assert ledger.metadata.quorums == Quorums(4, 2, 1)
        assert [len(part) for part in ledger.payloads[:-1]] == [100] * (len(data) // 100)
        assert b"".join(ledger.payloads) == data
        reader = await another(ledgers)[1].open("s")
        assert await reader.commits(0, 2) == [first, second]

    run(scenario())


def test_a_long_list_that_is_not_stored_whole_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing a ledger succeeds although its last entries failed: it ends before them."""
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def closes(self: FakeWriter) -> None:
        self._ledger.closed = True

    monkeypatch.setattr(FakeWriter, "close", closes)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        ledgers.fail_append_at = 1
        with pytest.raises(type(ledgers.append_error)):
            await stream.commit_segments([loose()] * 9)
        assert (await stream.head()).next_commit == 0

    run(scenario())


def test_a_long_list_stays_while_its_commit_may_have_been_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        other, streams = another(ledgers, Faults([Outcome.LOST_REQUEST]))
        stream = await streams.open("s")
        nodes, heads = stream._nodes, []

        async def gone(path: str) -> object:
            heads.append(path)
            if path == nodes.head_path and heads.count(path) == 2:
                raise NotFoundError("gone")
            return await ledgers.store.get(path)

        other.store.get = gone  # type: ignore[method-assign, assignment]
        with pytest.raises(NoSuchStreamError):
            await stream.commit_segments([loose()] * 9)
        assert other.deleted == []

    run(scenario())


def test_a_long_list_goes_when_the_stream_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await another(ledgers)[1].delete("s")
        with pytest.raises(NoSuchStreamError):
            await stream.commit_segments([loose()] * 9)
        assert ledgers.ledgers == {}

    run(scenario())


def test_a_lost_commit_is_decided_once_another_has_its_place() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        rival = await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REQUEST, Outcome.UNAVAILABLE])
        other, streams = another(ledgers, faults)
        stream = await streams.open("s")
        inner = other.store.transaction

        async def too_late(operations: object) -> None:
            if not faults.count("transaction"):
                await rival.commit_segments([loose()])
            await inner(operations)  # type: ignore[arg-type]

        other.store.transaction = too_late  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailableError):  # and not an unknown outcome
            await stream.commit_segments([loose()], sink_id="q", transaction_id=1)
        assert len(await commits_of(rival)) == 1

    run(scenario())
