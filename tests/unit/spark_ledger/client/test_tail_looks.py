"""A tail's looks at the metadata: after each change once more, and what comes of an outage."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import NoSuchEntryError
from spark_ledger.limits.client import TAIL_METADATA_WAIT_S, TAIL_RETRY_DELAY_S_MAX
from spark_ledger.types import LedgerMetadata, Versioned
from tests.unit.spark_ledger.client.test_tail import Followed, Outage, open_reader
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_change_while_the_metadata_are_read_is_looked_at_too() -> None:
    """The answer to the first look is from before the ledger was closed."""

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        client, reader = await open_reader(world, writer.ledger_id)
        honest, looks = client.context.ledgers.read_latest, list[int]()

        async def slow(ledger_id: int) -> Versioned[LedgerMetadata]:
            found = await honest(ledger_id)  # type: ignore[arg-type]
            looks.append(found.version)
            if len(looks) == 1:
                await writer.close()
                await asyncio.sleep(0.1)
            return found

        client.context.ledgers.read_latest = slow  # type: ignore[method-assign, assignment]
        followed = Followed(reader)
        await asyncio.wait_for(followed.task, 10)
        assert followed.found == [b"0"]
        assert len(looks) == 2

    run_virtually(test)


def test_second_outage_is_looked_into_as_soon_as_the_first() -> None:
    """How long it waits between looks begins anew once one has succeeded."""

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        client, reader = await open_reader(world, writer.ledger_id)
        outage, followed = Outage(client, delay_s=0.001), Followed(reader)
        await asyncio.sleep(0.1)
        for lasts_s in (8.0, 0.01):
            outage.on = True
            for watch in outage.store._watches:
                watch.notify()
            await asyncio.sleep(lasts_s)
            assert outage.requests
            outage.on = False
            await asyncio.sleep(2 * TAIL_RETRY_DELAY_S_MAX if lasts_s > 1 else 0.0)
        await writer.close()
        await asyncio.sleep(0.5)
        assert followed.task.done(), "it has looked again, and found the end"
        assert followed.found == []

    run_virtually(test)


def test_entry_that_nobody_has_fails_at_once_when_an_outage_is_over() -> None:
    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        client, reader = await open_reader(world, writer.ledger_id)
        outage, followed = Outage(client, delay_s=0.001), Followed(reader)
        await followed.has(1)
        outage.on = True
        for watch in outage.store._watches:
            watch.notify()
        await asyncio.sleep(1.0)
        outage.end()
        await asyncio.sleep(5.0)
        for bookie in world.bookies.values():
            bookie.ledgers[writer.ledger_id].last_add_confirmed = 7
            for watch in list(bookie.ledgers[writer.ledger_id].watches):
                watch()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(NoSuchEntryError):
            await followed.task
        assert loop.time() - began < TAIL_METADATA_WAIT_S / 10
        await writer.abandon()

    run_virtually(test)


def test_bug_where_the_metadata_are_read_ends_the_tail() -> None:
    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        client, reader = await open_reader(world, writer.ledger_id)
        followed = Followed(reader)
        await followed.has(1)

        async def broken(_ledger_id: int) -> Versioned[LedgerMetadata]:
            raise RuntimeError("a bug")

        client.context.ledgers.read_latest = broken  # type: ignore[method-assign, assignment]
        for watch in client.store._watches:  # type: ignore[attr-defined]
            watch.notify()
        with pytest.raises(RuntimeError, match="a bug"):
            await asyncio.wait_for(followed.task, 10)
        await writer.close()

    run_virtually(test)
