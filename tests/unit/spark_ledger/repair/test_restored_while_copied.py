"""ZooKeeper is restored while a copy is made, and the id is another ledger's then (rule P6)."""

from __future__ import annotations

import pytest

from spark_ledger.metadata import seen_ledgers
from spark_ledger.metadata.codec import encode_ledger
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.types import INCARNATION_BYTES, BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_who_leaves import behind_the_first_copy, lost_one


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
        await cared.passes(30.0)
        assert targets, "a copy was made"
        assert (await tree.get(path)).value == another
        await tree.close()
        await other.close()

    run_virtually(test, bookies=4)
