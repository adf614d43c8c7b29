"""What is swept: each class prepares a world, does one thing, and checks what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from bookie_server.identity import Identity
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.memory_fs import MemoryFileSystem
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    LedgerError,
    NoSuchLedgerError,
    NoSuchStreamError,
)
from spark_ledger.keeper.keeper import Keeper, KeeperConfig
from spark_ledger.keeper.nodes import read_state
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import read_cluster
from spark_ledger.metadata.cookies import BookieCookie, cookie_path, encode_cookie
from spark_ledger.metadata.owners import is_alive
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.ledgers import TAG_STREAM_ID
from spark_ledger.stream.stream import Stream
from spark_ledger.types import BookieId, BookieInfo, BookieStart, LedgerState
from tests.unit.spark_ledger.client.world import World
from tests.unit.spark_ledger.stream.world import small_manifests
from tests.unit.sweeps.trouble import TroubledStore

_NEW: Final = BookieId("new")
_DIRECTORIES: Final = (Path("/j"), Path("/l0"))

SCHEMA = pa.schema([("n", pa.int64())])
WIDER = pa.schema([("n", pa.int64()), ("m", pa.int64())])


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)}, SCHEMA)


def numbers(batch: pa.RecordBatch) -> list[int]:
    return [int(str(n)) for n in batch.column("n").to_pylist()]


async def rows_of(stream: Stream) -> list[int]:
    return [n async for batch in stream.read() for n in numbers(batch)]


class Operation:
    """One operation. ``prepare`` and ``check`` have a client that meets no trouble."""

    bookies = 3
    client: LedgerClient
    """The one that is to meet trouble."""
    store: TroubledStore
    """Its store."""

    def __init__(self, world: World) -> None:
        self.world = world

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is smaller than usual."""

    async def prepare(self, client: LedgerClient) -> None:
        """What is there before."""

    async def open(self, client: LedgerClient) -> None:
        """What the client that is to meet trouble does before."""

    async def meanwhile(self, client: LedgerClient) -> None:
        """What others change then. A server that lags does not know of it yet."""

    async def act(self, client: LedgerClient) -> Any:
        """The operation."""

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        """What has to be true whatever came of it."""


class WriteALedger(Operation):
    """Create a ledger, append, close it."""

    ledger_id = -1

    async def act(self, client: LedgerClient) -> Any:
        writer = await client.create_ledger()
        self.ledger_id = writer.ledger_id
        for payload in (b"0", b"1", b"2"):
            await writer.append(payload)
        await writer.close()
        return writer.ledger_id

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        if self.ledger_id < 0:
            return
        reader = await client.open_ledger(self.ledger_id, recover=True)
        found = await payloads(reader)
        assert found == [b"0", b"1", b"2"][: len(found)]
        if isinstance(outcome, int):
            assert len(found) == 3


async def payloads(reader: LedgerReader) -> list[bytes]:
    last = reader.last_add_confirmed
    return [] if last < 0 else [entry.payload async for entry in reader.read(0, last)]


class RecoverALedger(Operation):
    """Recover what a writer has left open."""

    async def prepare(self, client: LedgerClient) -> None:
        dead = await self.world.client()
        writer = await dead.create_ledger()
        for payload in (b"0", b"1"):
            await writer.append(payload)
        self.ledger_id = writer.ledger_id
        await dead.close()

    async def act(self, client: LedgerClient) -> Any:
        return await payloads(await client.open_ledger(self.ledger_id, recover=True))

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, list) or outcome == [b"0", b"1"]
        reader = await client.open_ledger(self.ledger_id, recover=True)
        assert await payloads(reader) == [b"0", b"1"]
        assert reader.metadata.state is LedgerState.CLOSED


