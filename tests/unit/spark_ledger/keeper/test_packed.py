"""The keeper deletes the former ledgers of packed commits, and packs of dropped ones (rule T25)."""

from __future__ import annotations

from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes, read


def test_former_ledgers_go_at_the_next_sweep_and_the_pack_with_its_commits() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 5)
        reader = await StreamCatalog(await world.client()).open("s")
        assert await read(reader) == [0, 1, 2, 3, 4]
        clock = Clock()
        cared = await elected(world, clock)
        (packed,) = await stream.optimizer.run_all(entries_min=1)
        assert packed.pack is not None
        await passes(cared, clock, 180)
        assert await ledgers(world) == {packed.pack.ledger_id}
        fresh = await StreamCatalog(await world.client()).open("s")
        assert await read(reader) == await read(fresh) == [0, 1, 2, 3, 4]
        await closed_commits(world, stream, 1)
        await stream.retention.truncate((5,))
        await passes(cared, clock, 240)
        assert packed.pack.ledger_id not in await ledgers(world)
        assert await read(fresh) == [5] and len(await ledgers(world)) == 1

    run(test)
