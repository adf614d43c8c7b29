"""Duties that come back: of keepers for streams, of optimizers, and of those who check, drain and
even out copies. Whatever one turn has met, the next one does the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import NotFoundError
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import ELECTED_PATH, ask_for_audit, read_audit
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.codec import encode_ledger
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.unsettled import OPEN_PATH, UNNAMED_PATH, id_path
from spark_ledger.repair.checker import Checker, CheckerConfig
from spark_ledger.repair.closed import ClosedCheck
from spark_ledger.repair.decommission import drain
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.rebalance import Rebalance, RebalanceConfig
from spark_ledger.repair.status import look
from spark_ledger.repair.worker import Worker, WorkerConfig
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention, Segment
from spark_ledger.stream.stream import Stream
from spark_ledger.types import BookieId, BookieInfo, LedgerId
from tests.unit.spark_ledger.repair.world import contents, lacking
from tests.unit.sweeps.base import Operation
from tests.unit.sweeps.streams import SCHEMA, rows, rows_of

_KEEPER: Final = KeeperConfig(
    owner_grace_s=0.0,
    unnamed_grace_s=0.0,
    dropped_grace_s=0.0,
    replaced_grace_s=0.0,
    dropped_least_s=0.0,
    recoveries_per_s=1e6,
    deletes_per_s=1e6,
)
_WORKER: Final = WorkerConfig(bytes_per_s=1e12, source_bytes_per_s=1e12, at_once=1)
_CHECKER: Final = CheckerConfig(members_per_s=1e6)
_REBALANCE: Final = RebalanceConfig(bytes_per_s=1e12, source_bytes_per_s=1e12, reads_per_s=1e6)


async def _at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


async def of_a_task(stream: Stream, *numbers: int) -> list[Segment]:
    """Rows in a ledger of their own, which is closed."""
    writer = stream.writer()
    await writer.write(rows(*numbers))
    segments = await writer.finish()
    await writer.close()
    return segments


class OfAKeeper(Operation):
    """Something that an elected keeper does for the stream ``s``, whose commits have a row each."""

    commits = 4

    async def prepare(self, client: LedgerClient) -> None:
        self.healthy = await StreamCatalog(client).create("s", SCHEMA)
        for number in range(self.commits):
            await self.healthy.commit_segments(await of_a_task(self.healthy, number))

    async def meanwhile(self, client: LedgerClient) -> None:
        await self.healthy.commit_segments(await of_a_task(self.healthy, self.commits))

    async def act(self, client: LedgerClient) -> Any:
        keeper = Keeper(client, _KEEPER)
        try:
            if not await keeper.elect():
                return "not elected"
            await self.turn(keeper)
            return "done"
        finally:
            await keeper._election.resign()

    async def turn(self, keeper: Keeper) -> None:
        """What the keeper does."""

    async def overtake(self, client: LedgerClient) -> None:
        """The session of the keeper is lost, and another one elected, unnoticed."""
        with contextlib.suppress(NotFoundError):
            await client.store.delete(ELECTED_PATH)
        keeper = Keeper(client, _KEEPER)
        assert await keeper.elect()
        await self.turn(keeper)
        await keeper._election.resign()

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.client.close()  # a keeper that could not resign goes with its session
        before = self.commits + 1
        commit = await self.healthy.commit_segments(await of_a_task(self.healthy, before))
        assert commit.number == before, "nobody keeps others from committing"
        keeper = Keeper(client, _KEEPER)
        assert await keeper.elect()
        for _ in range(2):
            await self.turn(keeper)
        await keeper._election.resign()
        config = await self.healthy.refresh()
        assert config.dropping == (), "no list is left behind (rule T17)"
        await self.healthy.close()

    async def ledgers(self) -> set[int]:
        """Those of streams that the metadata name."""
        store = LedgerStore(MemoryMetadataStore(self.world.tree))
        found = [(await store.read(each)).value for each in await store.list()]
        return {int(each.ledger_id) for each in found if each.custom_metadata}


class SweepAStream(OfAKeeper):
    """Rows beyond the retention are dropped, their ledgers deleted, a hold that is over goes."""

    async def prepare(self, client: LedgerClient) -> None:
        await super().prepare(client)
        await self.healthy.retention.hold("over", for_s=60.0, size_bytes_max=1)
        await self.healthy.retention.set_limits(Retention(rows=2))

    async def turn(self, keeper: Keeper) -> None:
        await keeper._stream_keeper.sweep()

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await super().check(client, outcome)
        assert await rows_of(self.healthy) == [4, 5]
        assert await self.healthy.retention.holds() == []
        root = await self.healthy._log.manifests.read_root(latest=True)
        assert root.dropped == (await self.healthy.head()).earliest_commit == 4
        live = {
            segment.ledger_id
            for commit in await self.healthy.commits(4, 6)
            for segment in commit.segments
        }
        assert await self.ledgers() == live
        await self.healthy.close()


class AuditLedgers(OfAKeeper):
    """A ledger that no index lists and nothing names is deleted, and no other."""

    commits = 2

    async def prepare(self, client: LedgerClient) -> None:
        await super().prepare(client)
        (self.lost,) = await of_a_task(self.healthy, 7)
        store = client.store
        before = await LedgerStore(store).read(self.lost.ledger_id)
        data = encode_ledger(before.value.with_changes(owner=""))
        await store.put(ledger_path(self.lost.ledger_id), data, before.version)
        for root in (OPEN_PATH, UNNAMED_PATH):
            try:
                await store.delete(id_path(root, self.lost.ledger_id))
            except NotFoundError:
                continue

    async def turn(self, keeper: Keeper) -> None:
        await keeper._stream_keeper.sweep()  # takes back the list of an audit that was cut off
        for _ in range(2):
            await ask_for_audit(keeper._store)
            while True:
                await keeper._audit.go_on(may_begin=True)
                state = await read_audit(keeper._store)
                if state is None or state.value.begun_s is None:
                    break

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await super().check(client, outcome)
        assert await rows_of(self.healthy) == [0, 1, 2, 3]
        named = {
            segment.ledger_id
            for commit in await self.healthy.commits(0, 4)
            for segment in commit.segments
        }
        assert await self.ledgers() == named
        state = await read_audit(client.store)
        assert state is not None and state.value.deleted <= 1
        await self.healthy.close()


class OptimizeAStream(OfAKeeper):
    """Small commits are packed; then a keeper frees what they were in."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asyncio, "to_thread", _at_once)  # threads know no virtual time

    async def act(self, client: LedgerClient) -> Any:
        stream = await StreamCatalog(client).open("s")
        try:
            await stream.optimizer.run_all(entries_min=1)
            return "done"
        finally:
            await stream.close()

    async def turn(self, keeper: Keeper) -> None:
        await self.healthy.optimizer.run_all(entries_min=1)
        keeper._passes = 0  # a whole sweep
        await keeper.run_pass()  # and the ledger of a pack that was not named goes

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await super().check(client, outcome)
        assert await rows_of(self.healthy) == [0, 1, 2, 3, 4, 5]
        packs = (await self.healthy.retention.packs()).packs
        assert [n for pack in packs for n in range(pack.first, pack.end)] == list(range(6))
        assert await self.ledgers() == {pack.ledger_id for pack in packs}
        await self.healthy.close()


