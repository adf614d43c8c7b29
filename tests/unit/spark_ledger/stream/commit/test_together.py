"""Commits to several streams in one transaction: all or nothing, whatever is lost or deleted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerClosedError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchStreamError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from spark_ledger.limits.stream import STREAMS_PER_COMMIT_MAX
from spark_ledger.metadata.memory import Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer, together
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Commit
from spark_ledger.stream.several import AppendedStreams, commit_to
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Faults,
    another,
    lagging_heads,
    loose,
    numbers,
    run,
    table,
)

PAIR: dict[str, Any] = {"sink_id": "q", "transaction_id": 7}


class World:
    """Streams a and b, and a process whose transactions meet trouble."""

    def __init__(self) -> None:
        self.ledgers = FakeLedgers()
        self.calm = StreamCatalog(self.ledgers)

    async def streams(self, *outcomes: Outcome) -> tuple[list[Stream], Faults]:
        for name in "ab":
            await self.calm.create(name, SCHEMA, exist_ok=True)
        faults = Faults(list(outcomes))
        _, catalog = another(self.ledgers, faults)
        return [await catalog.open(name) for name in "ab"], faults

    async def commits(self) -> list[list[tuple[str, int]]]:
        """The pairs that each stream has, as somebody else sees them."""
        found = []
        for name in "ab":
            stream = await self.calm.open(name)
            commits = await stream.commits(0, (await stream.head()).next_commit)
            found.append([(each.sink_id, each.transaction_id) for each in commits])
        return found


def offer(streams: list[Stream], **pair: Any) -> Awaitable[list[Commit]]:
    parts = [(s, [loose(n + 1, ledger_id=n + 1)]) for n, s in enumerate(streams)]
    return commit_to(parts, **{**PAIR, **pair})


ONCE = [[("q", 7)], [("q", 7)]]


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        [Outcome.LOST_REPLY],
        [Outcome.LOST_REQUEST],
        [Outcome.LOST_REQUEST, Outcome.LOST_REQUEST, Outcome.LOST_REPLY],
        [Outcome.LOST_REQUEST, Outcome.NORMAL],
    ],
)
def test_commit_to_two_streams_is_applied_once_whatever_is_lost(outcomes: list[Outcome]) -> None:
    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams(*outcomes)
        commits = await offer(streams)
        assert [commit.applied for commit in commits] == [True, True]
        assert [commit.rows for commit in commits] == [1, 2]
        assert await world.commits() == ONCE
        again = await offer(streams)
        assert [commit.applied for commit in again] == [False, False]
        assert [each.segments for each in again] == [each.segments for each in commits]
        assert await world.commits() == ONCE

    run(scenario())


@pytest.mark.parametrize("pair", [PAIR, {"sink_id": None, "transaction_id": None}])
@pytest.mark.parametrize("sent", [1, 2, 3])
def test_commit_to_two_streams_after_lost_reply_and_old_heads_is_applied_once(
    monkeypatch: pytest.MonkeyPatch, sent: int, pair: dict[str, Any]
) -> None:
    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams(Outcome.LOST_REPLY)
        lagging_heads(monkeypatch, sent)
        assert [commit.applied for commit in await offer(streams, **pair)] == [True, True]
        monkeypatch.undo()
        assert [len(pairs) for pairs in await world.commits()] == [1, 1]

    run(scenario())


def test_commit_to_two_streams_sent_again_in_an_outage_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams(Outcome.LOST_REPLY, Outcome.UNAVAILABLE)
        lagging_heads(monkeypatch, 2)
        with pytest.raises(OutcomeUnknownError, match="in all of them"):
            await offer(streams, sink_id=None, transaction_id=None)

    run(scenario())


def test_rows_of_all_streams_are_there_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream is deleted between reading and writing: the other gets nothing."""

    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams()
        await world.calm.delete("b")
        with pytest.raises(NoSuchStreamError, match="'b'"):
            await offer(streams)
        await world.calm.create("b", SCHEMA)
        with pytest.raises(NoSuchStreamError, match="'b'"):
            await offer(streams)
        assert await world.commits() == [[], []]

    run(scenario())


