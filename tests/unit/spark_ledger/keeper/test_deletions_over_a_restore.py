"""ZooKeeper is restored within the deletion of a stream, to when nobody had deleted it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConflictError, MetadataRestoredError, MetadataUnavailableError
from spark_ledger.keeper.nodes import EPOCH_PATH
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerMetadata
from tests.unit.spark_ledger.client.test_restored_metadata import Backup
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes, read

COMMITS = 5


async def streams(world: World) -> StreamCatalog:
    """Of another process."""
    return StreamCatalog(await world.client())


async def written(world: World) -> Stream:
    """A stream with commits, each in a ledger of its own."""
    stream = await new_stream(await world.client())
    await closed_commits(world, stream, COMMITS)
    return stream


async def check_whole(world: World) -> None:
    """All of that is there, for another process."""
    assert len(await ledgers(world)) == COMMITS
    assert await read(await (await streams(world)).open("s")) == list(range(COMMITS))


async def mark(world: World) -> None:
    """Somebody begins a deletion, and is killed."""
    catalog = await streams(world)
    await catalog._mark_deleted(StreamNodes(catalog._store, "s"))


def behind_deletions(
    monkeypatch: pytest.MonkeyPatch, count: int, act: Callable[[], Awaitable[object]]
) -> None:
    """Act as a ledger is looked at, behind ``count`` deletions, one after the other."""
    look, looks = LedgerClient.ledger_metadata, 0
    monkeypatch.setattr("spark_ledger.stream.catalog._LEDGERS_AT_ONCE", 1)

    async def late(client: LedgerClient, ledger_id: int) -> LedgerMetadata:
        nonlocal looks
        looks += 1
        metadata = await look(client, ledger_id)
        if looks == count + 1:
            await act()
        return metadata

    monkeypatch.setattr(LedgerClient, "ledger_metadata", late)


def behind_the_mark(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    mark = StreamCatalog._mark_deleted

    async def late(*words: Any) -> object:
        marked = await mark(*words)
        await act()
        return marked

    monkeypatch.setattr(StreamCatalog, "_mark_deleted", late)


def before_nodes(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    remove, has_acted = StreamCatalog._try_delete_nodes, False

    async def late(*words: Any) -> None:
        nonlocal has_acted
        if not has_acted:
            has_acted = True
            await act()
        await remove(*words)

    monkeypatch.setattr(StreamCatalog, "_try_delete_nodes", late)


@pytest.mark.parametrize("deleted", [0, 1, None])
def test_keeper_leaves_a_stream_alone_that_a_restore_has_brought_back(
    deleted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: it comes before the deletion begins."""

    async def test(world: World) -> None:
        await written(world)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 60)
        backup, finish = Backup(world.tree), StreamCatalog.finish_deletion
        await mark(world)
        done = await ledgers(world)

        async def restore() -> None:
            nonlocal done
            done = done - await ledgers(world)
            await backup.restore(world, cared._client)

        async def late(*words: Any) -> bool:
            await restore()
            return await finish(*words)

        with monkeypatch.context() as patch:
            if deleted is None:
                patch.setattr(StreamCatalog, "finish_deletion", late)
                await passes(cared, clock, 180)
            else:
                behind_deletions(patch, deleted, restore)
                with pytest.raises(MetadataUnavailableError, match="broke within a pass"):
                    await passes(cared, clock, 180)
        await passes(cared, clock, 180)
        assert len(done) == (deleted or 0)
        assert cared.done["streams"] == 0
        await check_whole(world)

    run(test)


def test_keeper_that_was_replaced_does_not_go_on_with_a_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        stream = await written(world)
        clock = Clock()
        cared = await elected(world, clock)
        await mark(world)

        async def replace() -> None:
            other = MemoryMetadataStore(world.tree)
            await other.put(EPOCH_PATH, b"", (await other.get(EPOCH_PATH)).version)

        with monkeypatch.context() as patch:
            behind_deletions(patch, 1, replace)
            with pytest.raises(ConflictError):
                await cared._stream_keeper._finish_deletion("s", stream.config.stream_id)
        assert len(await ledgers(world)) == COMMITS - 1

    run(test)


@pytest.mark.parametrize("when", ["mark", "ledgers", "nodes"])
@pytest.mark.parametrize("is_marked", [True, False])
def test_deletion_goes_on_behind_a_new_connection_if_the_stream_is_marked_still(
    is_marked: bool, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        await written(world)
        if is_marked:
            await mark(world)
        backup, client = Backup(world.tree), await world.client()

        async def restore() -> None:
            await backup.restore(world, client)

        with monkeypatch.context() as patch:
            if when == "mark":
                behind_the_mark(patch, restore)
            elif when == "ledgers":
                behind_deletions(patch, 1, restore)
            else:
                before_nodes(patch, restore)
            if is_marked:
                await StreamCatalog(client).delete("s")
            else:
                with pytest.raises(MetadataRestoredError, match="'s' lives again"):
                    await StreamCatalog(client).delete("s")
        if is_marked:
            assert await ledgers(world) == set()
            assert await client.store.children("streams/s") == []
        else:
            await check_whole(world)

    run(test)