class LimitAStream(OfAKeeper):
    """A hold is taken and another one released, limits are set, and the stream truncated."""

    async def prepare(self, client: LedgerClient) -> None:
        await super().prepare(client)
        await self.healthy.retention.hold("former", (1,), for_s=3600.0)

    async def act(self, client: LedgerClient) -> Any:
        stream = await StreamCatalog(client).open("s")
        try:
            assert await stream.retention.release("former"), "it was there"
            await stream.retention.hold("mine", (2,), for_s=3600.0)
            await stream.retention.set_limits(Retention(rows=100))
            return tuple(await stream.retention.truncate((2,)))
        finally:
            await stream.close()

    async def turn(self, keeper: Keeper) -> None:
        await keeper._stream_keeper.sweep()

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        earliest = (await self.healthy.head()).earliest_commit
        names = [hold.name for hold in await self.healthy.retention.holds()]
        if isinstance(outcome, tuple):
            assert (outcome, earliest, names) == ((2, 0, 0), 2, ["mine"])
            assert await self.healthy.retention.limits() == Retention(rows=100)
        assert earliest in (0, 2) and names in (["former"], [], ["mine"])
        await super().check(client, outcome)
        assert await rows_of(self.healthy) == list(range(earliest, 6))
        await self.healthy.retention.hold("mine", (2,), for_s=3600.0)
        assert "mine" in [hold.name for hold in await self.healthy.retention.holds()]
        await self.healthy.close()


