"""A commit whose request or reply is lost: applied once, and the caller is told which."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    LedgerClosedError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.model import Commit, Retention, Segment
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Faults,
    another,
    lagging_heads,
    loose,
    run,
)


async def commits_of(stream: Stream) -> list[Commit]:
    return await stream.commits(0, (await stream.head()).next_commit)


OURS = loose(2, ledger_id=1)


PAIR: dict[str, Any] = {"sink_id": "q", "transaction_id": 7}


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
def test_commit_after_lost_reply_or_request_is_applied_once(
    outcomes: list[Outcome], remembered: bool
) -> None:
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


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("sent", [1, 2, 3])
def test_commit_after_lost_reply_and_old_heads_is_applied_once(
    monkeypatch: pytest.MonkeyPatch, sent: int, remembered: bool
) -> None:
    """It is sent again and refused, as the first one took effect: that one is still looked for."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        stream = await another(ledgers, Faults([Outcome.LOST_REPLY]))[1].open("s")
        lagging_heads(monkeypatch, sent)
        commit = await stream.commit_segments([OURS], **(PAIR if remembered else {}))
        assert (commit.applied, commit.number) == (True, 0)
        monkeypatch.undo()
        assert [each.segments for each in await commits_of(stream)] == [commit.segments]

    run(scenario())


def test_commit_sent_again_in_an_outage_behind_a_lost_reply_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REPLY, Outcome.UNAVAILABLE])
        stream = await another(ledgers, faults)[1].open("s")
        lagging_heads(monkeypatch, 2)
        with pytest.raises(OutcomeUnknownError, match="may or may not have taken effect"):
            await stream.commit_segments([OURS])

    run(scenario())


def test_commit_after_lost_request_and_taken_number_is_made_again() -> None:
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


def test_commit_during_outage_before_sending_is_retryable() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        _, streams = another(ledgers, Faults([Outcome.UNAVAILABLE]))
        with pytest.raises(MetadataUnavailableError):
            await (await streams.open("s")).commit_segments(
                [loose()], sink_id="q", transaction_id=1
            )

    run(scenario())


def test_commit_during_outage_after_lost_reply_is_unknown_until_repeated() -> None:
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


def test_commit_that_gives_up_after_lost_reply_is_unknown(
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
def test_commit_whose_lookup_after_lost_reply_fails_is_unknown(
    error: str, lost_first: bool
) -> None:
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


def test_commit_whose_own_node_cannot_be_read_after_lost_reply_is_unknown() -> None:
    """The head says that the number is taken, and nobody can say by whom: it is ours."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        other, streams = another(ledgers, Faults([Outcome.LOST_REPLY]))
        stream = await streams.open("s")
        reads = other.store.get

        async def fail(path: str) -> Versioned[bytes]:
            if path == stream._nodes.commit_path(0):
                raise MetadataUnavailableError("away")
            return await reads(path)

        other.store.get = fail  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknownError, match="repeating the same sink id"):
            await stream.commit_segments([loose()], **PAIR)
        other.store.get = reads  # type: ignore[method-assign]
        assert not (await stream.commit_segments([loose()], **PAIR)).applied

    run(scenario())


def test_commit_after_lost_request_is_no_longer_unknown_once_number_is_taken() -> None:
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


@pytest.mark.parametrize(
    ("run_id", "segments"),
    [
        ("ours", [loose(2, ledger_id=2)]),
        ("ours", []),
        ("ours", [OURS, loose(1, ledger_id=1, first_entry=1)]),
        ("theirs", [loose(2, ledger_id=2)]),
        ("theirs", [OURS]),
    ],
)
def test_commit_of_second_driver_with_same_pair_is_not_ours(
    run_id: str, segments: list[Segment]
) -> None:
    """Ours was lost on its way, and theirs has the number that ours would have had."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        rival = await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REQUEST])
        other, streams = another(ledgers, faults)
        stream = await streams.open("s")
        inner = other.store.transaction

        async def too_late(operations: object) -> None:
            if not faults.count("transaction"):
                await rival.commit_segments(segments, run_id=run_id, **PAIR)
            await inner(operations)  # type: ignore[arg-type]

        other.store.transaction = too_late  # type: ignore[method-assign]
        commit = await stream.commit_segments([OURS], run_id="ours", **PAIR)
        assert not commit.applied, "theirs was"
        assert (commit.number, commit.run_id) == (0, run_id)
        assert [segment.ledger_id for segment in commit.segments] == [
            segment.ledger_id for segment in segments
        ]
        head = await rival.head()
        assert (head.next_commit, head.rows) == (1, sum(segment.rows for segment in segments))

    run(scenario())


def test_commit_after_lost_request_and_other_transaction_is_made_again() -> None:
    """Of the same driver's next run, with the same rows: still another transaction."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        rival = await StreamCatalog(ledgers).create("s", SCHEMA)
        faults = Faults([Outcome.LOST_REQUEST])
        other, streams = another(ledgers, faults)
        stream = await streams.open("s")
        inner = other.store.transaction

        async def too_late(operations: object) -> None:
            if not faults.count("transaction"):
                await rival.commit_segments([OURS], sink_id="q", transaction_id=6)
            await inner(operations)  # type: ignore[arg-type]

        other.store.transaction = too_late  # type: ignore[method-assign]
        commit = await stream.commit_segments([OURS], **PAIR)
        assert commit.applied
        assert (commit.number, commit.transaction_id) == (1, 7)
        assert (await rival.head()).rows == 4

    run(scenario())


def test_commit_whose_caller_leaves_before_the_reply_keeps_its_segment_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit names the ledger with the list: without it no row of the stream can be read."""
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 8)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        send = ledgers.store.transaction

        async def leave(operations: Sequence[Operation]) -> None:
            await send(operations)
            committing.cancel()
            await asyncio.sleep(0)

        ledgers.store.transaction = leave  # type: ignore[method-assign]
        committing = asyncio.ensure_future(stream.commit_segments([OURS], **PAIR))
        with pytest.raises(asyncio.CancelledError):
            await committing
        (commit,) = await commits_of(await another(ledgers)[1].open("s"))
        assert commit.segments == (OURS.placed(0),)

    run(scenario())


def test_commit_with_lost_reply_and_ledger_that_is_listed_since_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The keeper lists the ledger behind the commit; a server that lags knows of the list first."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        limits = Retention(rows=1 << 40)
        keeper = await StreamCatalog(ledgers).create("s", SCHEMA, retention=limits)
        faults = Faults([Outcome.LOST_REPLY])
        stream = await another(ledgers, faults)[1].open("s")
        lagging_heads(monkeypatch, 2)

        async def list_it() -> None:
            while not faults.count("transaction"):
                await asyncio.sleep(0)
            listed = replace(await keeper.refresh(), dropping=(OURS.ledger_id,))
            assert await keeper.retention._replace_config(listed)
            await stream.refresh()

        listing = asyncio.ensure_future(list_it())
        commit = await stream.commit_segments([OURS])
        assert (commit.applied, commit.number) == (True, 0)
        await listing
        monkeypatch.undo()
        assert await commits_of(stream) == [commit]

    run(scenario())
