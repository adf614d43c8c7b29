"""A segment list that is too long for its commit's node: stored first, deleted if not needed."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import (
    ConflictError,
    MetadataUnavailableError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.format import codec
from spark_ledger.types import Quorums
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeWriter
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run


def test_a_long_segment_list_goes_into_a_ledger() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        stream = await streams.create("s", SCHEMA)
        segments = [loose(*[7] * 50, ledger_id=5000 + n) for n in range(2000)]
        commit = await stream.commit_segments(segments, sink_id="q", transaction_id=1)
        node = ledgers.store.tree.get("streams/s/commits/0000000/0000000000").value
        assert len(node) < 1000
        (list_ledger,) = ledgers.ledgers
        assert ledgers.ledgers[list_ledger].closed
        assert ledgers.ledgers[list_ledger].metadata.custom_metadata["purpose"] == "segment-list"
        fresh = await another(ledgers)[1].open("s")
        assert (await fresh.commit(0)).segments == commit.segments
        assert (await fresh.commit_at(1234)).segment(1234).ledger_id == 6234
        # a repetition leaves no second list behind
        assert not (await fresh.commit_segments(segments, sink_id="q", transaction_id=1)).applied
        with pytest.raises(ConflictError):
            await fresh.commit_segments(segments, sink_id="q", transaction_id=0)
        assert list(ledgers.ledgers) == [list_ledger]
        await streams.delete("s")
        assert ledgers.ledgers == {}

    run(scenario())


def test_long_list_is_cut_into_entries_of_its_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_long_list_stored_in_part_is_not_committed(
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
        assert ledgers.ledgers == {}, "what was written of the list is deleted"

    run(scenario())


def test_long_list_of_unknown_commit_is_kept(
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


def test_long_list_of_deleted_stream_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await another(ledgers)[1].delete("s")
        with pytest.raises(NoSuchStreamError):
            await stream.commit_segments([loose()] * 9)
        assert ledgers.ledgers == {}

    run(scenario())


def test_long_list_of_a_commit_that_fails_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kept it from being made: the store went away before anything was sent."""
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.UNAVAILABLE])
        stream = await another(ledgers, faults)[1].open("s")
        with pytest.raises(MetadataUnavailableError):
            await stream.commit_segments([loose()] * 9)
        assert ledgers.ledgers == {}

    run(scenario())


def test_long_list_of_a_commit_that_is_cancelled_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        waits = asyncio.Event()

        async def head(*, latest: bool) -> object:
            waits.set()
            await asyncio.Event().wait()
            raise AssertionError("it is cancelled here")

        stream._committer.nodes.head = head  # type: ignore[method-assign, assignment]
        commit = asyncio.ensure_future(stream.commit_segments([loose()] * 9))
        await waits.wait()
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert ledgers.ledgers == {}

    run(scenario())


def test_long_list_that_cannot_be_deleted_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        other, streams = another(ledgers, Faults([Outcome.UNAVAILABLE]))
        stream = await streams.open("s")

        async def away(ledger_id: int, checks: object = ()) -> None:
            raise MetadataUnavailableError("ZooKeeper is away")

        other.delete_ledger = away  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailableError):
            await stream.commit_segments([loose()] * 9)
        (ledger_id,) = ledgers.ledgers
        assert f"segment list of a commit that was not made: ledgers {ledger_id}," in caplog.text
        assert "ZooKeeper is away" in caplog.text

    run(scenario())


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize(
    "outcomes", [[Outcome.LOST_REPLY], [Outcome.LOST_REQUEST], [Outcome.LOST_REQUEST] * 2]
)
def test_long_list_of_a_commit_that_is_looked_up_stays(
    outcomes: list[Outcome], remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could read the commit without it."""
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        other, streams = another(ledgers, Faults(outcomes))
        stream = await streams.open("s")
        pair = {"sink_id": "q", "transaction_id": 1} if remembered else {}
        commit = await stream.commit_segments([loose()] * 9, **pair)  # type: ignore[arg-type]
        assert other.deleted == [] and len(ledgers.ledgers) == 1
        assert await (await another(ledgers)[1].open("s")).commits(0, 1) == [commit]

    run(scenario())


def test_long_list_is_deleted_though_the_caller_leaves_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.commit_segments([], sink_id="q", transaction_id=2)
        begun, goes_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        inner = ledgers.delete_ledger

        async def slow(ledger_id: int, checks: object = ()) -> None:
            begun.set()
            await goes_on.wait()
            await inner(ledger_id)
            done.set()

        ledgers.delete_ledger = slow  # type: ignore[method-assign]
        older = asyncio.ensure_future(
            stream.commit_segments([loose()] * 9, sink_id="q", transaction_id=1)
        )
        await begun.wait()
        older.cancel()
        with pytest.raises(asyncio.CancelledError):
            await older
        goes_on.set()
        await asyncio.wait_for(done.wait(), 10)
        assert ledgers.ledgers == {}

    run(scenario())