@pytest.fixture(autouse=True)
def rivals_are_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause before a next attempt is as long as it may be. One of nearly nothing, one time in
    two hundred, ends before a rival has done anything."""
    monkeypatch.setattr(random.Random, "uniform", lambda _self, _low, high: high)


async def _after_transactions(
    faults: Faults, count: int, work: Callable[[], Awaitable[Any]]
) -> None:
    while faults.count("transaction") < count:
        await asyncio.sleep(0)
    await work()


@pytest.mark.parametrize("rival_of", [0, 1])
def test_lost_request_and_a_number_that_is_taken_in_one_stream_is_sent_again(rival_of: int) -> None:
    async def scenario() -> None:
        world = World()
        streams, faults = await world.streams(Outcome.LOST_REQUEST)
        rival = await world.calm.open("ab"[rival_of])

        async def take() -> None:
            await rival.commit_segments([loose(9, ledger_id=9)])

        _, commits = await asyncio.gather(_after_transactions(faults, 1, take), offer(streams))
        assert all(commit.applied for commit in commits)
        found = await world.commits()
        assert [pairs.count(("q", 7)) for pairs in found] == [1, 1]
        assert [len(pairs) for pairs in found] == [2 - rival_of, 1 + rival_of]

    run(scenario())


def test_lost_reply_is_found_out_though_one_stream_is_deleted_behind_it() -> None:
    async def scenario() -> None:
        world = World()
        streams, faults = await world.streams(Outcome.LOST_REPLY)
        _, commits = await asyncio.gather(
            _after_transactions(faults, 1, lambda: world.calm.delete("b")), offer(streams)
        )
        assert [commit.applied for commit in commits] == [True, True]

    run(scenario())


@pytest.mark.parametrize("lagging", ["a", "ab"])
def test_lost_reply_of_a_stream_deleted_behind_it_and_an_old_head_is_found_out(
    monkeypatch: pytest.MonkeyPatch, lagging: str
) -> None:
    """The other stream seems to be as before: what it says then is of no moment."""

    async def scenario() -> None:
        world = World()
        streams, faults = await world.streams(Outcome.LOST_REPLY)
        lagging_heads(monkeypatch, 2, *lagging)
        prepare = committer.Attempt.prepare
        deletion: list[asyncio.Task[None]] = []

        async def behind_the_deletion(self: committer.Attempt) -> Any:
            if faults.count("transaction"):
                deletion[:] = deletion or [asyncio.create_task(world.calm.delete("b"))]
                await deletion[0]
            return await prepare(self)

        monkeypatch.setattr(committer.Attempt, "prepare", behind_the_deletion)
        commits = await offer(streams, sink_id=None, transaction_id=None)
        assert [commit.applied for commit in commits] == [True, True]

    run(scenario())


def test_lost_request_is_known_to_have_failed_once_one_number_is_taken() -> None:
    async def scenario() -> None:
        world = World()
        streams, faults = await world.streams(Outcome.LOST_REQUEST, Outcome.UNAVAILABLE)
        rival = await world.calm.open("a")
        gathered = asyncio.gather(
            _after_transactions(faults, 1, lambda: rival.commit_segments([loose(ledger_id=9)])),
            offer(streams),
            return_exceptions=True,
        )
        _, error = await gathered
        assert isinstance(error, MetadataUnavailableError), "nothing was committed, for sure"

    run(scenario())


def test_lost_request_of_a_stream_that_is_deleted_commits_nothing() -> None:
    async def scenario() -> None:
        world = World()
        streams, faults = await world.streams(Outcome.LOST_REQUEST)
        gather = asyncio.gather(
            _after_transactions(faults, 1, lambda: world.calm.delete("b")),
            offer(streams),
            return_exceptions=True,
        )
        _, error = await gather
        assert isinstance(error, NoSuchStreamError)
        await world.calm.create("b", SCHEMA)
        assert await world.commits() == [[], []]

    run(scenario())


@pytest.mark.parametrize(
    "error",
    [
        MetadataUnavailableError("away"),
        LedgerClosedError("the client was closed"),
        ConfigurationError("another store"),
    ],
)
def test_store_that_is_away_behind_the_transaction_leaves_the_outcome_unknown(
    error: LedgerError,
) -> None:
    async def scenario() -> None:
        world = World()
        streams, faults = await world.streams(Outcome.LOST_REPLY)

        def away(name: str, path: str) -> Any:
            fault = faults(name, path)
            if name != "transaction" and faults.count("transaction"):
                raise error
            return fault

        _, catalog = another(world.ledgers, away)
        with pytest.raises(OutcomeUnknownError, match=r"streams 'a', 'b'.*in all of them"):
            await offer([await catalog.open(name) for name in "ab"])
        assert [c.applied for c in await offer(streams)] == [False, False]

    run(scenario())


@pytest.mark.parametrize("number", [6, 7])
def test_transaction_that_one_stream_has_and_the_other_has_not_is_refused(number: int) -> None:
    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams()
        await streams[0].commit_segments([loose(1)], **PAIR)
        with pytest.raises(ConflictError, match=f"transaction {number}"):
            await offer(streams, transaction_id=number)
        assert await world.commits() == [[("q", 7)], []]
        await offer(streams, transaction_id=8)
        assert await world.commits() == [[("q", 7), ("q", 8)], [("q", 8)]]

    run(scenario())


def test_two_processes_with_one_pair_append_it_once() -> None:
    async def scenario() -> None:
        world = World()
        one, _ = await world.streams()
        two, _ = await world.streams()
        found = await asyncio.gather(*(offer(each) for each in (one, two, one, two)))
        applied = [[commit.applied for commit in commits] for commits in found]
        assert sorted(applied) == [[False, False]] * 3 + [[True, True]]
        assert await world.commits() == ONCE

    run(scenario())


def test_processes_that_share_some_streams_all_commit() -> None:
    async def scenario() -> None:
        world = World()
        one, _ = await world.streams()
        two, _ = await world.streams()
        jobs: list[Awaitable[list[Commit]]] = []
        for n in range(4):
            jobs.append(offer(one, sink_id=f"one{n}"))
            jobs.append(offer(two[::-1], sink_id=f"two{n}"))
            jobs.append(offer(two[:1], sink_id=f"a{n}"))
        await asyncio.gather(*jobs)
        assert [len(pairs) for pairs in await world.commits()] == [12, 8]

    run(scenario())


def test_more_streams_than_a_transaction_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams()
        many = streams * (STREAMS_PER_COMMIT_MAX // 2) + streams[:1]
        with pytest.raises(ConfigurationError, match="one transaction takes 100 at most"):
            await offer(many)
        monkeypatch.setattr(together, "TRANSACTION_BYTES_MAX", 500)
        with pytest.raises(ConfigurationError, match="commit to fewer streams at once"):
            await offer(streams)
        assert await world.commits() == [[], []]

    run(scenario())


def test_long_lists_share_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits a transaction alone goes into a ledger where the streams share it."""

    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams()
        segments = [loose(n, ledger_id=9, first_entry=n) for n in range(1, 40)]
        alone = 3 * len(codec.encode_segment_list(tuple(segments))) // 2
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", alone)
        monkeypatch.setattr(committer, "SEGMENT_LISTS_BYTES_MAX", alone)
        made = len(world.ledgers.ledgers)
        await commit_to([(stream, segments) for stream in streams], **PAIR)
        assert len(world.ledgers.ledgers) == made + 2
        assert [c.rows for c in await offer(streams)] == [780, 780]

    run(scenario())


