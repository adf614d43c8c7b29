"""ZooKeeper is restored under a writer or a recovery that has seen many other ledgers since."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.client.written_ledgers import WrittenLedgers
from spark_ledger.errors import AddOutcomeUnknownError, MetadataRestoredError
from spark_ledger.metadata import seen_ledgers
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import BookieStatus, LedgerState
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.spark_ledger.client.world import World, run_virtually


@pytest.fixture(autouse=True)
def _nobody_looks_behind_a_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever these do comes before that look."""
    monkeypatch.setattr(WrittenLedgers, "_on_change", lambda _self: None)


@pytest.fixture(autouse=True)
def _one_ledger_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was seen last: as after three thousand others."""
    monkeypatch.setattr(seen_ledgers, "LEDGERS_SEEN_BYTES_MAX", 1)


class Backup:
    """What the metadata are now."""

    def __init__(self, tree: MemoryTree) -> None:
        self._nodes = dict(tree._nodes)
        self._children = {path: set(names) for path, names in tree._children.items()}

    async def restore(self, world: World, *clients: LedgerClient) -> None:
        """Have the servers come back with it; the clients connect again."""
        world.tree._nodes = dict(self._nodes)
        world.tree._children = {path: set(names) for path, names in self._children.items()}
        for client in clients:
            assert isinstance(client.store, MemoryMetadataStore)
            client.store.reconnect()
        await asyncio.sleep(0)


async def other_ledger(world: World) -> LedgerWriter:
    """A ledger that all know, made before anything else."""
    writer = await (await world.client()).create_ledger()
    await writer.close()
    return writer


def refuse_adds(bookie: ScriptedBookie) -> None:
    """The bookie is busy from now on."""
    bookie.add = lambda _run, done, **_options: done(BookieStatus.TOO_MANY_REQUESTS, "")  # type: ignore[method-assign]


def test_writer_that_lost_a_fragment_by_a_restore_does_not_write_on() -> None:
    """What it confirmed in that fragment is on bookies that the metadata do not name any more."""

    async def test(world: World) -> None:
        other = await other_ledger(world)
        client = await world.client()
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        assert await writer.append(b"0") == 0
        backup = Backup(world.tree)
        first = writer.metadata.last_fragment.bookies
        for bookie in first:
            world.kill(bookie)
        assert await writer.append(b"1") == 1
        assert [f.first_entry for f in writer.metadata.fragments] == [0, 1]
        for bookie in first:
            world.revive(bookie)
        await client.ledger_metadata(other.ledger_id)
        await backup.restore(world, client)
        world.kill(writer.metadata.last_fragment.bookies[0])
        with pytest.raises(AddOutcomeUnknownError, match="restored from a backup"):
            await writer.append(b"2")
        await writer.close()  # it has stopped, and knows no end
        reader = await (await world.client()).open_ledger(writer.ledger_id)
        assert not reader.is_closed and len(reader.metadata.fragments) == 1

    run_virtually(test, bookies=6)


def test_close_of_a_writer_leaves_the_ledger_that_got_its_id_alone() -> None:
    """Both are at version 0: the compare-and-set cannot tell the two apart."""

    async def test(world: World) -> None:
        other = await other_ledger(world)
        client, younger = await world.client(), await world.client()
        backup = Backup(world.tree)
        writer = await client.create_ledger()
        await client.ledger_metadata(other.ledger_id)
        await backup.restore(world, client, younger)
        successor = await younger.create_ledger()
        assert successor.ledger_id == writer.ledger_id
        with pytest.raises(MetadataRestoredError):
            await writer.close()
        found = await (await world.client()).ledger_metadata(successor.ledger_id)
        assert found == successor.metadata and found.state is LedgerState.OPEN
        await successor.close()

    run_virtually(test)


def test_recovery_leaves_the_ledger_that_got_the_id_of_its_own_alone() -> None:
    async def test(world: World) -> None:
        other = await other_ledger(world)
        owner, client, younger = [await world.client() for _ in range(3)]
        backup = Backup(world.tree)
        writer = await owner.create_ledger()
        assert [await writer.append(b"%d" % n) for n in range(3)] == [0, 1, 2]
        add = ScriptedBookie.add
        for bookie in world.bookies.values():
            refuse_adds(bookie)
        recovering = asyncio.ensure_future(client.open_ledger(writer.ledger_id, recover=True))
        await asyncio.sleep(1.0)
        assert not recovering.done()
        await client.ledger_metadata(other.ledger_id)
        await backup.restore(world, client, younger)
        successor = await younger.create_ledger()
        await successor.close()
        assert successor.ledger_id == writer.ledger_id
        for bookie in world.bookies.values():
            bookie.add = add.__get__(bookie)  # type: ignore[method-assign]
        with pytest.raises(MetadataRestoredError):
            await recovering
        found = await (await world.client()).ledger_metadata(successor.ledger_id)
        assert found == successor.metadata

    run_virtually(test)
