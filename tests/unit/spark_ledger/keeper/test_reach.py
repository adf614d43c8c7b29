"""A keeper that reaches the metadata store and no bookies leaves its place to another one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.cli.keeper import _work
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.config import ClientConfig
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.keeper import reach
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.reach import watch_reach
from spark_ledger.limits.keeper import REACH_LOOKS
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.repair.service import RepairConfig
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.keeper.world import CONFIG, Clock, keeper

LOOKS_S = 0.1 * REACH_LOOKS


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "REACH_LOOK_S", 0.1)


async def client_that_reaches(world: World, *names: str) -> LedgerClient:
    """A client on a host from which only these bookies can be reached."""
    there = {BookieId(name): world.bookies[BookieId(name)] for name in names}
    client = await LedgerClient.over(
        MemoryMetadataStore(world.tree), MemoryTransport(there), ClientConfig()
    )
    world._clients.append(client)
    return client


async def ends(client: LedgerClient, *, is_elected: bool = True) -> bool:
    """Whether the watch ends within twice the time that it gives."""
    stop = asyncio.Event()
    watching = asyncio.create_task(watch_reach(client.context, stop, lambda: is_elected))
    await asyncio.sleep(2 * LOOKS_S)
    has_ended = watching.done()
    stop.set()
    if has_ended:
        with pytest.raises(BookieUnavailableError, match="hardly any of the"):
            await watching
    else:
        await watching
    return has_ended


@pytest.mark.parametrize("with_repair", [True, False])
@pytest.mark.parametrize("reached", [[], ["b1"]])
def test_keeper_that_reaches_no_bookies_but_one_of_its_host_ends_and_another_is_elected(
    reached: list[str], with_repair: bool
) -> None:
    async def test(world: World) -> None:
        cut_off = await client_that_reaches(world, *reached)
        first = Keeper(cut_off, CONFIG, clock=Clock())
        repair = RepairConfig() if with_repair else None
        working = asyncio.create_task(_work(cut_off, first, repair, asyncio.Event()))
        await asyncio.sleep(LOOKS_S / 2)
        second = await keeper(world, Clock())
        assert first.is_elected and not await second.elect()
        with pytest.raises(BookieUnavailableError, match="hardly any of the 3 registered bookies"):
            await working
        assert await second.elect()
        await second._election.resign()

    run_virtually(test)


@pytest.mark.parametrize(
    ("bookies", "reached", "has_to_end"),
    [(3, 2, False), (2, 1, False), (2, 0, True), (1, 1, False), (1, 0, True), (0, 0, False)],
)
def test_keeper_stays_as_long_as_it_reaches_somebody_elsewhere(
    bookies: int, reached: int, has_to_end: bool
) -> None:
    async def test(world: World) -> None:
        client = await client_that_reaches(world, *(f"b{n}" for n in range(reached)))
        assert await ends(client) is has_to_end

    run_virtually(test, bookies=bookies)


def test_candidate_that_reaches_nobody_waits_on() -> None:
    async def test(world: World) -> None:
        assert not await ends(await client_that_reaches(world), is_elected=False)

    run_virtually(test)


def test_time_begins_anew_once_bookies_answer() -> None:
    async def test(world: World) -> None:
        client, stop = await world.client(), asyncio.Event()
        watching = asyncio.create_task(watch_reach(client.context, stop, lambda: True))
        for _ in range(3):
            for name in world.bookies:
                world.kill(name)
            await asyncio.sleep(0.7 * LOOKS_S)
            for name in world.bookies:
                world.revive(name)
            await asyncio.sleep(0.3 * LOOKS_S)
        stop.set()
        await watching

    run_virtually(test)


def test_keeper_waits_out_an_outage_of_all() -> None:
    """Nobody else could be elected meanwhile, and without a supervisor nobody would be after it."""

    async def test(world: World) -> None:
        client, stop = await world.client(), asyncio.Event()
        watching = asyncio.create_task(watch_reach(client.context, stop, lambda: True))
        await asyncio.sleep(LOOKS_S / 2)
        store: Any = client.store
        for name in world.bookies:
            world.kill(name)
        store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        await asyncio.sleep(2 * LOOKS_S)
        assert len(client.context.directory.all()) == 3, "as it saw them last"
        assert not watching.done()
        store.interpose = None
        await asyncio.sleep(LOOKS_S / 2)
        assert not watching.done(), "the time before the outage does not count either"
        with pytest.raises(BookieUnavailableError, match="hardly any of the 3 registered"):
            await asyncio.wait_for(watching, LOOKS_S)

    run_virtually(test)
