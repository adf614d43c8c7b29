"""What a client is told of its bookies: as they are now where it asks, and never of its own."""

from __future__ import annotations

from dataclasses import replace

from spark_ledger.types import BookieId, PlacementPolicy, Quorums
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_list_of_bookies_shows_what_they_say_now() -> None:
    """Free space changes without a notice: an operator who looks would see that of minutes ago."""

    async def test(world: World) -> None:
        client = await world.client()
        before = {info.bookie_id: info for info in await client.list_bookies()}
        for number, (name, info) in enumerate(before.items(), start=1):
            await world._registries[name].register(replace(info, free_bytes=number))
        assert [info.free_bytes for info in await client.list_bookies()] == [1, 2, 3]
        assert [info.free_bytes for info in client.registered_bookies()] == [1, 2, 3]

    run_virtually(test)


def test_copy_that_moves_into_a_missing_rack_does_not_move_to_a_suspect() -> None:
    """It is moved without need: to whoever failed a moment ago it would be moved in vain."""

    async def test(world: World) -> None:
        context = (await world.client()).context
        context.directory.policy = PlacementPolicy(min_racks=2)
        members = [BookieId("b0"), BookieId("b2"), BookieId("b4")]  # all in /r0
        quorums = Quorums(3, 3, 2)
        context.suspect(BookieId("b1"))
        for _ in range(20):
            assert set(context.moves(members, quorums, ()).values()) <= {"b3", "b5"}
            assert set(context.moves(members, quorums, ["b5"]).values()) == {"b3"}  # type: ignore[list-item]
        context.suspect(BookieId("b3"))
        context.suspect(BookieId("b5"))
        assert context.moves(members, quorums, ()) == {}, "nobody is left in the other rack"

    run_virtually(test, bookies=6, racks=2)


def test_entries_that_were_queued_when_the_connection_ended_count_as_appended_no_more() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for bookie in world.bookies.values():
            bookie.hold = True
        futures = [writer.append_nowait(bytes(10)), writer.append_nowait(bytes(100))]
        assert (writer.last_add_pushed, writer.length) == (1, 110)
        await writer.abandon()
        assert (writer.last_add_pushed, writer.length) == (0, 10), "the second was never sent"
        assert all(future.exception() is not None for future in futures)

    run_virtually(test)
