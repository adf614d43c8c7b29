"""Who takes the places of bookies that failed together: what the client answers a machine."""

from __future__ import annotations

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.protocol.events import BookiesChosen, ChooseBookies
from spark_ledger.types import BookieId, PlacementPolicy, Quorums
from tests.unit.spark_ledger.client.world import World, run_virtually

ENSEMBLE = tuple(BookieId(f"b{index}") for index in range(3))
TRIES = 20
"""Of several bookies that would do, one is drawn."""


async def replaced(
    client: LedgerClient, *indexes: int, silent: tuple[int, ...] = ()
) -> BookiesChosen:
    """What is chosen for places of the ensemble; a bookie at one of ``silent`` has not failed."""
    return await client.context.replacements(
        ChooseBookies(
            indexes,
            frozenset(ENSEMBLE),
            {index: ENSEMBLE[index] for index in indexes if index not in silent},
            {index: ENSEMBLE[index] for index in silent},
            ensemble=ENSEMBLE,
            quorums=Quorums(3, 3, 2),
        )
    )


def kill(world: World, *indexes: int) -> None:
    for index in indexes:
        world.kill(ENSEMBLE[index])


@pytest.mark.parametrize("bookies", [5, 6, 9])
def test_bookies_that_fail_together_are_replaced_by_different_ones(bookies: int) -> None:
    """One that takes two places holds two of the three copies."""

    async def test(world: World) -> None:
        client = await world.client()
        kill(world, 0, 2)
        for _ in range(TRIES):
            chosen = await replaced(client, 0, 2)
            assert set(chosen.replacements) == {0, 2}
            assert len({*chosen.replacements.values(), *ENSEMBLE}) == 5

    run_virtually(test, bookies=bookies)


def test_last_spare_takes_one_of_the_places() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        kill(world, 0, 2)
        chosen = await replaced(client, 0, 2)
        assert list(chosen.replacements.values()) == ["b3"]

    run_virtually(test, bookies=4)


def test_bookie_that_cannot_be_replaced_keeps_none_behind_it_from_that() -> None:
    """The only spare is where the second one was, and nothing may be in the wrong rack."""

    async def test(world: World) -> None:
        client = await world.client()
        client.context.directory.policy = PlacementPolicy(min_racks=3, strict=True)
        await world._registries[BookieId("b3")].deregister()
        await client.context.directory.refresh()
        kill(world, 0, 1)
        chosen = await replaced(client, 0, 1)
        assert chosen.replacements == {1: "b4"}

    run_virtually(test, bookies=5, racks=3)


def test_bookies_that_fail_together_are_replaced_in_different_racks() -> None:
    """The second is placed beside the first one's replacement, and not beside who failed there."""

    async def test(world: World) -> None:
        client = await world.client()
        client.context.directory.policy = PlacementPolicy(min_racks=3, strict=True)
        kill(world, 0, 1)
        for _ in range(TRIES):
            chosen = await replaced(client, 0, 1)
            assert set(chosen.replacements.values()) == {"b3", "b4"}

    run_virtually(test, bookies=5, racks=3)


@pytest.mark.parametrize("how", ["suspected", "lost", "excluded", "loaded", "a member"])
def test_copies_are_moved_to_bookies_that_can_take_them(how: str) -> None:
    """Bookies b0, b3 and b6 are in one rack, b1, b4 and b7 in the next, b2, b5 and b8 in another:
    one copy has to go there."""

    async def test(world: World) -> None:
        client = await world.client()
        client.context.directory.policy = PlacementPolicy(min_racks=3)
        members = [BookieId(name) for name in ("b0", "b3", "b1")]
        passed_over = BookieId("b2")
        excluded: set[BookieId] = set()
        if how == "suspected":
            client.context.suspect(passed_over)
        elif how == "lost":
            await world._registries[passed_over].deregister()
            await client.context.directory.refresh()
        elif how == "excluded":
            excluded.add(passed_over)
        elif how == "loaded":
            client.context.use([passed_over], +2)
        found = set[str]()
        for _ in range(TRIES):
            moves = client.context.moves(members, Quorums(3, 3, 2), excluded)
            ((index, name),) = moves.items()
            assert index in (0, 1), "the other is where it should be"
            found.add(name)
        if how == "loaded":
            client.context.use([passed_over], -2)
        assert found == ({"b2", "b5", "b8"} if how == "a member" else {"b5", "b8"})
        assert client.context.moves(ENSEMBLE, Quorums(3, 3, 2), ()) == {}, "as the policy has it"
        gone = [*members[:2], BookieId("unknown")]
        assert client.context.moves(gone, Quorums(3, 3, 2), ()) == {}, "nobody knows where it is"

    run_virtually(test, bookies=9, racks=3)


@pytest.mark.parametrize("bookies", [3, 4, 5])
def test_silent_bookie_is_waited_for_unless_it_was_replaced(bookies: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        chosen = await replaced(client, 0, silent=(0,))
        assert (set(chosen.replacements), set(chosen.answering)) == (
            (set(), {0}) if bookies == 3 else ({0}, set())
        )

    run_virtually(test, bookies=bookies)
