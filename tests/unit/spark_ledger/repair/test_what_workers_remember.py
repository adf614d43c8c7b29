"""What a worker remembers of ledgers, beside others that repair the same ones."""

from __future__ import annotations

from spark_ledger.repair.nodes import mark
from spark_ledger.types import BookieId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import crew, lose, marked


def test_writer_whose_bookie_is_lost_again_has_all_of_its_grace() -> None:
    """Another worker took the mark off in between: this one has nothing to remember."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        name = BookieId(min(writer.metadata.last_fragment.bookies))
        first, second = await crew(world), await crew(world)
        await lose(world, name)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([name]), 2)
        await first.worker.run_pass()
        world.revive(name)
        await world.register(name)
        await second.worker.run_pass()
        assert await marked(world) == {}, "it is there again"
        await first.worker.run_pass()
        first.clock.now += 1000.0
        await lose(world, name)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([name]), 2)
        await first.worker.run_pass()
        assert not (await client.ledger_metadata(writer.ledger_id)).is_closed
        first.clock.now += 201.0
        await first.worker.run_pass()
        assert (await client.ledger_metadata(writer.ledger_id)).is_closed

    run_virtually(test, bookies=5)


def test_ledger_that_another_worker_repaired_is_paused_no_more() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        name = BookieId(min(writer.metadata.last_fragment.bookies))
        first, second = await crew(world), await crew(world)
        await lose(world, name)
        for other in set(world.bookies) - {name}:
            world.kill(other)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([name]), 2)
        await first.worker.run_pass()
        for other in set(world.bookies) - {name}:
            world.revive(other)
        await second.worker.run_pass()
        assert await marked(world) == {}
        await first.worker.run_pass()
        assert first.worker._paused == {} == first.worker._waiting_since
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        assert await first.worker.run_pass() == 1, "it is new to this worker"
        assert await marked(world) == {}

    run_virtually(test, bookies=4)
