"""Operations of those that go on by themselves: keepers, owners, bookies."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

from bookie_server.identity import Identity
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerError,
    NotFoundError,
)
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import ELECTED_PATH, read_state
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import read_cluster
from spark_ledger.metadata.cookies import BookieCookie, cookie_path, encode_cookie, leaving_path
from spark_ledger.metadata.owners import is_alive
from spark_ledger.repair.auditor import Auditor, AuditorConfig
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.status import look
from spark_ledger.repair.worker import Worker, WorkerConfig
from spark_ledger.types import BookieId, BookieInfo, BookieStart, LedgerState
from tests.listed import listed
from tests.unit.sweeps.base import Operation

_NEW: Final = BookieId("new")
_DIRECTORIES: Final = (Path("/j"), Path("/l0"))


class RunAKeeper(Operation):
    """A keeper ends what a dead writer has left."""

    async def prepare(self, client: LedgerClient) -> None:
        dead = await self.world.client()
        writer = await dead.create_ledger()
        await writer.append(b"0")
        self.ledger_id = writer.ledger_id
        await dead.close()

    async def meanwhile(self, client: LedgerClient) -> None:
        await (await client.create_ledger()).append(b"0")

    async def act(self, client: LedgerClient) -> Any:
        keeper = Keeper(client, KeeperConfig(owner_grace_s=0.0, recoveries_per_s=1e6))
        try:
            if not await keeper.elect():
                return "not elected"
            await keeper.run_pass()
            await keeper._save()
            return "done"
        finally:
            await keeper._election.resign()

    async def overtake(self, client: LedgerClient) -> None:
        """The session of the keeper is lost, and another one elected, unnoticed."""
        with contextlib.suppress(NotFoundError):
            await client.store.delete(ELECTED_PATH)
        await RunAKeeper.act(self, client)

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.client.close()  # a keeper that could not resign goes with its session
        metadata = await client.ledger_metadata(self.ledger_id)
        if outcome == "done" and metadata.state is not LedgerState.CLOSED:
            assert self.world.tree.children("unsettled/open"), "it is left to the next"
        keeper = Keeper(client, KeeperConfig(owner_grace_s=0.0, recoveries_per_s=1e6))
        assert await keeper.elect()
        await keeper.run_pass()
        await keeper._save()
        await keeper._election.resign()
        metadata = await client.ledger_metadata(self.ledger_id)
        assert metadata.state is LedgerState.CLOSED


class KeepAKeeper(RunAKeeper):
    """A keeper goes on, whatever one of its passes has met."""

    async def act(self, client: LedgerClient) -> Any:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(40.0, stop.set)
        keeper = Keeper(client, KeeperConfig(pass_s=4.0, owner_grace_s=0.0, recoveries_per_s=1e6))
        await keeper.run(stop)
        return "done"

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        state = await read_state(client.store)
        if outcome == "done" and not self.store._closed:
            assert state is not None and state.value.passes >= 4, "it went on"
            metadata = await client.ledger_metadata(self.ledger_id)
            assert metadata.state is LedgerState.CLOSED
        await super().check(client, None)


class KeepAnOwner(Operation):
    """A writer's owner node comes back after a lost session."""

    async def open(self, client: LedgerClient) -> None:
        self.writer = await client.create_ledger()

    async def act(self, client: LedgerClient) -> Any:
        self.store.expire()
        await asyncio.sleep(30.0)
        return "kept"

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        if outcome == "kept" and not self.store._closed:
            assert await is_alive(client.store, self.writer.metadata.owner)


class KeepABookieRegistered(Operation):
    """A bookie is registered again after a lost session, and does first what it has to do."""

    async def open(self, client: LedgerClient) -> None:
        self.done: list[int] = []

        async def at_contact() -> None:
            connection = client.store.connections
            await client.store.children("anything")
            self.done.append(connection)

        self.registry = BookieRegistry(client.store, at_contact=at_contact)
        self.info = BookieInfo(BookieId("new"), "memory:new")
        await self.registry.register(self.info)

    async def act(self, client: LedgerClient) -> Any:
        self.store.expire()
        await asyncio.sleep(60.0)
        return "kept"

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        if outcome == "kept" and not self.store._closed:
            found = await BookieRegistry(client.store).get(self.info.bookie_id)
            assert found == self.info
            assert self.registry.registered
            assert self.done[-1] == self.store.connections
        try:
            await self.registry.deregister()
        except LedgerError:
            assert self.store._closed


class StartABookie(Operation):
    """A bookie takes note of its start, once more after one before it."""

    async def prepare(self, client: LedgerClient) -> None:
        self.files = MemoryFileSystem()
        cluster_id, names = await read_cluster(client.store), tuple(map(str, _DIRECTORIES))
        self.cookie = format_directories(
            self.files, _DIRECTORIES[0], _DIRECTORIES[1:], cluster_id=cluster_id, bookie_id=_NEW
        )
        cookie = BookieCookie(cluster_id, _NEW, names[0], names[1:], "made")
        await client.store.create(cookie_path(_NEW), encode_cookie(cookie))

    async def meanwhile(self, client: LedgerClient) -> None:
        await self._start(client)

    async def _start(self, client: LedgerClient) -> Identity:
        identity = Identity(self.cookie, _DIRECTORIES, client.store, self.files)
        await identity.check()
        assert await identity.claim()
        return identity

    async def act(self, client: LedgerClient) -> Any:
        return (await self._start(client)).start

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, ConfigurationError | ConflictError), "nobody else is it"
        before = outcome.counter if isinstance(outcome, BookieStart) else 1
        after = (await self._start(client)).start
        assert after is not None and after.counter > before


class RepairALedger(Operation):
    """An auditor and a worker make the copies of a lost bookie again."""

    bookies = 4

    async def prepare(self, client: LedgerClient) -> None:
        writer = await client.create_ledger()
        for number in range(3):
            await writer.append(b"%d" % number)
        await writer.close()
        self.ledger_id = writer.ledger_id
        self.lost = writer.metadata.fragments[0].bookies[0]
        self.world.kill(self.lost)
        await client.store.create(leaving_path(self.lost), b"")

    async def act(self, client: LedgerClient) -> Any:
        await Auditor(client, AuditorConfig(lost_bookie_delay_s=0.0)).run_pass()
        await Worker(client, WorkerConfig(at_once=1)).run_pass()
        return "done"

    async def overtake(self, client: LedgerClient) -> None:
        await self.act(client)

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.client.close()  # what it had locked goes with its session
        found = await look(client.store)
        ledger = await client.ledger_metadata(self.ledger_id)
        for bookie_id in all_names(ledger) - {self.lost}:
            held = listed(self.world.bookies[bookie_id], self.ledger_id)
            assert held == [(0, 2)], "who is named holds all"
        if outcome == "done" and self.lost in all_names(ledger):
            assert found.marked, "it is left to the next"
        await Auditor(client, AuditorConfig(lost_bookie_delay_s=0.0)).run_pass()
        await Worker(client).run_pass()
        assert self.lost not in all_names(await client.ledger_metadata(self.ledger_id))
        assert not (await look(client.store)).marked
