"""Bad bookies, and more of them than places in an ensemble: they take each other's place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.errors import EnsembleLostError, RecoveryError
from spark_ledger.limits.client import STALLED_BOOKIES_WAIT_S
from spark_ledger.types import BookieStatus
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.spark_ledger.client.world import World, world
from tests.unit.virtual_time import run_in_virtual_time


def run_for_minutes(test: Callable[[World], Awaitable[None]], bookies: int = 4) -> None:
    """Beside more bookies than the three of an ensemble."""

    async def tested() -> None:
        async with world(bookies) as made:
            await test(made)

    run_in_virtual_time(tested())


def spoil(
    bookie: ScriptedBookie, status: BookieStatus, is_wanted: Callable[[int], bool] | None = None
) -> None:
    """The bookie stores nothing, and answers with this: to all adds, or to those with the numbers
    that are wanted, while it says of the others that it has stored them."""
    seen = 0

    def add(*_args: Any, done: Callable[[BookieStatus, str], None], **_options: Any) -> None:
        nonlocal seen
        seen += 1
        told = status if is_wanted is None or is_wanted(seen) else BookieStatus.OK
        asyncio.get_running_loop().call_later(0.001, done, told, "")

    bookie.add = add  # type: ignore[method-assign]


@pytest.mark.parametrize("status", [BookieStatus.IO_ERROR, BookieStatus.UNAVAILABLE])
def test_two_that_fail_again_and_again_cost_a_ledger_few_fragments(status: BookieStatus) -> None:
    """Each was put in for the other as soon as it failed: thirty fragments a second, until the
    metadata were full."""

    async def test(world: World) -> None:
        client = await world.client()
        for bookie in list(world.bookies.values())[2:]:
            spoil(bookie, status, lambda number: number % 2 == 0)
        writer = await client.create_ledger()
        for _ in range(600):
            await writer.append(b"x")
            await asyncio.sleep(0.1)
        assert len(writer.metadata.fragments) <= 10
        assert writer.last_add_confirmed == 599
        await writer.close()

    run_for_minutes(test)


@pytest.mark.parametrize("bookies", [4, 6])
def test_stalled_bookies_beside_a_spare_cost_a_writer_few_writes_of_its_metadata(
    bookies: int,
) -> None:
    """Each that says so was replaced at once by one that says so at once, until the writer ended
    with an internal error."""

    async def test(world: World) -> None:
        client = await world.client()
        for bookie in list(world.bookies.values())[1:]:
            spoil(bookie, BookieStatus.STALLED)
        writer = await client.create_ledger()
        began = asyncio.get_running_loop().time()
        with pytest.raises(EnsembleLostError, match="stalled"):
            await writer.append(b"x")
        assert asyncio.get_running_loop().time() - began <= STALLED_BOOKIES_WAIT_S + 10.0
        version = (await client.context.ledgers.read(writer.ledger_id)).version
        assert version <= 6
        await writer.close()

    run_for_minutes(test, bookies)


@pytest.mark.parametrize("apart_s", [0.0, 3.0, 10.0])
@pytest.mark.parametrize("bookies", [4, 6])
def test_bookies_that_stay_busy_beside_a_spare_end_a_writer(bookies: int, apart_s: float) -> None:
    """Each had its own half a minute, and again whenever it was put in for another that had had
    its own: an append waited for ever."""

    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()
        client = await world.client()
        writer = await client.create_ledger()
        good, *bad = writer.metadata.last_fragment.bookies
        for name, bookie in world.bookies.items():
            if name not in (good, bad[0]):
                spoil(bookie, BookieStatus.TOO_MANY_REQUESTS)
        waits_from = loop.time() + apart_s
        while loop.time() < waits_from:
            await writer.append(b"x")
            await asyncio.sleep(0.5)
        spoil(world.bookies[bad[0]], BookieStatus.TOO_MANY_REQUESTS)
        began = loop.time()
        with pytest.raises(EnsembleLostError):
            await writer.append(b"x")
        assert loop.time() - began <= 2 * STALLED_BOOKIES_WAIT_S + 15.0
        await writer.close()

    run_for_minutes(test, bookies)


@pytest.mark.parametrize("bookies", [4, 6])
def test_bookies_that_stay_busy_beside_a_spare_end_a_recovery(bookies: int) -> None:
    """It waited for ever, and whoever recovers one ledger after the other did nothing more."""

    async def test(world: World) -> None:
        loop = asyncio.get_running_loop()
        writer = await (await world.client(explicit_lac_delay_s=1000.0)).create_ledger()
        await writer.append(b"x")
        for name, bookie in world.bookies.items():
            if name != writer.metadata.last_fragment.bookies[0]:
                spoil(bookie, BookieStatus.TOO_MANY_REQUESTS)
        other = await world.client()
        began = loop.time()
        with pytest.raises(RecoveryError, match="too few writable bookies"):
            await other.open_ledger(writer.ledger_id, recover=True)
        assert loop.time() - began <= 2 * STALLED_BOOKIES_WAIT_S + 15.0

    run_for_minutes(test, bookies)


def test_bookie_that_had_its_time_is_taken_again_where_nobody_else_is_left() -> None:
    """It was busy for half a minute, and the ledger went on without it: now it is well, and the
    others are gone."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        busy, second, third = (world.bookies[b] for b in writer.metadata.last_fragment.bookies)
        honest = busy.add
        spoil(busy, BookieStatus.TOO_MANY_REQUESTS)
        for _ in range(70):
            await writer.append(b"x")
            await asyncio.sleep(0.5)
        names = {bookie: name for name, bookie in world.bookies.items()}
        assert names[busy] not in writer.metadata.last_fragment.bookies
        busy.add = honest  # type: ignore[method-assign]
        world.kill(names[second])
        world.kill(names[third])
        assert await writer.append(b"y") == 70
        assert names[busy] in writer.metadata.last_fragment.bookies
        await writer.close()

    run_for_minutes(test)
