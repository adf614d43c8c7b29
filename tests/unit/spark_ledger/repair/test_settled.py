"""A mark goes with the last name that a ledger of several fragments needs, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.repair.ledger import LedgerRepair
from spark_ledger.repair.nodes import mark
from spark_ledger.types import BookieId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import wipe
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import crew, lacking, lose, marked


async def of_two_fragments(
    world: World, client: LedgerClient, *, stays: bool = True
) -> tuple[LedgerWriter, str]:
    """A ledger whose writer replaced a member behind entry 19, and a bookie of its first fragment
    that is lost since: one that is in the second as well, or the one that was replaced."""
    writer = await filled(client)
    replaced, member, _ = writer.metadata.last_fragment.bookies
    world.kill(replaced)
    await writer.append(b"20")
    assert len(writer.metadata.fragments) == 2
    lost = member if stays else replaced
    if stays:
        world.revive(replaced)
    await lose(world, lost)
    await mark(client.store, writer.ledger_id, frozenset([BookieId(lost)]), 2)
    return writer, lost


def test_ledger_of_several_fragments_is_settled_with_the_last() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer, lost = await of_two_fragments(world, client)
        await writer.close()
        cared = await crew(world)
        await cared.worker.run_pass()
        assert await marked(world) == {}
        found = await client.ledger_metadata(writer.ledger_id)
        assert all(lost not in each.bookies for each in found.fragments)
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=6)


def test_mark_stays_when_the_fragment_behind_the_last_name_lacks_an_entry() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer, _ = await of_two_fragments(world, client, stays=False)
        await writer.close()
        for name in writer.metadata.last_fragment.bookies:
            wipe(world, name, writer, 20)
        await (await crew(world)).worker.run_pass()
        assert set(await marked(world)) == {writer.ledger_id}

    run_virtually(test, bookies=6)


def test_mark_stays_when_a_fragment_before_the_last_name_lacks_an_entry() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        first, *_ = writer.metadata.last_fragment.bookies
        world.kill(first)
        await writer.append(b"20")
        await writer.close()
        world.revive(first)
        before, after = writer.metadata.fragments
        (lost,) = set(after.bookies) - set(before.bookies)
        for name in before.bookies:
            wipe(world, name, writer, 7)
        await lose(world, lost)
        await mark(client.store, writer.ledger_id, frozenset([BookieId(lost)]), 2)
        await (await crew(world)).worker.run_pass()
        assert set(await marked(world)) == {writer.ledger_id}
        found = await client.ledger_metadata(writer.ledger_id)
        assert lost not in found.last_fragment.bookies

    run_virtually(test, bookies=6)


def test_mark_stays_while_the_fragment_of_the_writer_names_the_lost_bookie() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer, lost = await of_two_fragments(world, client)
        await (await crew(world)).worker.run_pass()
        assert await marked(world) == {LedgerId(writer.ledger_id): 2}
        first, last = (await client.ledger_metadata(writer.ledger_id)).fragments
        assert lost in last.bookies and lost not in first.bookies
        await writer.close()

    run_virtually(test, bookies=6)


def test_try_that_fails_beside_a_new_mark_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        await mark(client.store, writer.ledger_id, frozenset(), 2)
        refill, found = LedgerRepair._refill_others, [writer.ledger_id]

        async def fail_beside_a_new_mark(*given: Any) -> None:
            while found:
                await mark(client.store, found.pop(), frozenset(), 2)
                raise BookieUnavailableError("b1 is away")
            await refill(*given)

        monkeypatch.setattr(LedgerRepair, "_refill_others", fail_beside_a_new_mark)
        cared = await crew(world)
        await cared.worker.run_pass()
        await cared.worker.run_pass()
        assert await marked(world) == {}, "it was tried again, on a clock that stands still"

    run_virtually(test)


def test_copies_of_one_fragment_are_not_named_in_the_next() -> None:
    """That one cannot be read now, and its lost member is the only one that may have it."""

    async def test(world: World) -> None:
        client = await world.client()
        writer, lost = await of_two_fragments(world, client)
        await writer.close()
        last = writer.metadata.last_fragment.bookies
        for name in set(last) - {lost}:
            wipe(world, name, writer, 20)
        await (await crew(world)).worker.run_pass()
        first, second = (await client.ledger_metadata(writer.ledger_id)).fragments
        assert lost not in first.bookies and second.bookies == last
        assert set(await marked(world)) == {writer.ledger_id}

    run_virtually(test, bookies=7)
