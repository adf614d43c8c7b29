"""A pass that lasts: what is marked, lost or stopped meanwhile does not wait for its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.metadata.json_nodes import write_node
from spark_ledger.repair.decommission import drain
from spark_ledger.repair.ledger import LedgerRepair
from spark_ledger.repair.nodes import STATE_PATH, AuditState, mark
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.worker import Worker
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import WORK, give_cookies, marked


async def closed(client: LedgerClient, count: int, copies: int = 2) -> list[LedgerId]:
    """So many ledgers, each marked with so many copies left."""
    made = []
    for _ in range(count):
        writer = await filled(client, 2)
        await writer.close()
        await mark(client.store, writer.ledger_id, frozenset(), copies)
        made.append(writer.ledger_id)
    return made


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[LedgerId]:
    """The ledgers that are repaired, as they are begun; each takes two seconds."""
    begun: list[LedgerId] = []
    run = LedgerRepair.run

    async def slow(repair: LedgerRepair, *given: Any) -> Any:
        begun.append(repair._ledger.value.ledger_id)
        await asyncio.sleep(2.0)
        return await run(repair, *given)

    monkeypatch.setattr(LedgerRepair, "run", slow)
    return begun


async def begun_pass(world: World, *, at_once: int) -> asyncio.Task[int]:
    worker = Worker(await world.client(), replace(WORK, at_once=at_once, pass_s=0.7))
    passing = asyncio.ensure_future(worker.run_pass())
    await asyncio.sleep(0.5)
    return passing


def test_ledger_that_loses_a_second_copy_comes_before_those_of_the_pass(
    order: list[LedgerId],
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        first, *others, last = await closed(client, 6)
        passing = await begun_pass(world, at_once=1)
        await mark(client.store, last, frozenset(), 1)
        assert await passing >= 6
        assert order[:2] == [first, last]
        assert set(order[2:]) >= set(others) and await marked(world) == {}

    run_virtually(test, bookies=5)


def test_ledger_that_is_marked_does_not_wait_for_a_large_one(order: list[LedgerId]) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await closed(client, 1)
        passing = await begun_pass(world, at_once=2)
        (late,) = await closed(client, 1)
        await asyncio.sleep(1.5)
        assert late in order and not passing.done()
        assert await passing == 2 and await marked(world) == {}

    run_virtually(test, bookies=5)


def test_ledger_that_is_marked_again_is_repaired_again(order: list[LedgerId]) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        first, second, third, fourth = await closed(client, 4)
        passing = await begun_pass(world, at_once=1)
        await asyncio.sleep(2.0)
        await mark(client.store, first, frozenset(), 2)
        await passing
        assert order == [first, second, first, third, fourth], "in its turn"
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("at_once", [1, 2])
def test_no_ledger_is_begun_once_too_many_bookies_are_gone(
    at_once: int, order: list[LedgerId]
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        made = await closed(client, 4)
        passing = await begun_pass(world, at_once=at_once)
        await write_node(client.store, STATE_PATH, AuditState(stopped="too many"), None)
        assert await passing == at_once
        assert order == made[:at_once], "what was begun is ended"
        assert set(await marked(world)) == set(made[at_once:])

    run_virtually(test, bookies=5)


def test_drain_does_not_wait_for_ledgers_that_others_lost(order: list[LedgerId]) -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        named = await filled(client)
        await named.close()
        left = named.metadata.last_fragment.bookies[0]
        await world._registries[left].deregister()
        await client.context.directory.refresh(all_again=True)
        others = await closed(client, 40, copies=3)
        await world.register(left)
        async with asyncio.timeout(18.0):
            await drain(await world.client(), left, replace(WORK, at_once=1), told=lambda _: None)
        assert left not in all_names(await client.ledger_metadata(named.ledger_id))
        assert len(await marked(world)) > 30 and set(await marked(world)) <= set(others)

    run_virtually(test, bookies=5)
