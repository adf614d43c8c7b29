"""ZooKeeper was restored: keeper and repair end, so that a process without their memory goes on."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import MetadataRestoredError
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import read_elected
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.repair.service import RepairConfig, run_repair
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.keeper.world import CONFIG

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
