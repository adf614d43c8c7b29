"""ZooKeeper is restored while a copy is made, and the id is another ledger's then (rule P6)."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import MetadataRestoredError
from spark_ledger.metadata import seen_ledgers
from spark_ledger.metadata.codec import encode_ledger
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.unsettled import pages
from spark_ledger.repair.nodes import FAILED_PATH
from spark_ledger.types import INCARNATION_BYTES, BookieId
from tests.unit.spark_ledger.client.test_restored_metadata import Backup
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_who_leaves import behind_the_first_copy, lost_one
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import crew, give_cookies, lose, marked


def test_repair_leaves_the_ledger_that_got_the_id_of_its_own_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have the same version, and the auditor beside it has seen thousands of others since."""
    monkeypatch.setattr(seen_ledgers, "LEDGERS_SEEN_BYTES_MAX", 1)

    async def test(world: World) -> None:
        other = await (await world.client()).create_ledger()
        client, ledger_id, cared = await lost_one(world)
        path, tree = ledger_path(ledger_id), MemoryMetadataStore(world.tree)
        found = await client.ledger_metadata(ledger_id)
        another = encode_ledger(found.with_changes(incarnation=bytes(INCARNATION_BYTES)))

        async def restore(_target: BookieId) -> None:
            version = (await tree.get(path)).version
            await tree.delete(path)
            await tree.create(path, another)
            for number in range(version):
                await tree.put(path, another, number)
            working = cared.worker._client
            await working.ledger_metadata(other.ledger_id)
            assert isinstance(working.store, MemoryMetadataStore)
            working.store.reconnect()

        targets = behind_the_first_copy(monkeypatch, restore)
        with pytest.raises(MetadataRestoredError):
            await cared.passes(30.0)
        assert targets, "a copy was made"
        assert (await tree.get(path)).value == another
        await tree.close()
        await other.close()

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("is_open", [False, True])
def test_worker_that_meets_a_ledger_that_went_back_ends(is_open: bool) -> None:
    """A restore need not show, as behind a new leader; the next process repairs it (rule K6)."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        if not is_open:
            await writer.close()
        ledger_id, cared = writer.ledger_id, await crew(world)
        await lose(world, writer.metadata.last_fragment.bookies[0])
        while not await marked(world):
            cared.clock.now += 10.0
            await cared.auditor.run_pass()
        backup = Backup(world.tree)
        for _ in range(40):
            cared.clock.now += 10.0
            await cared.worker.run_pass()
        assert await marked(world) == {}
        await backup.restore(world, cared.worker._client)
        assert set(await marked(world)) == {ledger_id}
        with pytest.raises(MetadataRestoredError, match=f"ledger {ledger_id}"):
            await asyncio.wait_for(cared.worker.run(asyncio.Event()), 15.0)
        assert not [page async for page in pages(client.store, FAILED_PATH)], "it did not fail"
        next_one = await crew(world)
        await next_one.passes(400.0)
        assert await marked(world) == {}

    run_virtually(test, bookies=6)
