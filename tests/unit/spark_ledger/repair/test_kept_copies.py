"""A bookie leaves behind a restore: what it holds, and others are named for, is copied first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.metadata.json_nodes import read_node, write_node
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.repair.checker import Checker
from spark_ledger.repair.decommission import decommission, drain
from spark_ledger.repair.nodes import CHECK_PATH, CheckState, begin_check, mark
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.types import BookieId, LedgerId
from tests.listed import listed
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import contents, give_cookies, lacking

CONFIG = WorkerConfig(bytes_per_s=1e12, open_grace_s=5.0, despite_losses=True)


async def moved_and_restored(world: World, client: LedgerClient) -> tuple[LedgerId, list[BookieId]]:
    """A ledger of two copies that have moved since the backup; who holds them now."""
    writer = await filled(client, ensemble_size=2, write_quorum=2, ack_quorum=2)
    await writer.close()
    before = all_names(await client.ledger_metadata(writer.ledger_id))
    after = sorted(set(world.bookies) - before)[:2]
    for old, new in zip(before, after, strict=True):
        ledgers = world.bookies[old].ledgers
        world.bookies[new].ledgers[writer.ledger_id] = ledgers.pop(writer.ledger_id)
    return writer.ledger_id, after


async def state(client: LedgerClient) -> CheckState:
    known = await read_node(client.store, CheckState, CHECK_PATH)
    assert known is not None
    return known.value


def restored(test: Callable[[World, LedgerClient], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main(world: World) -> None:
            await give_cookies(world)
            await test(world, await world.client())

        run_virtually(main, bookies=5)

    run.__name__ = test.__name__
    return run


@restored
async def test_bookies_that_hold_what_restored_metadata_name_elsewhere_leave_behind_its_copies(
    world: World, client: LedgerClient
) -> None:
    ledger_id, holders = await moved_and_restored(world, client)
    await begin_check(client.store, 1)
    for each in holders:
        other = await world.client()
        await decommission(other, each, CONFIG, told=lambda _: None)
        assert not (await state(client)).begun_ms, "the check has ended"
        world.bookies[each].ledgers.pop(ledger_id, None)
        assert await lacking(world, client, ledger_id) == []
        await other.close()
    reader = await world.client()
    assert len(await contents(reader, ledger_id)) >= 19


@restored
async def test_command_ends_though_entries_are_lost_that_the_bookie_has_not(
    world: World, client: LedgerClient
) -> None:
    """Else it would wait for ever: the mark stays."""
    ledger_id, holders = await moved_and_restored(world, client)
    for bookie in world.bookies.values():
        bookie.ledgers.pop(ledger_id, None)
    await mark(client.store, ledger_id, frozenset(), 0)
    await mark(client.store, LedgerId(999), frozenset(), 0)  # deleted meanwhile
    await begin_check(client.store, 1)
    async with asyncio.timeout(600.0):
        await drain(await world.client(), holders[0], CONFIG, told=lambda _: None)
    assert (await state(client)).restored


@restored
async def test_check_that_a_keeper_makes_at_the_same_time_is_waited_for(
    world: World, client: LedgerClient
) -> None:
    ledger_id, holders = await moved_and_restored(world, client)
    await begin_check(client.store, 1)
    checker = Checker(await world.client())
    _, drained = await asyncio.gather(
        checker.run_pass(),
        drain(await world.client(), holders[0], CONFIG, told=lambda _: None),
        return_exceptions=True,
    )
    assert drained is None
    assert not (await state(client)).begun_ms
    named = all_names(await client.ledger_metadata(ledger_id))
    assert all(listed(world.bookies[each], ledger_id) for each in named)


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_check_begins_anew_beside_lost_replies_and_one_that_is_under_way(outcome: Outcome) -> None:
    async def main(world: World) -> None:
        client = await world.client()
        under_way = CheckState(begun_ms=3, ended_ms=2, after=7, ledgers=7, with_holes=1)
        await write_node(client.store, CHECK_PATH, under_way, None)
        lost: list[str] = []

        def interpose(name: str, path: str) -> Fault:
            if (name, path) == ("put", CHECK_PATH) and not lost:
                lost.append(path)
                return Fault(outcome)
            return Fault()

        await begin_check(MemoryMetadataStore(world.tree, interpose=interpose), 5)
        assert lost and await state(client) == CheckState(begun_ms=5, ended_ms=2, restored=True)

    run_virtually(main, bookies=3)
