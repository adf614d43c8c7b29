"""Repair that is cut off at any of its waits: this process goes on with the same ledger, alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.metadata.repair_locks import LOCKS_PATH
from spark_ledger.repair import decommission
from spark_ledger.repair.decommission import drain
from spark_ledger.repair.locking import repair_lock
from spark_ledger.repair.nodes import mark
from spark_ledger.repair.rebalance import Rebalance
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, LedgerId
from tests.unit.cut_off import cut_off, cut_off_at_each_wait
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.client.world import world as new_world
from tests.unit.spark_ledger.repair.test_rebalance import CONFIG as REBALANCE
from tests.unit.spark_ledger.repair.test_rebalance import before_it_came
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import crew, give_cookies, lacking, lose, marked
from tests.unit.virtual_time import run_in_virtual_time

WORK = WorkerConfig(bytes_per_s=1e12, pass_s=0.05, open_grace_s=1.0, despite_losses=True)


def appenders(client: LedgerClient) -> int:
    """Streams to bookies that are open."""
    transport = client.context.transport
    assert isinstance(transport, MemoryTransport)
    return len(transport._appenders)


def test_lock_can_be_taken_again_wherever_its_holder_was_cut_off() -> None:
    async def test(world: World) -> None:
        store = (await world.client()).store

        async def hold() -> None:
            async with repair_lock(store, LedgerId(7)) as key:
                assert key is not None
                await asyncio.sleep(0)

        async def one(wait: int) -> bool:
            was_cut = await cut_off(hold(), wait)
            async with repair_lock(store, LedgerId(7)) as key:
                assert key is not None, f"cut off at wait {wait}"
            return was_cut

        assert await cut_off_at_each_wait(one) >= 3

    run_virtually(test)


def test_pass_that_is_cut_off_at_any_wait_is_done_by_the_next() -> None:
    async def one(wait: int) -> bool:
        async with new_world(5) as world:
            client = await world.client()
            writer = await filled(client, 4)
            await writer.close()
            name = BookieId(min(writer.metadata.last_fragment.bookies))
            await lose(world, name)
            await mark(client.store, writer.ledger_id, frozenset([name]), 2)
            cared = await crew(world)
            was_cut = await cut_off(cared.worker.run_pass(), wait)
            await cared.worker.run_pass()
            assert await marked(world) == {}, f"cut off at wait {wait}"
            assert await lacking(world, client, writer.ledger_id) == []
            assert await client.store.children(LOCKS_PATH) == []
            return was_cut

    assert run_in_virtual_time(cut_off_at_each_wait(one)) > 5


async def _drain(client: LedgerClient, name: BookieId) -> None:
    await drain(client, name, WORK, told=lambda _named: None)


async def _rebalance(client: LedgerClient, _name: BookieId) -> None:
    await Rebalance(client, REBALANCE).run()


@pytest.mark.parametrize("role", [_drain, _rebalance])
def test_role_that_ends_or_is_cut_off_at_any_wait_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch, role: Callable[[LedgerClient, BookieId], Awaitable[None]]
) -> None:
    """Its client is closed next."""
    monkeypatch.setattr(decommission, "_PAUSE_S", 0.01)
    monkeypatch.setattr(decommission, "_LOOK_S", 0.001)

    async def one(wait: int) -> bool:
        async with new_world(5) as world:
            await give_cookies(world)
            client, working = await world.client(), await world.client()
            ledgers = await before_it_came(world, client, 3)
            metadata = await client.ledger_metadata(ledgers[0])
            name = BookieId(min(metadata.last_fragment.bookies))
            before = asyncio.all_tasks()
            was_cut = await cut_off(role(working, name), wait)
            assert asyncio.all_tasks() == before, f"cut off at wait {wait}"
            assert not appenders(working), f"cut off at wait {wait}"
            return was_cut

    assert run_in_virtual_time(cut_off_at_each_wait(one)) > 5
