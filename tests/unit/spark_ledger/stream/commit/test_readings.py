"""What a commit reads: nothing where its writer is alone, and all where somebody else was there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_ledger.errors import ConflictError, NoSuchStreamError
from spark_ledger.metadata.base import Operation
from spark_ledger.metadata.memory import MemoryMetadataStore, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.model import Commit, Head
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "COMMIT_TIMEOUT_S", 1.0)


class Writers:
    """One that is looked at (``mine``), and another process."""

    def __init__(self, mine: Stream, theirs: Stream, asked: Faults) -> None:
        self.mine = mine
        self.theirs = theirs
        self.asked = asked
        self._next = 0

    async def commit(self, sink: str = "q", transaction: int | None = None) -> Commit:
        """A commit of mine; without a number its next transaction."""
        number = self._next if transaction is None else transaction
        self._next = max(self._next, number + 1)
        segments = [loose(number + 1)]
        return await self.mine.commit_segments(segments, sink_id=sink, transaction_id=number)

    async def numbers(self) -> list[int]:
        """The transactions in the order of their commits."""
        end = (await self.theirs.head()).next_commit
        return [commit.transaction_id for commit in await self.theirs.commits(0, end)]

    def since(self) -> tuple[int, int]:
        """How many nodes were read, and how many transactions sent, since the last time."""
        found = self.asked.count("get"), self.asked.count("transaction")
        self.asked.calls.clear()
        return found


async def writers(commits: int = 2, outcomes: tuple[Outcome, ...] = ()) -> Writers:
    """``mine`` has made so many commits, all others behind the second without reading."""
    ledgers = FakeLedgers()
    theirs = await StreamCatalog(ledgers).create("s", SCHEMA)
    asked = Faults(outcomes)
    _, streams = another(ledgers, asked)
    made = Writers(await streams.open("s"), theirs, asked)
    for _ in range(commits):
        await made.commit()
    asked.calls.clear()
    return made


def test_commit_of_a_writer_that_is_alone_reads_nothing() -> None:
    async def scenario() -> None:
        two = await writers()
        for _ in range(3):
            await two.commit()
            assert two.since() == (0, 1)
        await two.commit(sink="another", transaction=9)
        assert two.since() == (2, 1)
        assert await two.numbers() == [0, 1, 2, 3, 4, 9]

    run(scenario())


def test_appends_without_a_sink_read_nothing_either() -> None:
    async def scenario() -> None:
        two = await writers()
        for _ in range(3):
            await two.mine.commit_segments([loose(1)])
            assert two.since() == (0, 1)
        assert (await two.theirs.head()).rows == 1 + 2 + 3

    run(scenario())


def test_commit_behind_that_of_another_writer_is_decided_anew() -> None:
    async def scenario() -> None:
        two = await writers(4)
        for number in range(100, 110):
            await two.theirs.commit_segments([loose(1)], sink_id="p", transaction_id=number)
            await two.commit()
        reads, sent = two.since()
        assert sent == 10 + 1, "only the first was sent in vain: after that nothing is expected"
        assert reads >= 20
        theirs_and_mine = [n for k in range(10) for n in (100 + k, 4 + k)]
        assert await two.numbers() == [*range(4), *theirs_and_mine]
        head = await two.theirs.head()
        assert head.rows == sum(range(1, 15)) + 10

    run(scenario())


def test_pair_that_another_process_applied_is_found_although_none_was_expected() -> None:
    async def scenario() -> None:
        two = await writers(3)
        first = await two.theirs.commit_segments([loose(7)], sink_id="q", transaction_id=3)
        again = await two.commit()
        assert (again.applied, again.rows) == (False, 7)
        assert again == first
        assert await two.numbers() == [0, 1, 2, 3]
        await two.theirs.commit_segments([loose(7)], sink_id="q", transaction_id=5)
        with pytest.raises(ConflictError, match="slower driver"):
            await two.commit(transaction=4)

    run(scenario())


def test_pair_of_before_is_looked_up_and_not_remembered() -> None:
    async def scenario() -> None:
        two = await writers(3)
        assert not (await two.commit(transaction=2)).applied
        assert two.since()[0] >= 2
        with pytest.raises(ConflictError):
            await two.commit(transaction=1)
        assert two.since()[0] >= 2

    run(scenario())


@pytest.mark.parametrize("transaction", [2, 3])
def test_stream_that_is_made_again_gets_no_commit(transaction: int) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        await streams.create("s", SCHEMA)
        mine = await another(ledgers)[1].open("s")
        for number in range(3):
            await mine.commit_segments([loose(1)], sink_id="q", transaction_id=number)
        await streams.delete("s")
        made_again = await streams.create("s", SCHEMA)
        with pytest.raises(NoSuchStreamError):
            await mine.commit_segments([loose(1)], sink_id="q", transaction_id=transaction)
        assert (await made_again.head()).next_commit == 0

    run(scenario())


def test_new_connection_reads_as_the_store_may_have_been_restored() -> None:
    async def scenario() -> None:
        two = await writers(3)
        store = two.mine._nodes.store
        assert isinstance(store, MemoryMetadataStore)
        store.reconnect()
        await two.commit()
        assert two.since() == (4, 1)  # head, record, configuration, and the commit that it saw
        await two.commit()
        assert two.since() == (0, 1)

    run(scenario())


@pytest.mark.parametrize("lost", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_lost_transaction_of_a_writer_that_is_alone_is_looked_up(lost: Outcome) -> None:
    async def scenario() -> None:
        two = await writers(3)
        two.asked.outcomes = [lost]
        assert (await two.commit()).applied
        assert two.since()[0] >= 2
        await two.commit()
        assert await two.numbers() == [0, 1, 2, 3, 4]

    run(scenario())


def test_sinks_of_one_process_that_take_turns_are_decided_by_their_own_records() -> None:
    async def scenario() -> None:
        made = await writers(commits=3)
        for transaction in (10, 20):
            await made.commit("q", transaction)
            assert (await made.commit("p", transaction - 8)).applied
            await made.mine.commit_segments([loose()])
            assert (await made.commit("p", transaction - 4)).applied
            with pytest.raises(ConflictError):
                await made.commit("q", transaction - 1)
            assert not (await made.commit("p", transaction - 4)).applied
        assert [n for n in (await made.numbers())[3:] if n] == [10, 2, 6, 20, 12, 16]
        for sink, last in (("q", 20), ("p", 16)):
            record = await made.theirs.last_transaction(sink)
            assert record is not None and record.transaction_id == last

    run(scenario())


def test_reading_that_a_new_connection_overtakes_is_of_the_one_before() -> None:
    """The store may have been restored between the answer and now."""

    async def scenario() -> None:
        made = await writers()
        readings, store = made.mine._committer.readings, made.mine._nodes.store
        assert isinstance(store, MemoryMetadataStore)
        read, before = made.mine._watch.heads.read, store.connections

        async def overtaken(*, latest: bool = False) -> Versioned[Head]:
            found = await read(latest=latest)
            store.reconnect()
            return found

        made.mine._watch.heads.read = overtaken  # type: ignore[method-assign]
        reading = await readings.of(Proposal((), "q", 9), latest=True)
        assert reading.over.has_ended and store.connections == before + 1

    run(scenario())


def test_commit_during_which_the_connection_is_a_new_one_is_not_expected_to_stand() -> None:
    """It was made over the one before: the next commit reads."""

    async def scenario() -> None:
        made = await writers(3)
        store = made.mine._nodes.store
        assert isinstance(store, MemoryMetadataStore)
        send = store.transaction

        async def overtaken(operations: Sequence[Operation]) -> None:
            await send(operations)
            store.reconnect()

        store.transaction = overtaken  # type: ignore[method-assign]
        await made.commit()
        store.transaction = send  # type: ignore[method-assign]
        made.since()
        await made.commit()
        assert made.since() == (4, 1)

    run(scenario())
