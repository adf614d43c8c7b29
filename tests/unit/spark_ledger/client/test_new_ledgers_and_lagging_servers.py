"""A metadata server that lags: a ledger that others know by now is no missing one."""

from __future__ import annotations

import pytest

from spark_ledger.errors import NoSuchLedgerError, NotFoundError
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_ledger_that_a_server_does_not_know_yet_is_opened() -> None:
    """As by a task, to which the driver gave a commit with rows of a new ledger."""

    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger()
        await writer.append(b"row")
        client = await world.client()
        store = client.store
        assert isinstance(store, MemoryMetadataStore)
        latest, asked = store.get_latest, 0

        async def get(path: str) -> Versioned[bytes]:
            raise NotFoundError(f"metadata node {path} does not exist")

        async def get_latest(path: str) -> Versioned[bytes]:
            nonlocal asked
            asked += 1
            return await latest(path)

        store.get, store.get_latest = get, get_latest  # type: ignore[method-assign]
        assert await client.ledger_metadata(writer.ledger_id) == writer.metadata
        reader = await client.open_unconfirmed(writer.ledger_id)
        batches = [each async for each in reader.read_batches(0, 0, unconfirmed=True)]
        assert [entry.payload for batch in batches for entry in batch] == [b"row"] and asked == 2
        for look in (client.open_unconfirmed, client.ledger_metadata):
            with pytest.raises(NoSuchLedgerError):
                await look(writer.ledger_id + 1)
        await writer.close()

    run_virtually(test)
