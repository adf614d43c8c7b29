"""A bookie tells a writer of a fence, and the client looks into the metadata (rule P18)."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import AddOutcomeUnknownError
from spark_ledger.metadata.memory import Outcome
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.test_writer import lose
from tests.unit.spark_ledger.client.world import World, run


def lie(world: World, writer: LedgerWriter, index: int) -> BookieId:
    """The bookie at the index refuses the writer from now on; nobody recovers the ledger."""
    liar = writer.metadata.last_fragment.bookies[index]
    world.bookies[liar].ledgers[writer.ledger_id].fenced = True
    return liar


@pytest.mark.parametrize("bookies", [3, 4])
def test_bookie_that_lies_of_a_fence_costs_no_entry(bookies: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        lie(world, writer, 1)
        for number in range(1, 10):
            assert await writer.append(b"%d" % number) == number
        assert len(writer.metadata.fragments) == bookies - 2, "replaced if there is another"
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.last_add_confirmed == 9

    run(test, bookies=bookies)


def test_liar_without_whom_nothing_goes_on_is_replaced() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        liar = lie(world, writer, 0)
        left = lose(client, "get", [Outcome.UNAVAILABLE] * 2)
        assert await writer.append(b"1") == 1
        assert not left and liar not in writer.metadata.last_fragment.bookies

    run(test)


def test_entries_are_confirmed_while_the_metadata_that_could_tell_are_away() -> None:
    async def test(world: World) -> None:
        client = await world.client(metadata_timeout_s=0.1)
        writer = await client.create_ledger()
        await writer.append(b"0")
        lie(world, writer, 2)
        left = lose(client, "get", [Outcome.UNAVAILABLE] * 6)
        for number in range(1, 4):
            assert await writer.append(b"%d" % number) == number
        while left:
            await asyncio.sleep(0.05)
        assert await writer.append(b"4") == 4

    run(test)


def test_fence_that_nobody_can_check_ends_in_an_unknown_outcome() -> None:
    async def test(world: World) -> None:
        client = await world.client(metadata_timeout_s=0.1)
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        lie(world, writer, 0)
        lose(client, "get", [Outcome.UNAVAILABLE] * 1000)
        with pytest.raises(AddOutcomeUnknownError, match="says that another client has fenced"):
            await writer.append(b"1")

    run(test)
