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


@pytest.mark.parametrize("bookies", [3, 4, 5])
def test_silent_bookie_is_waited_for_unless_it_was_replaced(bookies: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        chosen = await replaced(client, 0, silent=(0,))
        assert (set(chosen.replacements), set(chosen.answering)) == (
            (set(), {0}) if bookies == 3 else ({0}, set())
        )

    run_virtually(test, bookies=bookies)
