"""The asyncio client: what opens something is awaited or entered, and loads on use."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import cast

import pyarrow as pa
import pytest

from spark_ledger import aio
from spark_ledger.aio import Opening, StreamClient
from spark_ledger.config import ClientConfig
from spark_ledger.errors import ConfigurationError, LedgerError
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.several import AppendedStreams
from spark_ledger.transport.memory import MemoryTransport
from tests.unit.spark_ledger.client.world import World, run


async def client_of(world: World) -> StreamClient:
    made = await StreamClient.over(
        MemoryMetadataStore(world.tree), MemoryTransport(world.alive), ClientConfig()
    )
    return made


def test_handles_are_awaited_or_entered() -> None:
    async def test(world: World) -> None:
        async with Opening(client_of(world)) as client:
            async with client.create_ledger(ensemble_size=2, write_quorum=2) as writer:
                assert await writer.append(b"x") == 0
            assert (await client.open_ledger(writer.ledger_id)).is_closed
            awaited = await client.create_ledger()
            async with awaited:
                await awaited.append(b"y")
            async with await client.create_ledger() as third:
                await asyncio.create_task(third.append(b"z"))
            waited = await asyncio.wait_for(asyncio.create_task(client.create_ledger()), 5)
            await waited.close()
            assert await client.list_ledgers() == sorted(await client.list_ledgers())

    run(test)


def test_append_to_several_streams_is_one_transaction() -> None:
    async def test(world: World) -> None:
        rows = pa.table({"n": pa.array([1, 2], pa.int64())})
        async with Opening(client_of(world)) as client:
            for name in "ab":
                await client.create_stream(name, rows.schema)
            for applied in (True, False):
                commits = await client.append_to(
                    {"a": rows, "b": rows[:1]}, sink_id="job", transaction_id=7
                )
                assert [(c.rows, c.applied) for c in commits.values()] == [
                    (2, applied),
                    (1, applied),
                ]
            stream = await client.stream("b")
            assert [batch.num_rows async for batch in stream.read()] == [1]

    run(test)


@pytest.mark.parametrize("leaves", [False, True])
def test_client_whose_streams_cannot_be_closed_is_closed_all_the_same(
    leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its session goes on, and the keeper leaves its open ledgers alone."""

    async def test(world: World) -> None:
        client = await client_of(world)
        reached = asyncio.Event()

        async def hangs(self: AppendedStreams) -> None:
            reached.set()
            if not leaves:
                raise LedgerError("no answer")
            await asyncio.Event().wait()

        monkeypatch.setattr(AppendedStreams, "close", hangs)
        closing = asyncio.create_task(client.close())
        await reached.wait()
        if leaves:
            closing.cancel()
        with pytest.raises(asyncio.CancelledError if leaves else LedgerError):
            await closing
        assert cast(MemoryMetadataStore, client.store)._closed

    run(test)


def test_an_error_while_opening_comes_out_of_both() -> None:
    async def test(world: World) -> None:
        client = await client_of(world)
        with pytest.raises(ConfigurationError):
            await client.create_ledger(ack_quorum=9)
        with pytest.raises(ConfigurationError):
            async with client.create_ledger(ack_quorum=9):
                raise AssertionError("not entered")
        with pytest.raises(ConfigurationError):
            await aio.connect("nonsense")
        client.create_ledger().close()  # never awaited: no warning once it is closed
        await client.close()

    run(test)


def test_aio_and_local_are_there_without_an_import_of_their_own() -> None:
    code = (
        "import sys, spark_ledger; assert 'pyarrow' not in sys.modules; "
        "print(spark_ledger.aio.connect.__name__, spark_ledger.local.LocalCluster.__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["connect", "LocalCluster"]
    with pytest.raises(AttributeError, match="nonsense"):
        cast(object, __import__("spark_ledger").nonsense)
