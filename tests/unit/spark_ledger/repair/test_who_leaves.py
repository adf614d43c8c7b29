"""A bookie that leaves the cluster is named for no copy any more, however late that copy is (rule
R10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.metadata.base import Create
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cookies import leaving_path, left_path
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore
from spark_ledger.protocol.ensemble import replace_bookies
from spark_ledger.repair.copying import Copier
from spark_ledger.repair.decommission import decommission
from spark_ledger.repair.plan import LaneCopy, all_names
from spark_ledger.repair.rebalance import Rebalance
from spark_ledger.types import BookieId, BookieState, LedgerId
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair import test_rebalance
from tests.unit.spark_ledger.repair.test_decommission import CONFIG
from tests.unit.spark_ledger.repair.test_rebalance import NEW, before_it_came, named_on
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import Crew, crew, give_cookies, lacking, lose, marked


async def leave(world: World, name: BookieId) -> None:
    """An operator takes out a bookie, from begin to end."""
    await decommission(await world.client(), name, CONFIG, told=lambda _: None)


async def hears(world: World, name: BookieId) -> None:
    """The bookie has heard that it leaves, and its clients that it is read-only."""
    registry = world._registries[name]
    before = await registry.get(name)
    assert before is not None
    await registry.register(replace(before, state=BookieState.READ_ONLY))
    await asyncio.sleep(2.0)


async def lost_one(world: World) -> tuple[LedgerClient, LedgerId, Crew]:
    """A ledger that lacks a copy and is marked, and its crew."""
    await give_cookies(world)
    client = await world.client()
    writer = await filled(client)
    await writer.close()
    cared = await crew(world)
    await lose(world, min(all_names(await client.ledger_metadata(writer.ledger_id))))
    while not await marked(world):
        cared.clock.now += 10.0
        await cared.auditor.run_pass()
    return client, writer.ledger_id, cared


def behind_the_first_copy(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[BookieId], Awaitable[None]]
) -> list[BookieId]:
    """Let ``act`` happen to the bookie that was copied to first, before it is named; and who is."""
    real, targets = Copier.copy, list[BookieId]()

    async def copy(copier: Copier, lanes: Sequence[LaneCopy], target: BookieId) -> None:
        await real(copier, lanes, target)
        if not targets:
            targets.append(target)
            await act(target)

    monkeypatch.setattr(Copier, "copy", copy)
    return targets


@pytest.mark.parametrize("runs", [True, False])
def test_bookie_that_has_left_while_it_was_copied_to_is_not_named(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        client, ledger_id, cared = await lost_one(world)

        async def go(target: BookieId) -> None:
            if runs:
                await hears(world, target)
            else:
                await lose(world, target)
            await leave(world, target)

        targets = behind_the_first_copy(monkeypatch, go)
        await cared.worker.run_pass()
        assert targets[0] not in all_names(await client.ledger_metadata(ledger_id))
        assert await marked(world) == {ledger_id: 2}
        await cared.passes(30)
        assert await marked(world) == {}
        names = all_names(await client.ledger_metadata(ledger_id))
        assert targets[0] not in names and names <= world.alive.keys()
        assert await lacking(world, client, ledger_id) == []

    run_virtually(test, bookies=5)


def test_bookie_that_was_formatted_again_since_it_was_copied_to_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk was lost, and it has its name again and nothing else: all that names it would count
    a copy that is not there, up to the next weekly check."""

    async def test(world: World) -> None:
        client, ledger_id, cared = await lost_one(world)

        async def begin_anew(target: BookieId) -> None:
            await lose(world, target)
            await leave(world, target)
            await BookieRegistry(client.store).create_cookie(target, b'{"new":1}')
            await client.store.delete(left_path(target))
            world.bookies[target] = ScriptedBookie()
            world.revive(target)
            await world.register(target)
            await asyncio.sleep(2.0)  # clients see it

        targets = behind_the_first_copy(monkeypatch, begin_anew)
        await cared.worker.run_pass()
        assert targets[0] not in all_names(await client.ledger_metadata(ledger_id))
        assert await marked(world) == {ledger_id: 2}
        await cared.passes(30)
        assert await marked(world) == {}
        assert await lacking(world, client, ledger_id) == []

    run_virtually(test, bookies=5)


def test_bookie_that_begins_to_leave_while_it_is_named_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever was to name it stood still between the question and the change."""

    async def test(world: World) -> None:
        client, ledger_id, cared = await lost_one(world)
        targets = behind_the_first_copy(monkeypatch, lambda _: asyncio.sleep(0))
        store, begun = cared.worker._client.store, list[Create]()
        assert isinstance(store, MemoryMetadataStore)

        def interpose(name: str, path: str) -> Fault:
            if not begun and (name, path) == ("transaction", ledger_path(ledger_id)):
                begun.append(Create(leaving_path(targets[0]), b""))
                world.tree.apply(begun)
            return Fault()

        store.interpose = interpose
        await cared.worker.run_pass()
        assert targets[0] not in all_names(await client.ledger_metadata(ledger_id))
        await hears(world, targets[0])
        await cared.passes(30)
        assert await marked(world) == {}
        assert targets[0] not in all_names(await client.ledger_metadata(ledger_id))

    run_virtually(test, bookies=5)


def test_rebalance_fills_no_bookie_that_began_to_leave_meanwhile() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        ledgers = await before_it_came(world, client, count=12)
        config = replace(test_rebalance.CONFIG, at_once=1)
        rebalance, left = Rebalance(await world.client(), config), False
        real = rebalance._move_one

        async def move_one(*given: Any) -> bool:
            nonlocal left
            is_new = await named_on(client, [given[1]], NEW) == 0  # no lock keeps it there
            if not left and is_new and await named_on(client, ledgers, NEW) == 2:
                left = True
                await leave(world, NEW)
            return await real(*given)

        rebalance._move_one = move_one  # type: ignore[method-assign, assignment]
        done = await rebalance.run()
        assert left and await named_on(client, ledgers, NEW) == 0
        assert done.moves == 2 and done.failed == {}, "and copies nothing to it for nothing"

    run_virtually(test, bookies=5)


def test_ledger_that_names_a_bookie_which_has_left_is_found_once_that_stops() -> None:
    """A program of before asked nobody whether it leaves."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        cared = await crew(world)
        found = await LedgerStore(client.store).read_latest(writer.ledger_id)
        left = min(set(world.bookies) - all_names(found.value))
        await client.store.create(leaving_path(left), b"")
        await cared.passes(20)
        await leave(world, left)
        await cared.passes(20)
        (fragment,) = found.value.fragments
        named = fragment._replace(bookies=replace_bookies(fragment.bookies, {0: left}))
        changed = found.value.with_changes(fragments=[named])
        await LedgerStore(client.store).compare_and_set(changed, found.version)
        await lose(world, left)
        await cared.passes(40)
        assert left not in all_names(await client.ledger_metadata(writer.ledger_id))
        assert await marked(world) == {} and await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=5)