class ReplaceABookie(Operation):
    """A bookie fails between two appends."""

    bookies = 5

    async def open(self, client: LedgerClient) -> None:
        self.writer = await client.create_ledger()
        await self.writer.append(b"0")
        self.world.kill(self.writer.metadata.last_fragment.bookies[0])
        self.world.kill(self.writer.metadata.last_fragment.bookies[1])

    async def act(self, client: LedgerClient) -> Any:
        await self.writer.append(b"1")
        await self.writer.close()
        return self.writer.metadata

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        for fragment in (await client.ledger_metadata(self.writer.ledger_id)).fragments:
            assert len(set(fragment.bookies)) == 3, "one place for each"
        for bookie_id in self.world.bookies:
            self.world.revive(bookie_id)
        found = await payloads(await client.open_ledger(self.writer.ledger_id, recover=True))
        assert found in ([b"0"], [b"0", b"1"])
        if outcome is not None and not isinstance(outcome, LedgerError):
            assert len(found) == 2


class TailALedger(Operation):
    """Follow a ledger that is closed meanwhile."""

    async def prepare(self, client: LedgerClient) -> None:
        self.writer = await client.create_ledger()
        await self.writer.append(b"0")

    async def act(self, client: LedgerClient) -> Any:
        found = []
        reader = await client.open_ledger(self.writer.ledger_id)
        async for entry in reader.tail(idle_timeout=20.0):
            found.append(entry.payload)
            if len(found) == 1:
                await self.writer.append(b"1")
                await self.writer.close()
        return found

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, list) or outcome == [b"0", b"1"]
        await self.writer.close()


class OfAStream(Operation):
    """An operation on a stream that has the row 0."""

    async def prepare(self, client: LedgerClient) -> None:
        self.healthy = await StreamCatalog(client).create("s", SCHEMA)
        await self.healthy.append(rows(0))

    async def open(self, client: LedgerClient) -> None:
        self.stream = await StreamCatalog(client).open("s")

    async def meanwhile(self, client: LedgerClient) -> None:
        await self.healthy.append(rows(9))

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        with contextlib.suppress(LedgerError):  # its connection may be closed
            await self.stream.close()
        await self.healthy.close()


class AppendRows(OfAStream):
    """Append under a name: the same pair again changes nothing."""

    async def act(self, client: LedgerClient) -> Any:
        return await self.stream.append(rows(1), sink_id="q", transaction_id=1)

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        before = await rows_of(self.healthy)
        assert before in ([0, 9], [0, 9, 1])
        if isinstance(outcome, LedgerError):
            assert outcome.outcome_unknown or before == [0, 9], "it says that nothing happened"
        elif outcome is not None:
            assert before == [0, 9, 1]
        again = await self.healthy.append(rows(1), sink_id="q", transaction_id=1)
        assert again.applied is (before == [0, 9])
        assert await rows_of(self.healthy) == [0, 9, 1]
        await super().check(client, outcome)


class AppendRowsWithoutAName(OfAStream):
    """Append without a name."""

    async def act(self, client: LedgerClient) -> Any:
        return await self.stream.append(rows(1))

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        before = await rows_of(self.healthy)
        assert before in ([0, 9], [0, 9, 1])
        if isinstance(outcome, LedgerError):
            assert outcome.outcome_unknown or before == [0, 9], "it says that nothing happened"
        elif outcome is not None:
            assert before == [0, 9, 1]
        await super().check(client, outcome)


class AppendALongList(AppendRows):
    """The list of segments is kept in a ledger of its own."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 8)


class SealCommits(OfAStream):
    """Commits go into manifests while others are made, and pages are put above pages."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        small_manifests(monkeypatch)

    async def prepare(self, client: LedgerClient) -> None:
        await super().prepare(client)
        for number in (1, 2, 3):
            await self.healthy.append(rows(number))

    async def act(self, client: LedgerClient) -> Any:
        for number in (4, 5):
            await self.stream.append(rows(number), sink_id=f"q{number}", transaction_id=1)
        await self.stream._committer.sealer.close()
        return "made"

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.stream._committer.sealer.close()  # two that seal at once give way to each other
        for number in (4, 5):
            await self.healthy.append(rows(number), sink_id=f"q{number}", transaction_id=1)
        await self.healthy._committer.sealer.seal((await self.healthy.head()).next_commit)
        reader = await StreamCatalog(client).open("s")
        assert await rows_of(reader) == [0, 1, 2, 3, 9, 4, 5]
        assert [commit.number for commit in await reader.commits(0, 7)] == list(range(7))
        assert await reader.sealed_commits() == 6
        await reader.close()
        await super().check(client, outcome)


