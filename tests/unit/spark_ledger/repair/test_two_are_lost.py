"""Ledgers of which several bookies are lost, one after the other: marks for each, little room."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.unsettled import id_path
from spark_ledger.repair.checker import Checker, CheckerConfig
from spark_ledger.repair.decommission import decommission
from spark_ledger.repair.nodes import PRIORITIES, Mark, mark_root
from spark_ledger.repair.status import look
from spark_ledger.types import BookieId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import closed, wipe
from tests.unit.spark_ledger.repair.world import WORK, crew, give_cookies, lacking, lose


async def marks(world: World, ledger_id: LedgerId) -> dict[int, tuple[str, ...]]:
    """What the marks of one ledger name, by the copies that it had left."""
    store = MemoryMetadataStore(world.tree)
    found = {
        copies: await read_node(store, Mark, id_path(mark_root(copies), ledger_id))
        for copies in PRIORITIES
    }
    await store.close()
    return {copies: node.value.bookies for copies, node in found.items() if node is not None}


async def back(world: World, client: LedgerClient, name: str) -> None:
    world.revive(name)
    await world.register(name)
    await client.context.directory.refresh()


async def names(client: LedgerClient, writer: LedgerWriter) -> tuple[BookieId, ...]:
    return (await client.ledger_metadata(writer.ledger_id)).last_fragment.bookies


def test_mark_with_fewer_copies_left_does_not_keep_a_later_one_from_its_turn() -> None:
    """Two bookies were away for a while, and are back when the third one is lost for good."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client, count=1, sizes=(3, 3, 2))
        gone, *away = writer.metadata.last_fragment.bookies
        cared = await crew(world)
        for each in away:
            await lose(world, each)
        await cared.passes(360)
        assert await marks(world, writer.ledger_id) == {1: tuple(sorted(away))}
        await lose(world, gone)
        await cared.passes(30)
        for each in away:
            await back(world, client, each)
        await cared.passes(300)
        assert gone not in await names(client, writer)
        assert await marks(world, writer.ledger_id) == {}
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=4)


def test_bookie_is_taken_out_although_its_ledger_had_holes_before() -> None:
    """The mark of the holes names nobody, and cannot go while a dead member does not answer. No
    keeper runs here: nobody has called that one lost."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client, sizes=(5, 3, 2))
        first, second, dead, *_ = map(BookieId, writer.metadata.last_fragment.bookies)
        wipe(world, first, writer, 3)
        wipe(world, second, writer, 1)
        await Checker(client, CheckerConfig(members_per_s=1e6)).check(writer.ledger_id)
        assert await marks(world, writer.ledger_id) == {1: ()}
        await lose(world, dead)
        async with asyncio.timeout(60.0):
            await decommission(client, dead, WORK, told=lambda _: None)
        assert dead not in await names(client, writer)
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=8)


def test_two_are_lost_and_there_is_room_for_one() -> None:
    """Who takes the copy is named at once; the other one waits for a bookie that comes."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client, sizes=(3, 3, 2))
        *lost, left = map(BookieId, writer.metadata.last_fragment.bookies)
        (spare,) = set(world.alive) - {*lost, left}
        for each in lost:
            await lose(world, each)
        cared = await crew(world)
        await cared.passes(3600)
        named = await names(client, writer)
        assert {left, spare} <= set(named) and len(set(named) & set(lost)) == 1
        assert (await look(client.store)).done.copied_entries == 20
        assert await marks(world, writer.ledger_id) == {1: tuple(sorted(lost))}
        (other,) = set(named) & set(lost)
        await back(world, cared.worker._client, other)
        await cared.passes(10)
        assert await names(client, writer) == named and await marks(world, writer.ledger_id) == {}
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("damaged", [0, 1])
def test_lost_bookie_is_replaced_although_an_entry_of_another_one_is_nowhere(damaged: int) -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client, sizes=(4, 2, 2))
        first, second, third, _ = map(BookieId, writer.metadata.last_fragment.bookies)
        wipe(world, second, writer, damaged)  # which the first one has, or the third one
        cared = await crew(world)
        for each in (first, third):
            await lose(world, each)
        await cared.passes(120)
        assert set(await names(client, writer)) & {first, third} == {(first, third)[damaged]}
        ((_, failed),) = (await look(client.store)).failed
        assert f"entry {damaged} cannot be read" in failed.reason
        assert await marks(world, writer.ledger_id) == {1: tuple(sorted([first, third]))}

    run_virtually(test, bookies=6)
