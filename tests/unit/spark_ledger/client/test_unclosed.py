"""A ledger whose end could not be stored: who closes it is told, and its connection closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import (
    AddOutcomeUnknownError,
    EnsembleLostError,
    LedgerClosedError,
    LedgerError,
    MetadataUnavailableError,
)
from spark_ledger.types import EntryId
from tests.unit.spark_ledger.client.world import World, run, run_virtually


def _cut_off(client: LedgerClient, *, hangs: bool = False) -> Callable[[], None]:
    """No ZooKeeper answers a change of this client; the function that is returned mends that."""
    ledgers = client.context.ledgers
    compare_and_set = ledgers.compare_and_set

    async def away(*_args: object, **_named: object) -> int:
        await asyncio.sleep(3600 if hangs else 0)
        raise MetadataUnavailableError("no ZooKeeper answered; nothing was changed")

    def mend() -> None:
        ledgers.compare_and_set = compare_and_set  # type: ignore[method-assign]

    ledgers.compare_and_set = away  # type: ignore[method-assign]
    return mend


@pytest.mark.parametrize("bookies", [3, 4])
def test_ledger_of_a_writer_that_stopped_in_an_outage_is_closed(bookies: int) -> None:
    """Without a spare the writer gives up, with one it cannot store the change."""

    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        reader = await other.open_ledger(writer.ledger_id)
        entries: list[int] = []

        async def follow() -> None:
            entries.extend([entry.entry_id async for entry in reader.tail(0)])

        tail = asyncio.create_task(follow())
        mend = _cut_off(client)
        killed = (await other.ledger_metadata(writer.ledger_id)).last_fragment.bookies
        killed = killed[: 5 - bookies]
        for bookie_id in killed:
            world.kill(bookie_id)
        with pytest.raises((EnsembleLostError, AddOutcomeUnknownError)):
            await writer.append(b"y")
        await asyncio.sleep(5)
        for bookie_id in killed:
            world.revive(bookie_id)
        with pytest.raises((EnsembleLostError, AddOutcomeUnknownError)):
            await writer.close()
        assert writer.is_left_open
        mend()
        await asyncio.wait_for(tail, 600)
        metadata = await other.ledger_metadata(writer.ledger_id)
        assert metadata.is_closed and len(entries) == metadata.last_entry_id + 1 >= 1
        assert not writer.is_left_open

    run_virtually(test, bookies=bookies)


@pytest.mark.parametrize("way", ["with", "finally"])
def test_append_that_may_be_stored_is_told_as_such_to_who_leaves_the_writer(way: str) -> None:
    """Who repeats what is safe to repeat would append it twice."""

    async def append(world: World, client: LedgerClient, writer: LedgerWriter) -> None:
        _cut_off(client)
        for bookie_id in writer.metadata.last_fragment.bookies[:2]:
            world.kill(bookie_id)
        await writer.append(b"y")

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        with pytest.raises(AddOutcomeUnknownError):
            if way == "with":
                async with writer:
                    await append(world, client, writer)
            try:
                await append(world, client, writer)
            finally:
                await writer.close()
        assert writer.is_left_open

    run_virtually(test, bookies=4)


def test_error_of_who_leaves_a_writer_comes_before_that_of_its_close() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        left, closed = await client.create_ledger(), await client.create_ledger()
        _cut_off(client)
        with pytest.raises(ValueError, match="of the caller"):
            async with left:
                raise ValueError("of the caller")
        assert left.is_left_open
        with pytest.raises(MetadataUnavailableError):
            async with closed:
                pass

    run_virtually(test)


def test_writer_that_nobody_closes_is_seen_to_and_close_says_nothing_then() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        mend = _cut_off(client)
        world.kill("b0")
        world.kill("b1")
        with pytest.raises(LedgerError):
            await writer.append(b"y")
        mend()
        world.revive("b0")
        world.revive("b1")
        await asyncio.sleep(15)
        assert (await client.ledger_metadata(writer.ledger_id)).is_closed
        await writer.close()
        await writer.close()
        assert not writer.is_left_open

    run_virtually(test)


def test_close_that_fails_is_made_good() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        mend = _cut_off(client)
        with pytest.raises(MetadataUnavailableError):
            await writer.close()
        client.close_later(writer.ledger_id)  # as a stream does: it has one turn all the same
        assert client._left_open.ledger_ids == [writer.ledger_id]
        mend()
        await asyncio.sleep(10)
        assert (await client.ledger_metadata(writer.ledger_id)).is_closed

    run_virtually(test)


def test_close_that_is_repeated_until_it_succeeds_does_once_the_ledger_is_closed() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        mend = _cut_off(client)
        for _ in range(2):
            with pytest.raises(MetadataUnavailableError):
                await writer.close()
        mend()
        await asyncio.sleep(10)
        assert not writer.is_left_open
        await writer.close()

    run_virtually(test)


def test_close_behind_tasks_that_were_cancelled_says_so() -> None:
    """And not that the connection was closed: it is open, and closes the ledger."""

    async def test(world: World) -> None:
        client = await world.client()
        ours = asyncio.all_tasks()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        mend = _cut_off(client, hangs=True)
        killed = writer.metadata.last_fragment.bookies[:2]
        for bookie_id in killed:
            world.kill(bookie_id)
        appended = writer.append_nowait(b"y")
        await asyncio.sleep(1)
        for task in asyncio.all_tasks() - ours:
            task.cancel()
        with pytest.raises(AddOutcomeUnknownError, match="cancelled"):
            await appended
        with pytest.raises(LedgerClosedError, match="a task of this connection was cancelled"):
            await writer.close()
        mend()
        for bookie_id in killed:
            world.revive(bookie_id)
        await asyncio.sleep(15)
        assert not writer.is_left_open
        await writer.close()

    run_virtually(test, bookies=5)


def test_ledger_with_a_password_is_closed_with_it() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(password=b"secret")
        assert await writer.append(b"x") == 0
        mend = _cut_off(client)
        with pytest.raises(MetadataUnavailableError):
            await writer.close()
        mend()
        while writer.is_left_open:
            await asyncio.sleep(0.1)
        assert (await client.ledger_metadata(writer.ledger_id)).last_entry_id == 0

    run(test)


def test_ledger_that_another_client_recovers_is_its_own() -> None:
    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        await other.open_ledger(writer.ledger_id, recover=True)
        with pytest.raises(LedgerError):
            await writer.append(b"y")
        assert client._left_open.ledger_ids == []
        await writer.close()

    run_virtually(test)


@pytest.mark.parametrize("is_another", [False, True])
def test_ledger_of_a_restored_zookeeper_is_left_alone(is_another: bool) -> None:
    """One that lost a fragment would be closed below what was confirmed in it."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        assert await writer.append(b"x") == 0
        mend = _cut_off(client)
        with pytest.raises(MetadataUnavailableError):
            await writer.close()
        mend()
        ours = writer.metadata
        first = ours.fragments[0]
        later = first._replace(first_entry=EntryId(1))
        writer._unclosed._ended_with = (
            ours.with_changes(incarnation=b"another one.....")
            if is_another
            else ours.with_changes(fragments=(first, later))
        )
        await asyncio.sleep(10)
        assert not (await client.ledger_metadata(writer.ledger_id)).is_closed
        assert client._left_open.ledger_ids == []

    run_virtually(test)