class ReadRows(OfAStream):
    """Read the rows."""

    async def act(self, client: LedgerClient) -> Any:
        return await rows_of(self.stream)

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, list) or outcome in ([0], [0, 9])
        await super().check(client, outcome)


class TailRows(OfAStream):
    """Follow a stream to which others append."""

    async def act(self, client: LedgerClient) -> Any:
        found: list[int] = []
        async for batch in self.stream.tail("earliest", idle_timeout=20.0):
            found += numbers(batch)
            if found[-1] > 7:
                await self.healthy.append(rows(found[-1] - 1))
        return found

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        assert not isinstance(outcome, list) or outcome == [0, 9, 8, 7]
        await super().check(client, outcome)


class MergeASchema(OfAStream):
    """Add a column."""

    async def act(self, client: LedgerClient) -> Any:
        return (await self.stream.merge_schema(WIDER)).names

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        config = await self.healthy.refresh()
        assert len(config.schemas) <= 2, "it is added once"
        if isinstance(outcome, list):
            assert outcome == config.schema.names == ["n", "m"]
        elif isinstance(outcome, LedgerError) and not outcome.outcome_unknown:
            assert len(config.schemas) == 1 or outcome.retryable
        assert (await self.healthy.merge_schema(WIDER)).names == ["n", "m"]
        assert len((await self.healthy.refresh()).schemas) == 2
        await super().check(client, outcome)


class CreateAStream(Operation):
    """Create a stream; the first one of the cluster."""

    async def act(self, client: LedgerClient) -> Any:
        return (await StreamCatalog(client).create("s", SCHEMA)).config.stream_id

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        stream = await StreamCatalog(client).create("s", SCHEMA, exist_ok=True)
        if isinstance(outcome, str):
            assert stream.config.stream_id == outcome
        await stream.append(rows(1))
        assert await rows_of(stream) == [1]
        await stream.close()


class DeleteAStream(OfAStream):
    """Delete a stream: a second deletion finishes it."""

    async def open(self, client: LedgerClient) -> None:
        """It is not opened."""

    async def act(self, client: LedgerClient) -> Any:
        await StreamCatalog(client).delete("s")
        return "deleted"

    async def check(self, client: LedgerClient, outcome: Any) -> None:
        await self.healthy.close()
        try:
            await StreamCatalog(client).delete("s")
            assert outcome != "deleted"
        except NoSuchStreamError:
            assert (
                not isinstance(outcome, LedgerError)
                or outcome.outcome_unknown
                or (isinstance(outcome, NoSuchStreamError) or outcome.retryable)
            )
        assert self.world.tree.children("streams") == []
        for ledger_id in await client.list_ledgers():
            try:
                tags = (await client.ledger_metadata(ledger_id)).custom_metadata
            except NoSuchLedgerError:
                continue
            assert TAG_STREAM_ID not in tags, "its ledgers are gone"


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


OPERATIONS = (
    WriteALedger,
    RecoverALedger,
    ReplaceABookie,
    TailALedger,
    AppendRows,
    AppendRowsWithoutAName,
    AppendALongList,
    SealCommits,
    ReadRows,
    TailRows,
    MergeASchema,
    CreateAStream,
    DeleteAStream,
    RunAKeeper,
    KeepAKeeper,
    KeepAnOwner,
    KeepABookieRegistered,
    StartABookie,
)
