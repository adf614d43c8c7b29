"""Members of an ensemble that are not registered any more still are where they were."""

from __future__ import annotations

from spark_ledger.protocol.events import ChooseBookies
from spark_ledger.types import BookieId, PlacementPolicy, Quorums
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_replacement_is_not_put_into_the_rack_of_a_member_that_is_not_registered() -> None:
    """As one whose session has just ended: it holds its copies, and is a member still."""

    async def test(world: World) -> None:
        client = await world.client()
        context = client.context
        context.directory.policy = PlacementPolicy(min_racks=3)
        ensemble = tuple(BookieId(f"b{n}") for n in range(3))
        await world._registries[BookieId("b2")].deregister()
        assert "b2" not in [info.bookie_id for info in await client.list_bookies()]
        context.directory.policy = PlacementPolicy(min_racks=3)
        wanted = ChooseBookies(
            (0,), frozenset(ensemble), {0: ensemble[0]}, {}, ensemble, Quorums(3, 3, 2)
        )
        world.kill("b0")
        for _ in range(20):
            chosen = await context.replacements(wanted)
            assert chosen.replacements[0] in ("b3", "b6"), "in the rack of the one that failed"
        assert client.counters.misplaced == 0

    run_virtually(test, bookies=9, racks=3)
