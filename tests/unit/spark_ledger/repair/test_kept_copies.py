"""A bookie leaves behind a restore: what it holds, and others are named for, is copied first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConflictError
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.json_nodes import read_node, write_node
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.repair.checker import Checker
from spark_ledger.repair.decommission import Named, decommission, drain, stay
from spark_ledger.repair.kept import KeptCopies
from spark_ledger.repair.nodes import CHECK_PATH, CheckState, begin_check, mark
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.transport.base import ListedEntries
from spark_ledger.types import BookieId, BookieState, BookieStatus, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.client.world import world as make_world
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import contents, give_cookies, lacking, lose, marked
from tests.unit.virtual_time import run_in_virtual_time

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


async def turn_read_only(world: World, name: BookieId) -> None:
    info = await BookieRegistry(MemoryMetadataStore(world.tree)).get(name)
    assert info is not None
    await world._registries[name].register(replace(info, state=BookieState.READ_ONLY))


async def all_moved_to(world: World, name: BookieId, count: int) -> LedgerClient:
    """Ledgers whose copies have moved to one bookie since the backup; a client of before."""
    await give_cookies(world)
    await turn_read_only(world, name)
    client = await world.client()
    for _ in range(count):
        writer = await filled(client, ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.close()
        for each in all_names(await client.ledger_metadata(writer.ledger_id)):
            moved = world.bookies[each].ledgers.pop(writer.ledger_id)
            world.bookies[name].ledgers[writer.ledger_id] = moved
    await begin_check(client.store, 1)
    return client


async def leave(
    world: World, name: BookieId, client: LedgerClient | None = None, *, read_only: bool = True
) -> list[Named]:
    """A decommission to its end; what was told. The bookie hears of it and takes nothing new."""
    if read_only:
        await turn_read_only(world, name)
    told: list[Named] = []
    await decommission(client or await world.client(), name, CONFIG, told=told.append)
    return told


def in_long_virtual_time(test: Callable[[World], Awaitable[None]], bookies: int) -> None:
    """``run_virtually`` ends after 20 seconds."""

    async def main() -> None:
        async with make_world(bookies) as world:
            async with asyncio.timeout(600.0):
                await test(world)

    run_in_virtual_time(main())


def restored(test: Callable[[World, LedgerClient], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main(world: World) -> None:
            await give_cookies(world)
            await test(world, await world.client())

        run_virtually(main, bookies=6)

    run.__name__ = test.__name__
    return run


@restored
async def test_bookies_that_hold_what_restored_metadata_name_elsewhere_leave_behind_its_copies(
    world: World, client: LedgerClient
) -> None:
    """Without the check that the restore began, which takes hours."""
    ledger_id, holders = await moved_and_restored(world, client)
    await begin_check(client.store, 1)
    for each in holders:
        await leave(world, each)
        world.bookies[each].ledgers.pop(ledger_id, None)
        assert await lacking(world, client, ledger_id) == []
    assert (await state(client)).begun_ms == 1, "the check is the keeper's"
    reader = await world.client()
    assert len(await contents(reader, ledger_id)) >= 19


@restored
async def test_last_copy_stays_though_the_bookies_that_are_named_for_it_are_gone(
    world: World, client: LedgerClient
) -> None:
    """They left since the backup. Nobody has marked what they are named for."""
    ledger_id, holders = await moved_and_restored(world, client)
    for each in sorted(all_names(await client.ledger_metadata(ledger_id))):
        await lose(world, each)
    await begin_check(client.store, 1)
    for each in holders:
        await leave(world, each)
        await lose(world, each)
    assert await lacking(world, client, ledger_id) == []


@restored
async def test_bookie_that_is_too_slow_to_say_what_it_holds_is_waited_for(
    world: World, client: LedgerClient
) -> None:
    ledger_id, holders = await moved_and_restored(world, client)
    world.bookies[holders[1]].ledgers.pop(ledger_id)
    await begin_check(client.store, 1)
    slow = await world.client()
    real, answers = slow.context.transport.list_entries, iter([BookieStatus.TIMEOUT] * 4)

    async def late(bookie_id: BookieId, *args: Any, **how: Any) -> ListedEntries:
        if bookie_id == holders[0] and (answer := next(answers, None)) is not None:
            return ListedEntries(answer, [])
        return await real(bookie_id, *args, **how)

    slow.context.transport.list_entries = late  # type: ignore[method-assign]
    told = await leave(world, holders[0], slow)
    assert told[0] == Named(0, 0, kept=1, is_silent=True)
    world.bookies[holders[0]].ledgers.pop(ledger_id)
    assert await lacking(world, client, ledger_id) == []


@restored
async def test_member_that_is_there_and_says_nothing_is_not_taken_for_a_copy(
    world: World, client: LedgerClient
) -> None:
    ledger_id, holders = await moved_and_restored(world, client)
    members = sorted(all_names(await client.ledger_metadata(ledger_id)))
    for each in members:
        world.kill(each)
    await begin_check(client.store, 1)
    going = asyncio.create_task(leave(world, holders[0]))
    await asyncio.sleep(8.0)
    assert not going.done() and await marked(world) == {ledger_id: 0}
    for each in members:
        world.revive(each)
    await going
    assert await lacking(world, client, ledger_id) == []


@restored
async def test_bookie_that_is_gone_is_asked_nothing(world: World, client: LedgerClient) -> None:
    _, holders = await moved_and_restored(world, client)
    await begin_check(client.store, 1)
    await lose(world, holders[0])
    assert await KeptCopies(await world.client(), holders[0]).count() == 0
    assert await leave(world, holders[0], read_only=False) == [Named(0, 0)] * 2


@restored
async def test_bookie_that_was_there_a_moment_ago_may_come_back(
    world: World, client: LedgerClient
) -> None:
    """It is started again while it is emptied."""
    _, holders = await moved_and_restored(world, client)
    await begin_check(client.store, 1)
    kept = KeptCopies(await world.client(), holders[0])
    assert await kept.count() == 1 and not kept.is_silent
    await lose(world, holders[0])
    assert await kept.count() == 1 and kept.is_silent
    assert kept._here_at is not None
    kept._here_at -= 301.0
    assert await kept.count() == 0


@restored
async def test_bookie_of_a_former_version_is_asked_for_all_ledgers(
    world: World, client: LedgerClient
) -> None:
    ledger_id, holders = await moved_and_restored(world, client)
    await begin_check(client.store, 1)
    former = await world.client()

    async def unknown(*_: Any, **__: Any) -> tuple[BookieStatus, list[LedgerId]]:
        return BookieStatus.BAD_REQUEST, []

    former.context.transport.list_ledgers = unknown  # type: ignore[method-assign]
    await leave(world, holders[0], former)
    assert await lacking(world, client, ledger_id) == []


def test_copy_that_cannot_be_made_keeps_no_bookie_if_the_others_have_all() -> None:
    """A member has lost its copy, and its disk is full."""

    async def main(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client, ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.close()
        full = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies[0]
        left = (
            set(world.bookies) - all_names(await client.ledger_metadata(writer.ledger_id))
        ).pop()
        ledgers = world.bookies[full].ledgers
        world.bookies[left].ledgers[writer.ledger_id] = ledgers.pop(writer.ledger_id)

        def refuse(_: object, *, done: Callable[[BookieStatus, str], None], **__: object) -> None:
            done(BookieStatus.READ_ONLY, "disk full")

        world.bookies[full].add = refuse  # type: ignore[method-assign,assignment]
        await begin_check(client.store, 1)
        told = await leave(world, left)
        assert Named(0, 0, kept=1) in told and len(told) > 10, "it is tried for a while"

    in_long_virtual_time(main, bookies=4)


def test_look_that_takes_long_says_how_far_it_is_and_hears_that_the_bookie_stays() -> None:
    async def main(world: World) -> None:
        client = await all_moved_to(world, BookieId("b0"), 20)
        slow, loop = await world.client(), asyncio.get_running_loop()
        real = slow.context.transport.list_entries

        async def late(*args: Any, **how: Any) -> ListedEntries:
            await asyncio.sleep(3.0)
            return await real(*args, **how)

        slow.context.transport.list_entries = late  # type: ignore[method-assign]
        told: list[Named] = []
        going = asyncio.create_task(drain(slow, BookieId("b0"), CONFIG, told=told.append))
        await asyncio.sleep(31.0)
        asked = [each.asked for each in told if each.asked is not None]
        assert len(asked) >= 2 and asked == sorted(asked) and not going.done()
        assert await stay(client, BookieId("b0"))
        began = loop.time()
        with pytest.raises(ConflictError, match="does not leave"):
            await going
        assert loop.time() - began < 6.0

    in_long_virtual_time(main, bookies=5)


def test_member_that_hangs_is_asked_once_for_many_ledgers() -> None:
    async def main(world: World) -> None:
        await all_moved_to(world, BookieId("b0"), 20)
        other = await world.client()
        real = other.context.transport.list_entries

        async def hung(bookie_id: BookieId, *args: Any, **how: Any) -> ListedEntries:
            if bookie_id != "b0":
                await asyncio.sleep(10.0)
                return ListedEntries(BookieStatus.TIMEOUT, [])
            return await real(bookie_id, *args, **how)

        other.context.transport.list_entries = hung  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        assert await KeptCopies(other, BookieId("b0")).count() == 20
        assert asyncio.get_running_loop().time() - began < 60.0

    in_long_virtual_time(main, bookies=5)


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
    assert await Checker(client).run_pass()
    async with asyncio.timeout(600.0):
        await drain(await world.client(), holders[0], CONFIG, told=lambda _: None)
    assert (await state(client)).restored, "until the next check"


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


def test_ledger_that_was_open_in_the_backup_leaves_with_nobody_who_has_its_last_copy() -> None:
    """Its last fragment has an end only once a keeper has closed it, perhaps between two looks."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client, other = await world.client(), await world.client()
        shape = {"ensemble_size": 4, "write_quorum": 2, "ack_quorum": 2}
        writer = await filled(client, 60, **shape)
        await asyncio.sleep(0.5)
        ledger_id = writer.ledger_id
        before = (await client.ledger_metadata(ledger_id)).fragments[0].bookies
        after = sorted(set(world.bookies) - set(before))[:2]
        for old, new in zip(before, after, strict=False):
            world.bookies[new].ledgers[ledger_id] = world.bookies[old].ledgers.pop(ledger_id)
        await begin_check(client.store, 1)
        for bookie_id in after:
            await turn_read_only(world, bookie_id)
        clients = [await world.client() for _ in after]
        leave = [
            asyncio.create_task(decommission(each, bookie_id, CONFIG, told=lambda _: None))
            for each, bookie_id in zip(clients, after, strict=True)
        ]
        await asyncio.sleep(1.0)
        await (await other.open_ledger(ledger_id, recover=True)).refresh()
        await asyncio.gather(*leave)
        for bookie_id in after:
            world.bookies[bookie_id].ledgers.pop(ledger_id, None)
        found = await lacking(world, client, ledger_id)
        assert not found, f"{found}"

    run_virtually(test, bookies=7)


def test_ledger_of_which_a_bookie_cannot_say_what_it_holds_keeps_no_other_one() -> None:
    """As where a block is damaged: it would stand at the head of each look, and nothing behind it
    would be copied before its disk dies."""

    async def test(world: World) -> None:
        leaving = BookieId("b0")
        client = await all_moved_to(world, leaving, 4)
        ids = sorted(world.bookies[leaving].ledgers)
        asking = await world.client()
        honest = asking.context.transport.list_entries

        async def listed(bookie_id: BookieId, ledger_id: LedgerId, *args: Any, **kw: Any) -> Any:
            if bookie_id == leaving and ledger_id == ids[0]:
                return ListedEntries(BookieStatus.IO_ERROR, [])
            return await honest(bookie_id, ledger_id, *args, **kw)

        asking.context.transport.list_entries = listed  # type: ignore[method-assign]
        told: list[Named] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await decommission(asking, leaving, CONFIG, told=told.append)
        assert [each for each in ids if await lacking(world, client, each)] == ids[:1]
        assert told[-1].kept and told[-1].is_silent

    in_long_virtual_time(test, bookies=5)
