"""What the auditor remembers of bookies that go and come again."""

from __future__ import annotations

import pytest

from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.world import crew, give_cookies, lacking, lose, marked


@pytest.mark.leaves_open("bookies that count as used", reason="some do, so that they come last")
def test_bookie_that_came_back_is_lost_like_any_other_the_next_time() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared, name = await world.client(), await crew(world), "b0"
        client.context.use([BookieId(f"b{n}") for n in range(1, 6)], +1)  # b0 is chosen first
        for _ in range(3):
            writer = await client.create_ledger()
            await writer.append(b"x")
            await writer.close()
            assert name in writer.metadata.last_fragment.bookies
            await lose(world, name)
            await cared.passes(130)
            ledger = await client.ledger_metadata(writer.ledger_id)
            assert name not in ledger.last_fragment.bookies
            assert await lacking(world, client, writer.ledger_id) == []
            assert await marked(world) == {}
            world.revive(name)
            await world.register(name)
            await client.context.directory.refresh()
            await client.context.suspects.answers(BookieId(name), ask_now=True)
            await cared.passes(10)

    run_virtually(test, bookies=6)
