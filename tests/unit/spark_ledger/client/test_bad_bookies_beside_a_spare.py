"""Bad bookies, and more of them than places in an ensemble: they take each other's place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.errors import EnsembleLostError
from spark_ledger.types import BookieStatus
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.spark_ledger.client.world import World, world
from tests.unit.virtual_time import run_in_virtual_time


def run_for_minutes(test: Callable[[World], Awaitable[None]]) -> None:
    """Beside four bookies, of which an ensemble has three."""

    async def tested() -> None:
        async with world(4) as made:
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


def test_stalled_bookies_beside_a_spare_cost_a_writer_few_writes_of_its_metadata() -> None:
    """Each that says so was replaced at once by one that says so at once, until the writer ended
    with an internal error."""

    async def test(world: World) -> None:
        client = await world.client()
        for bookie in list(world.bookies.values())[1:]:
            spoil(bookie, BookieStatus.STALLED)
        writer = await client.create_ledger()
        with pytest.raises(EnsembleLostError, match="stalled"):
            await writer.append(b"x")
        version = (await client.context.ledgers.read(writer.ledger_id)).version
        assert version <= 12
        await writer.close()

    run_for_minutes(test)
