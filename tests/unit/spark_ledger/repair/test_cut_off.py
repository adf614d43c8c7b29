"""Repair that is cut off at any of its waits: this process goes on with the same ledger, alone."""

from __future__ import annotations

import asyncio

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.metadata.repair_locks import LOCKS_PATH
from spark_ledger.repair.locking import repair_lock
from spark_ledger.repair.nodes import mark
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, LedgerId
from tests.unit.cut_off import cut_off, cut_off_at_each_wait
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.client.world import world as new_world
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import crew, lacking, lose, marked


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
    async def test(_: World) -> None:
        async def one(wait: int) -> bool:
            async with new_world(5) as world:
                client = await world.client()
                writer = await filled(client, 4)
                await writer.close()
                name = BookieId(min(writer.metadata.last_fragment.bookies))
                await lose(world, name)
                await mark(client.store, writer.ledger_id, frozenset([name]), 2)
                cared = await crew(world)
                before = asyncio.all_tasks()
                was_cut = await cut_off(cared.worker.run_pass(), wait)
                assert asyncio.all_tasks() == before, f"cut off at wait {wait}"
                assert not appenders(cared.worker._client), f"cut off at wait {wait}"
                await cared.worker.run_pass()
                assert await marked(world) == {}, f"cut off at wait {wait}"
                assert await lacking(world, client, writer.ledger_id) == []
                assert await client.store.children(LOCKS_PATH) == []
                return was_cut

        assert await cut_off_at_each_wait(one) > 5

    run_virtually(test)