@pytest.mark.parametrize("lagging", ["-", "a", "b"])
def test_long_lists_of_a_commit_whose_reply_was_lost_stay(
    monkeypatch: pytest.MonkeyPatch, lagging: str
) -> None:
    """One stream says that the commit was made, and the other is read from a server that lags: its
    list is named all the same, and would be missed."""

    async def scenario() -> None:
        world = World()
        streams, _ = await world.streams(Outcome.LOST_REPLY)
        segments = [loose(n, ledger_id=9, first_entry=n) for n in range(1, 40)]
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)
        lagging_heads(monkeypatch, 2, lagging)
        commits = await commit_to([(stream, segments) for stream in streams])
        assert [commit.applied for commit in commits] == [True, True]
        monkeypatch.undo()
        _, fresh = another(world.ledgers)
        for name in "ab":
            assert (await (await fresh.open(name)).commit(0)).rows == 780

    run(scenario())


def test_append_to_writes_all_streams_and_keeps_their_ledgers() -> None:
    async def scenario() -> None:
        world = World()
        await world.streams()
        appended = AppendedStreams(world.calm)
        rows = {"a": table(0, 2), "b": table(10, 1)}
        commits = await appended.append_to(rows, **PAIR)
        assert {name: commit.rows for name, commit in commits.items()} == {"a": 2, "b": 1}
        ledgers = len(world.ledgers.ledgers)
        again = await appended.append_to(rows, **PAIR)
        assert [commit.applied for commit in again.values()] == [False, False]
        await appended.append_to({"a": table(2, 1), "b": table(11, 1)})
        assert len(world.ledgers.ledgers) == ledgers
        assert await numbers((await world.calm.open("a")).read()) == [0, 1, 2]
        await world.calm.delete("b")
        with pytest.raises(NoSuchStreamError, match="'b'"):
            await appended.append_to({"a": table(3, 1), "b": table(12, 1)})
        await world.calm.create("b", SCHEMA)
        await appended.append_to({"a": table(3, 1), "b": table(12, 1)})
        assert await numbers((await world.calm.open("b")).read()) == [12]
        assert await appended.append_to({}) == {}
        await appended.close()

    run(scenario())


