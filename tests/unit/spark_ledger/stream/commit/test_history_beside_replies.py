"""A handle that learns of more of its stream while it looks whether ZooKeeper was restored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from spark_ledger.errors import MetadataRestoredError
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Backup, another, numbers, run, table


@pytest.mark.parametrize("is_lost", [True, False])
def test_commit_whose_reply_is_taken_in_while_the_one_before_is_compared_is_compared_too(
    is_lost: bool,
) -> None:
    """The reply has come, then the connection breaks, and the store is restored. What the handle is
    comparing then tells nothing of the commit that it is told of meanwhile."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await StreamCatalog(ledgers).create("s", SCHEMA)
        client, streams = another(ledgers)
        stream = await streams.open("s")
        await stream.append(table(0))
        backup, store = Backup(ledgers), client.store
        send, get = store.transaction, store.get
        has_replied, taken_in = asyncio.Event(), asyncio.Event()

        async def reply_late(operations: Sequence[Operation]) -> None:
            await send(operations)
            has_replied.set()
            await taken_in.wait()

        async def compare_late(path: str) -> Versioned[bytes]:
            if path == stream._nodes.commit_path(0) and not taken_in.is_set():
                taken_in.set()
                await appending
            return await get(path)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "transaction", reply_late)
            appending = asyncio.ensure_future(stream.append(table(1)))
            await has_replied.wait()
        if is_lost:
            backup.restore(client)
            other = await another(ledgers)[1].open("s")
            await other.append(table(101))
        else:
            store.reconnect()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "get", compare_late)
            if not is_lost:
                assert (await stream.head()).next_commit == 2
                assert await numbers(stream.read()) == [0, 1]
                return
            with pytest.raises(MetadataRestoredError, match="commit 1 is not the one"):
                await stream.head()
        assert (await appending).number == 1

    run(scenario())
