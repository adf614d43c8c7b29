"""The end of a stream over every metadata store: truncation, limits and holds, while requests and
replies are lost and connections break. What was asked for is done, once, and readers see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from spark_ledger.errors import ConflictError, DataLossError, OutcomeUnknownError
from spark_ledger.metadata.base import MetadataStore, Operation
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.memory import MemoryTree
from spark_ledger.metadata.uri import parse_uri
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Dlsn
from tests.integration.relay import Lose, Relay
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, loose

KINDS = [Lose.REQUEST, Lose.REPLY]


class Lossy:
    """A session, of which transactions are lost on the way there or back when told to."""

    def __init__(self, store: MetadataStore, relay: Relay | None) -> None:
        self._store = store
        self._relay = relay
        self.lose: Lose = Lose.NOTHING
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """What another does once before the next transaction."""
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            await act()
        kind, self.lose = self.lose, Lose.NOTHING
        if kind is Lose.NOTHING:
            return await self._store.transaction(operations)
        self.lost += 1
        if self._relay is not None:
            self._relay.lose_next(kind)
            return await self._store.transaction(operations)
        if kind is Lose.REPLY:
            await self._store.transaction(operations)
        raise OutcomeUnknownError("the connection broke")


class Sessions(list[Lossy]):
    """One that loses, and one that does not, with a handle of one stream each."""

    def __init__(self, lossy: Lossy, calm: Lossy) -> None:
        super().__init__([lossy, calm])
        shared = FakeLedgers()
        self._ledgers = [FakeLedgers(each) for each in self]  # type: ignore[arg-type]
        for ledgers in self._ledgers:
            ledgers.ledgers, ledgers.writers = shared.ledgers, shared.writers

    async def streams(self, commits: int) -> tuple[Stream, Stream]:
        lossy, calm = (StreamCatalog(ledgers) for ledgers in self._ledgers)
        stream = await calm.create("s", SCHEMA)
        for _ in range(commits):
            await stream.commit_segments([loose(1)])
        return await lossy.open("s"), stream


@pytest.fixture(
    params=[
        "memory",
        pytest.param("zookeeper", marks=[pytest.mark.processes, pytest.mark.proof]),
    ]
)
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Sessions], Awaitable[None]]], None]:
    uri = request.getfixturevalue("metadata_uri") if request.param == "zookeeper" else ""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Sessions]:
        if not uri:
            tree = MemoryTree()
            yield Sessions(Lossy(tree.open_session(), None), Lossy(tree.open_session(), None))
            return
        address = parse_uri(uri)
        async with Relay(int(address.hosts.rpartition(":")[2])) as relay:
            lossy = await open_store(f"zk://127.0.0.1:{relay.port}{address.root}")
            calm = await open_store(uri)
            try:
                yield Sessions(Lossy(lossy, relay), Lossy(calm, None))
            finally:
                relay.pass_all()
                await asyncio.gather(lossy.close(), calm.close())

    def run_scenario(scenario: Callable[[Sessions], Awaitable[None]]) -> None:
        async def main() -> None:
            async with opened() as sessions, asyncio.timeout(60):
                await scenario(sessions)

        asyncio.run(main())

    return run_scenario


Run = Callable[[Callable[[Sessions], Awaitable[None]]], None]


@pytest.mark.parametrize("kind", KINDS)
def test_each_change_is_made_though_its_message_is_lost(run: Run, kind: Lose) -> None:
    async def scenario(sessions: Sessions) -> None:
        lossy = sessions[0]
        ours, theirs = await sessions.streams(8)

        lossy.lose = kind
        assert await ours.retention.truncate((2,)) == Dlsn(2)
        assert (await theirs.head()).earliest_commit == 2
        lossy.lose = kind
        await ours.retention.set_limits(Retention(rows=3))
        assert await theirs.retention.limits() == Retention(rows=3)
        lossy.lose = kind
        hold = await ours.retention.hold("slow", (4,), for_s=3600.0)
        assert await theirs.retention.holds() == [hold] and hold.commit == 4
        lossy.lose = kind
        assert await ours.retention.apply(hold.made_ms) == 2
        assert (await theirs.head()).earliest_commit == 4
        with pytest.raises(ConflictError, match="slow"):
            await theirs.retention.truncate((5,))
        lossy.lose = kind
        assert await ours.retention.release_void(hold.made_ms) == []
        over = await ours.retention.release_void(hold.expires_ms + 1)
        assert over in ([], [hold])
        lossy.lose = kind
        await ours.retention.release("slow")
        assert await theirs.retention.holds() == []
        lossy.lose = kind
        assert await ours.retention.apply(hold.made_ms) == 1
        assert (await theirs.head()).earliest_commit == 5
        assert lossy.lost >= 5, "messages were lost"
        assert (await ours.head()).earliest == Dlsn(5), "it reads after each reconnect"

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_hold_in_doubt_and_truncation_of_another_are_one_after_the_other(
    run: Run, kind: Lose
) -> None:
    async def scenario(sessions: Sessions) -> None:
        lossy = sessions[0]
        ours, theirs = await sessions.streams(6)
        await theirs.retention.hold("first", for_s=3600.0)  # the stream has a node of holds
        await theirs.retention.release("first")
        lossy.lose, lossy.meanwhile = kind, lambda: theirs.retention.truncate((3,))
        with pytest.raises(DataLossError, match="cannot be held"):
            await ours.retention.hold("late", (1,), for_s=3600.0)
        assert await theirs.retention.holds() == []
        assert await theirs.retention.truncate((4,)) == Dlsn(4), "nothing holds it"

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_in_doubt_gives_way_to_the_hold_of_another(run: Run, kind: Lose) -> None:
    async def scenario(sessions: Sessions) -> None:
        lossy = sessions[0]
        ours, theirs = await sessions.streams(6)
        await theirs.retention.set_limits(Retention(rows=100))
        await ours.refresh()
        lossy.lose = kind
        lossy.meanwhile = lambda: theirs.retention.hold("first", (1,), for_s=3600.0)
        with pytest.raises(ConflictError, match="first"):
            await ours.retention.truncate((3,))
        assert (await theirs.head()).earliest_commit == 0, "the hold was first"

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_commit_beside_a_truncation_in_doubt_is_there_once(run: Run, kind: Lose) -> None:
    async def scenario(sessions: Sessions) -> None:
        lossy = sessions[0]
        ours, theirs = await sessions.streams(4)
        lossy.lose = kind
        lossy.meanwhile = lambda: theirs.commit_segments([loose(1)], sink_id="q", transaction_id=7)
        assert await ours.retention.truncate("latest") in (Dlsn(4), Dlsn(5))
        head = await theirs.head()
        assert head.next_commit == 5 and head.earliest_commit in (4, 5)
        again = await theirs.commit_segments([loose(1)], sink_id="q", transaction_id=7)
        assert not again.applied and (await theirs.head()).next_commit == 5

    run(scenario)