def test_new_columns_of_several_streams_come_with_their_commit() -> None:
    async def scenario() -> None:
        world = World()
        await world.streams()
        appended = AppendedStreams(world.calm)
        wider = table(0, 1).append_column("more", table(5, 1).column("n"))
        await appended.append_to({"a": wider, "b": table(1, 1)}, merge_schema=True)
        assert [(await world.calm.open(n)).schema.names for n in "ab"] == [
            ["n", "text", "more"],
            ["n", "text"],
        ]
        await appended.close()

    run(scenario())


@pytest.mark.parametrize("rows", [0, 1])
def test_columns_of_data_in_memory_are_added_to_each_stream_only_if_that_is_wanted(
    rows: int,
) -> None:
    async def scenario() -> None:
        world = World()
        await world.streams()
        appended = AppendedStreams(world.calm)
        columns = {
            name: table(0, rows).append_column(name, pa.array([5] * rows, pa.int64()))
            for name in "ab"
        }
        columns["b"] = table(1, rows).append_column("other", pa.array(["x"] * rows, pa.string()))
        with suppress(SchemaMismatchError):
            await appended.append_to(columns)
        assert [(await world.calm.open(n)).schema.names for n in "ab"] == [["n", "text"]] * 2
        await appended.append_to(columns, merge_schema=True)
        assert [(await world.calm.open(n)).schema.names for n in "ab"] == [
            ["n", "text", "a"],
            ["n", "text", "other"],
        ]
        await appended.close()

    run(scenario())


def test_long_lists_of_a_lost_request_go_once_one_stream_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The transaction cannot take effect any more, in any of them."""

    async def scenario() -> None:
        world = World()
        streams, faults = await world.streams(Outcome.LOST_REQUEST)
        segments = [loose(n, ledger_id=9, first_entry=n) for n in range(1, 40)]
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

        async def delete() -> None:
            while not faults.count("transaction"):
                await asyncio.sleep(0)
            await world.calm.delete("b")

        commit = commit_to([(stream, segments) for stream in streams], **PAIR)
        found = await asyncio.gather(commit, delete(), return_exceptions=True)
        assert isinstance(found[0], NoSuchStreamError)
        assert len(world.ledgers.writers) == 2 and world.ledgers.ledgers == {}
        assert (await (await world.calm.open("a")).head()).next_commit == 0

    run(scenario())