class CheckCopies(Operation):
    """A hole is found in a ledger that was closed, and filled."""

    bookies = 4

    async def prepare(self, client: LedgerClient) -> None:
        writer = await client.create_ledger()
        for number in range(3):
            await writer.append(b"%d" % number)
        await writer.close()
        self.ledger_id = LedgerId(writer.ledger_id)
        name = writer.metadata.fragments[0].bookies[0]
        self.world.bookies[name].ledgers[self.ledger_id].entries.pop(1)

    async def act(self, client: LedgerClient) -> Any:
        await self._turn(client)
        return "done"

    async def _turn(self, client: LedgerClient) -> None:
        checker = Checker(client, _CHECKER)
        await ClosedCheck(client, checker, _CHECKER).run_pass()
        await Worker(client, _WORKER).run_pass()

    async def overtake(self, client: LedgerClient) -> None:
        await self._turn(client)

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.client.close()
        await Worker(client, _WORKER).run_pass()  # what was found is marked, or not passed over
        await self._turn(client)
        assert await lacking(self.world, client, self.ledger_id) == []
        assert await contents(client, self.ledger_id) == [b"0", b"1", b"2"]
        assert not (await look(client.store)).marked


class DrainABookie(Operation):
    """All copies leave a bookie, which is named by nothing then."""

    bookies = 4

    async def prepare(self, client: LedgerClient) -> None:
        registry = BookieRegistry(client.store)
        for bookie_id in self.world.bookies:
            await registry.create_cookie(bookie_id, b"{}")
        writer = await client.create_ledger()
        for number in range(3):
            await writer.append(b"%d" % number)
        await writer.close()
        self.ledger_id = writer.ledger_id
        self.left = writer.metadata.fragments[0].bookies[0]

    async def act(self, client: LedgerClient) -> Any:
        await drain(client, self.left, _WORKER, told=lambda _: None)
        return "done"

    async def overtake(self, client: LedgerClient) -> None:
        await Worker(client, _WORKER).run_pass()

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.client.close()
        names = all_names(await client.ledger_metadata(self.ledger_id))
        assert outcome != "done" or self.left not in names
        assert await lacking(self.world, client, self.ledger_id) == [], "who is named holds all"
        await drain(client, self.left, _WORKER, told=lambda _: None)
        assert self.left not in all_names(await client.ledger_metadata(self.ledger_id))
        assert await lacking(self.world, client, self.ledger_id) == []
        assert await contents(client, self.ledger_id) == [b"0", b"1", b"2"]
        await Worker(client, _WORKER).run_pass()  # of a member that did not answer meanwhile
        assert not (await look(client.store)).marked


class EvenOutCopies(Operation):
    """Copies move to a bookie that is new."""

    bookies = 4
    new: Final = BookieId("b3")

    async def prepare(self, client: LedgerClient) -> None:
        await self.world._registries[self.new].deregister()
        await client.context.directory.refresh(all_again=True)
        self.made = []
        for _ in range(4):
            writer = await client.create_ledger()
            for number in range(3):
                await writer.append(b"%d" % number)
            await writer.close()
            self.made.append(writer.ledger_id)
        for bookie_id in self.world.bookies:
            await self.world._registries[bookie_id].register(
                BookieInfo(bookie_id, f"memory:{bookie_id}", free_bytes=10_000)
            )

    async def act(self, client: LedgerClient) -> Any:
        return (await Rebalance(client, _REBALANCE).run()).is_even

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.client.close()
        for ledger_id in self.made:
            assert await lacking(self.world, client, ledger_id) == [], "who is named holds all"
        result = await Rebalance(client, _REBALANCE).run()
        assert result.is_even and result.failed == {}
        assert outcome is not True or result.moves == 0, "it was done"
        for ledger_id in self.made:
            assert await lacking(self.world, client, ledger_id) == []
            assert await contents(client, ledger_id) == [b"0", b"1", b"2"]


DUTIES: Final = (
    SweepAStream,
    AuditLedgers,
    OptimizeAStream,
    LimitAStream,
    CheckCopies,
    DrainABookie,
    EvenOutCopies,
)
