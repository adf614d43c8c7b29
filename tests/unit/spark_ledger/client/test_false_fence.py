"""A bookie tells a writer of a fence, and the client looks into the metadata (rule P18)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.bookie_api import Done
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import AddOutcomeUnknownError, FencedError
from spark_ledger.metadata.memory import Outcome
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, BookieStatus, LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.client.test_writer import lose
from tests.unit.spark_ledger.client.world import World, run, run_virtually


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

    run_virtually(test, bookies=bookies)


def test_liar_without_whom_nothing_goes_on_is_replaced() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        liar = lie(world, writer, 0)
        left = lose(client, "get", [Outcome.UNAVAILABLE] * 2)
        assert await writer.append(b"1") == 1
        assert not left and liar not in writer.metadata.last_fragment.bookies

    run_virtually(test)


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

    run_virtually(test)


def test_fence_that_nobody_can_check_ends_in_an_unknown_outcome() -> None:
    async def test(world: World) -> None:
        client = await world.client(metadata_timeout_s=0.1)
        writer = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        lie(world, writer, 0)
        lose(client, "get", [Outcome.UNAVAILABLE] * 1000)
        with pytest.raises(AddOutcomeUnknownError, match="says that another client has fenced"):
            await writer.append(b"1")

    run_virtually(test)


def refuse_all(world: World, liar: BookieId) -> set[LedgerId]:
    """The bookie speaks of a fence to every writer, and answers probes as if it were well; the
    ledgers that it was asked to store."""
    asked: set[LedgerId] = set()

    def add(run: EntryRun, *, done: Done, **_rest: Any) -> None:
        asked.add(run.ledger_id)
        done(BookieStatus.FENCED, "fenced")

    world.bookies[liar].add = add  # type: ignore[method-assign]
    return asked


def test_bookie_that_lied_of_a_fence_is_not_chosen_for_new_ledgers() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        liar = BookieId("b0")
        asked = refuse_all(world, liar)
        for _number in range(10):
            writer = await client.create_ledger()
            await writer.append(b"0")
            await writer.append(b"1")
            await writer.close()
            assert await client._context.suspects.answers(liar), "a probe clears it of nothing"
        assert len(asked) <= 1, "the first ledger that meets it tells all the others"

    run_virtually(test, bookies=4)


def test_bookie_that_lied_is_chosen_where_there_are_not_enough_others() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        refuse_all(world, BookieId("b0"))
        for _number in range(3):
            writer = await client.create_ledger()  # three of three, and two are enough
            for number in range(3):
                assert await writer.append(b"%d" % number) == number
            await writer.close()

    run_virtually(test)


def test_fence_that_is_real_makes_nobody_a_suspect() -> None:
    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        await other.open_ledger(writer.ledger_id, recover=True)
        with pytest.raises(FencedError):
            await writer.append(b"1")
        assert not client._context.suspects.now()

    run_virtually(test)


def test_fence_that_a_lagging_server_does_not_show_yet_is_no_lie() -> None:
    """What decides over three honest bookies has to be newer than what they say (rule P18)."""

    async def test(world: World) -> None:
        client, other = await world.client(), await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        older = await client.context.ledgers.read(writer.ledger_id)
        await other.open_ledger(writer.ledger_id, recover=True)

        async def lags(_ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
            return older

        client.context.ledgers.read = lags  # type: ignore[method-assign, assignment]
        with pytest.raises(FencedError):
            await writer.append(b"1")
        assert not client.context.suspects.now()

    # In real time: a writer that takes them for liars would ask again and again.
    run(test)
