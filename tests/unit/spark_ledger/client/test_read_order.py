"""Which replica a reader asks first, of what it knows of bookies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from spark_ledger.client import context
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.limits.client import BOOKIE_SUSPECT_S
from spark_ledger.transport.base import ReadChunk
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.client.world import world as world_of
from tests.unit.virtual_time import run_in_virtual_time


def asked(client: LedgerClient) -> list[str]:
    """The bookies that this client's reads ask from now on, in order."""
    transport = client._context.transport
    honest, names = transport.read, list[str]()

    async def read(bookie_id: str, *args: Any, **kwargs: Any) -> AsyncGenerator[ReadChunk, None]:
        names.append(bookie_id)
        async for chunk in honest(bookie_id, *args, **kwargs):  # type: ignore[arg-type]
            yield chunk

    transport.read = read  # type: ignore[method-assign]
    return names


@pytest.mark.parametrize("rack", ["", "/default-rack", "/elsewhere"])
def test_a_bookie_that_is_registered_no_more_is_asked_last(rack: str) -> None:
    """It stays known where it answered; a connection that is refused would cost every read. How far
    it is nobody knows then."""

    async def test(world: World) -> None:
        client = await world.client(rack=rack)
        async with await client.create_ledger(
            ensemble_size=2, write_quorum=2, ack_quorum=2
        ) as writer:
            await writer.append(b"0")
        first, second = writer.metadata.last_fragment.bookies
        reader = await client.open_ledger(writer.ledger_id)
        names = asked(client)
        assert [e.payload async for e in reader.read(0, 0)] == [b"0"]
        assert names == [first]
        await world._registries[BookieId(first)].deregister()
        while client._context.directory.get(BookieId(first)) is not None:
            await asyncio.sleep(0.01)
        names.clear()
        assert [e.payload async for e in reader.read(0, 0)] == [b"0"]
        assert names == [second]

    run_virtually(test, bookies=2)


def test_replicas_share_the_readers() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        async with await client.create_ledger(
            ensemble_size=3, write_quorum=3, ack_quorum=2
        ) as writer:
            await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        names = asked(client)
        for hint in range(3):
            assert [e.payload async for e in reader.read(0, 0, replica_hint=hint)] == [b"0"]
        assert names == list(writer.metadata.last_fragment.bookies)

    run_virtually(test, bookies=3)


def test_a_bookie_that_was_overtaken_is_asked_last_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context, "BOOKIE_SUSPECT_S", 0.3)

    async def test(world: World) -> None:
        client = await world.client(speculative_read_delay_s=0.05)
        async with await client.create_ledger(
            ensemble_size=2, write_quorum=2, ack_quorum=2
        ) as writer:
            await writer.append(b"0")
        first, second = writer.metadata.last_fragment.bookies
        reader = await client.open_ledger(writer.ledger_id)
        transport = client._context.transport
        honest, names, is_stuck = transport.read, list[str](), [True]

        async def read(
            bookie_id: str, *args: Any, **kwargs: Any
        ) -> AsyncGenerator[ReadChunk, None]:
            names.append(bookie_id)
            if bookie_id == first and is_stuck[0]:
                await asyncio.Event().wait()
            async for chunk in honest(bookie_id, *args, **kwargs):  # type: ignore[arg-type]
                yield chunk

        transport.read = read  # type: ignore[method-assign]
        for expected in ([first, second], [second]):
            names.clear()
            assert [e.payload async for e in reader.read(0, 0)] == [b"0"]
            assert names == expected
        is_stuck[0] = False
        async with asyncio.timeout(5):
            while names[-1] != first:
                await asyncio.sleep(0.05)
                assert [e.payload async for e in reader.read(0, 0)] == [b"0"]

    run_virtually(test, bookies=2)


def test_bookie_that_is_overtaken_again_is_asked_last_from_then_on() -> None:
    async def test(world: World) -> None:
        known = (await world.client()).context
        for pause_s in (0.0, 0.6 * BOOKIE_SUSPECT_S, 0.6 * BOOKIE_SUSPECT_S):
            await asyncio.sleep(pause_s)
            known.slow(BookieId("b1"))
        assert known.slow_now() == {"b1"}
        await asyncio.sleep(0.9 * BOOKIE_SUSPECT_S)
        assert known.slow_now() == {"b1"}
        await asyncio.sleep(0.2 * BOOKIE_SUSPECT_S)
        assert known.slow_now() == set()

    async def tested() -> None:
        async with world_of() as made:
            await test(made)

    run_in_virtual_time(tested())  # `run_virtually` has a bound of 20 s


@pytest.mark.parametrize("rack", ["/r0", "/r1", "/r2"])
def test_bookie_in_the_rack_of_the_reader_is_asked_first(rack: str) -> None:
    async def test(world: World) -> None:
        client = await world.client(rack=rack)
        async with await client.create_ledger() as writer:
            await writer.append(b"0")
        reader = await client.open_ledger(writer.ledger_id)
        names = asked(client)
        for hint in range(3):
            assert [e.payload async for e in reader.read(0, 0, replica_hint=hint)] == [b"0"]
        assert {world.rack(name) for name in names} == {rack}

    run_virtually(test, bookies=3, racks=3)
