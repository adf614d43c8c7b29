"""Handles and portals that end while somebody waits for them, or one of several cannot end."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from spark_ledger.client.blocking import LedgerConnection
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.errors import AddOutcomeUnknownError, LedgerClosedError, MetadataUnavailableError
from spark_ledger.limits import KIB
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_producer_that_waits_for_room_is_told_of_a_close_that_makes_none() -> None:
    """One bookie stays busy and holds the room: the ledger is closed without it."""

    async def test(world: World) -> None:
        client = await world.client(bytes_in_flight_max=64 * KIB)
        writer = await client.create_ledger()
        slow = world.bookies[writer.metadata.last_fragment.bookies[0]]
        slow.hold = True
        await writer.append_many([bytes(32 * KIB)] * 2)
        waiting = asyncio.create_task(writer.append(b"late"))
        await asyncio.sleep(0)
        assert not waiting.done() and not writer.has_room
        await writer.close()
        with pytest.raises(LedgerClosedError):
            await asyncio.wait_for(waiting, 1.0)

    run_virtually(test)


def test_writer_that_cannot_be_ended_keeps_no_other_from_being_told_of_the_end() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writers = [await client.create_ledger() for _ in range(3)]
        for bookie in world.bookies.values():
            bookie.hold = True
        futures = [writer.append_nowait(b"in flight") for writer in writers]
        failing = [writer.abandon for writer in writers]

        async def fail_once() -> None:
            await failing.pop(0)()
            raise RuntimeError("a bug of ours")

        abandons = [writer.abandon for writer in writers]
        for writer in writers:
            writer.abandon = fail_once  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="a bug of ours"):
            await client.close()
        assert not failing
        for writer, abandon in zip(writers, abandons, strict=True):
            writer.abandon = abandon  # type: ignore[method-assign]
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(error) for error in errors] == [AddOutcomeUnknownError] * 3

    run_virtually(test)


def test_portal_of_a_process_that_ends_is_not_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an exit handler that connects has a thread that the interpreter stops in its middle."""
    ended = BlockingPortal()
    monkeypatch.setattr(BlockingPortal, "_current", ended)
    ended._stop()
    assert BlockingPortal.get() is ended
    with pytest.raises(LedgerClosedError, match="process is ending"):
        BlockingPortal.get().call(asyncio.sleep(0))
    ended.loop.close()


def test_connection_that_could_not_be_closed_well_is_closed_all_the_same() -> None:
    """Its parts are gone: what is asked of it would fail with whatever comes first."""

    class Client:
        async def close(self) -> None:
            raise MetadataUnavailableError("the session cannot be ended")

        async def list_ledgers(self) -> list[int]:
            raise AssertionError("nothing is asked")

    connection = LedgerConnection(BlockingPortal.get(), cast(LedgerClient, Client()))
    with pytest.raises(MetadataUnavailableError):
        connection.close()
    connection.close()
    with pytest.raises(LedgerClosedError, match="connect again"):
        connection.list_ledgers()
