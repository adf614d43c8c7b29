"""ZooKeeper was restored: keeper and repair end, so that a process without their memory goes on."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import MetadataRestoredError, MetadataUnavailableError
from spark_ledger.keeper.deletions import LedgerDeletions
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import read_elected
from spark_ledger.metadata.ledger_ids import raise_counter
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.repair.service import RepairConfig, run_repair
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.test_restored_metadata import Backup
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected, ledgers
from tests.unit.spark_ledger.keeper.world import (
    CONFIG,
    Clock,
    new_stream,
    passes,
    read,
    rows,
    unsettled,
)

PATIENCE_S = 15.0
"""Virtual: several passes of each."""


def go_back(client: LedgerClient) -> None:
    """The store of this client finds that it was restored; that of another one knows nothing."""

    class Restored(MemoryMetadataStore):
        @property
        def restored(self) -> str:
            return "went back"

    client.store.__class__ = Restored


def test_keeper_after_a_restore_ends_and_leaves_its_place_to_another() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        running = asyncio.create_task(Keeper(client, CONFIG).run())
        other = await world.client()
        async with asyncio.timeout(PATIENCE_S):
            while await read_elected(other.store) is None:
                await asyncio.sleep(1.0)
            go_back(client)
            with pytest.raises(MetadataRestoredError, match="went back"):
                await running
        assert await read_elected(other.store) is None
        assert await Keeper(other, CONFIG).elect()

    run_virtually(test)


def test_repair_after_a_restore_ends_with_one_error() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        running = asyncio.create_task(run_repair(client, RepairConfig(), asyncio.Event()))
        await asyncio.sleep(PATIENCE_S)
        assert not running.done()
        go_back(client)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(MetadataRestoredError, match="went back"):
                await running

    run_virtually(test)


async def one_ledger_of_many_commits(world: World, *numbers: int) -> None:
    """Rows of a new process, a commit each; then its writer is closed."""
    stream = await StreamCatalog(await world.client()).open("s")
    writer = stream.writer()
    for number in numbers:
        await writer.write(rows(number))
        await stream.commit_segments(await writer.finish())
    await writer.close()


def test_keeper_that_outlives_an_unnoticed_restore_deletes_nothing_that_live_rows_need() -> None:
    """It had read commits of the lost history, whose numbers others have got since."""

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 10)
        clock = Clock()
        cared = await elected(world, clock)
        await stream.retention.truncate((3,))
        await passes(cared, clock, 60)  # seen and noted
        backup = Backup(world.tree)
        await closed_commits(world, stream, 10)  # they are lost
        await passes(cared, clock, 120)
        await backup.restore(world, cared._client)
        await raise_counter(MemoryMetadataStore(world.tree), 1_000)
        await passes(cared, clock, 120)
        await one_ledger_of_many_commits(world, *range(100, 106))
        await one_ledger_of_many_commits(world, 106, 107)
        fresh = await StreamCatalog(await world.client()).open("s")
        before = await ledgers(world)
        await fresh.retention.truncate((13,))  # in the middle of the first one
        await passes(cared, clock, 300)
        assert await read(fresh) == [103, 104, 105, 106, 107]
        assert len(before - await ledgers(world)) == 7  # those of commits 3 to 9 only

    run(test)


def test_keeper_deletes_nothing_by_what_it_read_on_a_connection_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The restore comes between its last look and the deletion."""

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 3)
        clock = Clock()
        cared = await elected(world, clock)
        await stream.retention.truncate((1,))
        await passes(cared, clock, 60)
        before, delete = await ledgers(world), LedgerDeletions.delete

        async def late(*words: Any) -> bool:
            assert isinstance(cared._store, MemoryMetadataStore)
            cared._store.reconnect()
            return await delete(*words)

        with monkeypatch.context() as patch:
            patch.setattr(LedgerDeletions, "delete", late)
            with pytest.raises(MetadataUnavailableError, match="broke within a pass"):
                await passes(cared, clock, 120)
        assert await ledgers(world) == before
        await passes(cared, clock, 120)
        assert len(before - await ledgers(world)) == 1

    run(test)


@pytest.mark.parametrize("seen_by", ["sweep", "audit"])
def test_keeper_that_meets_metadata_that_went_back_ends(
    seen_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that is older than it was shows the restore as well as the store does."""

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 3)
        if seen_by == "sweep":
            await stream.retention.truncate((1,))
        clock = Clock()
        cared = await elected(world, clock, audit_s=1.0 if seen_by == "audit" else 0.0)

        async def went_back(*_words: Any, **_options: Any) -> NoReturn:
            raise MetadataRestoredError("ledger 0 went back")

        if seen_by == "sweep":
            monkeypatch.setattr(LedgerDeletions, "read", went_back)
        else:
            monkeypatch.setattr(CommitLog, "ledgers", went_back)
        with pytest.raises(MetadataRestoredError, match="went back"):
            await passes(cared, clock, 300)

    run(test)


def test_keeper_that_has_recovered_a_ledger_ends_where_a_restore_has_it_open_again() -> None:
    """It has seen the ledger closed, and never recovers what is older than that."""

    async def test(world: World) -> None:
        client = await world.client()
        await (await client.create_ledger()).append(b"x")  # a plain one: no stream names it
        await client.close()
        clock = Clock()
        cared = await elected(world, clock)
        backup = Backup(world.tree)
        await passes(cared, clock, 300)
        assert (await unsettled(world), cared.done["recovered"]) == (([], []), 1)
        await backup.restore(world, cared._client)
        assert await unsettled(world) == ([1], [])
        with pytest.raises(MetadataRestoredError, match="restored from a backup"):
            await passes(cared, clock, 300)
        await cared._election.resign()
        fresh = await elected(world, clock)
        await passes(fresh, clock, 300)
        assert await unsettled(world) == ([], [])

    run(test)


def test_keeper_asks_anew_whose_a_ledger_is_behind_an_unnoticed_restore() -> None:
    """Its id was given again since: whoever had it before lives, and its owner of now is gone."""

    async def test(world: World) -> None:
        clock = Clock()
        cared = await elected(world, clock)
        backup = Backup(world.tree)
        living = await world.client()
        lost = await living.create_ledger()
        await passes(cared, clock, 20)
        assert await unsettled(world) == ([lost.ledger_id], [])
        await backup.restore(world, cared._client, living)
        dying = await world.client()
        given_again = await dying.create_ledger()
        assert given_again.ledger_id == lost.ledger_id
        await dying.close()
        await living.context.owner.announce()
        with pytest.raises(MetadataRestoredError, match="ledger 1: its metadata"):
            await passes(cared, clock, 100)  # before all ledgers are read anew (rule K3)
        await cared._election.resign()
        fresh = await elected(world, clock)
        await passes(fresh, clock, 300)
        assert (await unsettled(world), fresh.done["recovered"]) == (([], []), 1)

    run(test)


def test_ledger_of_a_former_version_that_went_back_is_no_failure_of_its_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        cared = await elected(world, Clock())

        async def went_back(*_words: Any, **_options: Any) -> NoReturn:
            raise MetadataRestoredError("ledger 0 went back")

        monkeypatch.setattr(LedgerClient, "open_ledger", went_back)
        with pytest.raises(MetadataRestoredError, match="went back"):
            await cared._stream_keeper._deletions.recover(LedgerId(1))

    run(test)
