"""Copies move to a bookie that is new, beside whoever else is at the ledgers, wherever it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConflictError
from spark_ledger.metadata.base import Create
from spark_ledger.metadata.cluster import ensure_cluster, set_placement
from spark_ledger.metadata.cookies import leaving_path
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.repair_locks import lock_path
from spark_ledger.repair.copying import Copier, TargetFailedError
from spark_ledger.repair.nodes import REBALANCE_PATH, mark
from spark_ledger.repair.plan import LaneCopy, all_names
from spark_ledger.repair.rebalance import Rebalance, RebalanceConfig, Rebalanced
from spark_ledger.types import BookieId, BookieInfo, BookieStatus, LedgerId, PlacementPolicy
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_passwords import (
    RealWorld,
    bookies_of,
    check_readable,
    closed_ledger,
)
from tests.unit.spark_ledger.repair.test_passwords import run as run_real
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import contents, crew, give_cookies, lacking

CONFIG = RebalanceConfig(bytes_per_s=1e12, source_bytes_per_s=1e12, reads_per_s=1e6)
NEW = BookieId("b4")
FREE = 10_000


async def announce(world: World, name: str) -> None:
    """Say how much is free: as much everywhere."""
    await world._registries[BookieId(name)].register(
        BookieInfo(BookieId(name), f"memory:{name}", rack=world.rack(name), free_bytes=FREE)
    )


async def before_it_came(
    world: World, client: LedgerClient, count: int = 24, **options: int
) -> list[LedgerId]:
    """Closed ledgers, all of which were made before the new bookie came."""
    for name in world.bookies:
        await announce(world, name)
    await world._registries[NEW].deregister()
    await client.context.directory.refresh(all_again=True)
    writers = [await filled(client, **options) for _ in range(count)]
    for writer in writers:
        await writer.close()
    await announce(world, NEW)
    return [writer.ledger_id for writer in writers]


async def rebalance(
    world: World,
    config: RebalanceConfig = CONFIG,
    told: Callable[[Rebalanced], None] = lambda _: None,
) -> Rebalanced:
    return await Rebalance(await world.client(), config, told=told).run()


async def named_on(client: LedgerClient, ledgers: list[LedgerId], name: BookieId) -> int:
    return sum([name in all_names(await client.ledger_metadata(each)) for each in ledgers])


async def check(world: World, client: LedgerClient, ledgers: list[LedgerId]) -> None:
    """Whoever is named holds all that it should, and everything can be read."""
    for ledger_id in ledgers:
        assert await lacking(world, client, ledger_id) == []
        assert len(await contents(client, ledger_id)) == 20


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2), (3, 2, 1)])
def test_new_bookie_gets_its_share_and_every_copy_is_where_the_metadata_say(
    sizes: tuple[int, int, int],
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        e, wq, aq = sizes
        options = {"ensemble_size": e, "write_quorum": wq, "ack_quorum": aq}
        ledgers = await before_it_came(world, client, **options)
        told: list[tuple[int, int]] = []
        done = await rebalance(
            world, told=lambda so_far: told.append((so_far.moves, so_far.moved_bytes))
        )
        assert done.is_even and done.failed == {}
        assert done.before[NEW].held_bytes == 0 and done.after[NEW].used >= 0.9 * done.mean
        assert 0 < await named_on(client, ledgers, NEW) <= done.moves
        assert done.moved_bytes >= done.after[NEW].held_bytes
        assert [moves for moves, _ in told] == list(range(done.moves + 1))
        assert told[-1] == (done.moves, done.moved_bytes)
        await check(world, client, ledgers)
        again = await rebalance(world)
        assert again.is_even and again.moves <= 1, "what is free is announced as before"

    run_virtually(test, bookies=5)


def test_dry_run_says_what_would_move_and_moves_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client)
        before = [await client.ledger_metadata(each) for each in ledgers]
        planned = await rebalance(world, replace(CONFIG, dry_run=True))
        assert planned.moves > 0 and planned.is_even
        assert [await client.ledger_metadata(each) for each in ledgers] == before
        done = await rebalance(world, replace(CONFIG, at_once=1))
        assert (done.moves, done.moved_bytes) == (planned.moves, planned.moved_bytes)

    run_virtually(test, bookies=5)


def test_rebalance_stops_after_so_many_moves_and_goes_on_later() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client)
        wanted = (await rebalance(world, replace(CONFIG, dry_run=True))).moves
        total = 0
        while not (done := await rebalance(world, replace(CONFIG, moves_max=5))).is_even:
            assert done.moves == 5
            total += done.moves
        assert wanted - 5 <= total + done.moves <= wanted + 5, "it goes on where it was"
        await check(world, client, ledgers)

    run_virtually(test, bookies=5)


def test_rebalance_that_is_cut_off_loses_nothing_and_is_begun_again() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client)
        cut = asyncio.Event()
        runner = await world.client()
        work = asyncio.create_task(
            Rebalance(
                runner, CONFIG, told=lambda so_far: cut.set() if so_far.moves == 3 else None
            ).run()
        )
        await cut.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await runner.close()
        await check(world, client, ledgers)
        assert not await client.store.children("repair/locks")
        assert (await rebalance(world)).is_even
        await check(world, client, ledgers)

    run_virtually(test, bookies=5)


def test_ledger_that_another_works_at_stays_and_so_does_one_that_is_open() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)
        for ledger_id in ledgers:
            await client.store.create(lock_path(ledger_id), b"")
        idle = await filled(client)
        before = await client.ledger_metadata(idle.ledger_id)
        done = await rebalance(world)
        assert done.moves == 0 and not done.is_even
        assert await named_on(client, ledgers, NEW) == 0
        for ledger_id in ledgers:
            await client.store.delete(lock_path(ledger_id))
        assert (await rebalance(world)).moves > 0
        assert await client.ledger_metadata(idle.ledger_id) == before
        await idle.append(b"more")

    run_virtually(test, bookies=5)


def test_second_rebalance_at_the_same_time_is_refused() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await client.store.create(REBALANCE_PATH, b"")
        with pytest.raises(ConflictError, match="another rebalance"):
            await rebalance(world)
        assert await client.store.get(REBALANCE_PATH), "it is the other one's"

    run_virtually(test)


def test_bookie_that_stores_no_copy_is_not_named() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)
        world.kill(NEW)
        assert not (await rebalance(world)).is_even
        assert await named_on(client, ledgers, NEW) == 0
        world.revive(NEW)
        assert (await rebalance(world)).moves > 0
        await check(world, client, ledgers)

    run_virtually(test, bookies=5)


def test_bookie_that_took_no_copy_is_asked_no_more_in_this_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a thousand ledgers each would wait for its time to run out."""
    asked: list[BookieId] = []

    async def refused(_copier: Copier, _lanes: Sequence[LaneCopy], target: BookieId) -> None:
        asked.append(target)
        raise TargetFailedError(f"bookie {target} takes nothing")

    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)
        monkeypatch.setattr(Copier, "copy", refused)
        done = await rebalance(world, replace(CONFIG, at_once=1))
        assert asked == [NEW] and list(done.failed.values()) == [f"{NEW} took no copy"]
        asked.clear()
        await rebalance(world, replace(CONFIG, at_once=1))
        assert asked == [NEW], "the next run asks it again"
        await check(world, client, ledgers)

    run_virtually(test, bookies=5)


def test_bookie_that_took_no_copy_is_asked_again_in_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what failed in the pass before is told no more."""
    copied, real = 0, Copier.copy

    async def refused_once(copier: Copier, lanes: Sequence[LaneCopy], target: BookieId) -> None:
        nonlocal copied
        copied += 1
        if copied == 2:
            raise TargetFailedError(f"bookie {target} takes nothing")
        await real(copier, lanes, target)

    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)
        monkeypatch.setattr(Copier, "copy", refused_once)
        done = await rebalance(world, replace(CONFIG, at_once=1))
        assert copied > 2 and done.moves > 1 and done.failed == {}
        await check(world, client, ledgers)

    run_virtually(test, bookies=5)


def test_bookie_that_is_suspected_gets_no_copy() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)
        world.kill(NEW)
        moving = await world.client()
        moving.context.suspect(NEW)
        done = await Rebalance(moving, CONFIG).run()
        assert not done.is_even and done.failed == {}
        assert await named_on(client, ledgers, NEW) == 0

    run_virtually(test, bookies=5)


def test_bookie_that_lost_its_copies_meanwhile_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = Copier.copy

    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)

        async def copied_and_lost(
            copier: Copier, lanes: Sequence[LaneCopy], target: BookieId
        ) -> None:
            await copy(copier, lanes, target)
            del world.bookies[target].ledgers[copier._ledger_id]

        monkeypatch.setattr(Copier, "copy", copied_and_lost)
        done = await rebalance(world)
        assert done.moves == 0 and await named_on(client, ledgers, NEW) == 0
        await check(world, client, ledgers)

    run_virtually(test, bookies=5)


def test_bookie_that_leaves_neither_gives_nor_takes() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)
        await client.store.create(leaving_path(NEW), b"")
        done = await rebalance(world)
        assert NEW not in done.before
        assert await named_on(client, ledgers, NEW) == 0

    run_virtually(test, bookies=5)


def test_copies_stay_in_their_racks() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await ensure_cluster(client.store)
        await set_placement(client.store, PlacementPolicy(min_racks=2))
        ledgers = await before_it_came(world, client)
        racks = [
            {world.rack(each) for each in all_names(await client.ledger_metadata(ledger_id))}
            for ledger_id in ledgers
        ]
        assert (await rebalance(world)).moves > 0
        for ledger_id, before in zip(ledgers, racks, strict=True):
            metadata = await client.ledger_metadata(ledger_id)
            assert len({world.rack(each) for each in all_names(metadata)}) >= len(before)
        await check(world, client, ledgers)

    run_virtually(test, bookies=5, racks=3)


def test_rebalance_beside_a_worker_that_takes_a_bookie_out_leaves_all_copies() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        ledgers = await before_it_came(world, client)
        cared = await crew(world)
        await client.store.create(leaving_path(BookieId("b0")), b"")
        for ledger_id in ledgers:
            await mark(client.store, ledger_id, frozenset([BookieId("b0")]), 2)
        await asyncio.gather(rebalance(world), cared.worker.run_pass())
        await cared.worker.run_pass()
        assert await named_on(client, ledgers, BookieId("b0")) == 0
        await check(world, client, ledgers)

    run_virtually(test, bookies=5)


def test_ledger_with_a_password_moves_without_it() -> None:
    async def test(world: RealWorld) -> None:
        client = await world.client()
        ledger = await closed_ledger(client, copies=2)
        (empty,) = {BookieId(f"b{n}") for n in range(3)} - set(ledger.fragments[0].bookies)
        for name, registry in world.registries.items():
            free = 100 if name != empty else 10_000
            await registry.register(BookieInfo(name, f"memory:{name}", free_bytes=free))
        done = await Rebalance(client, CONFIG).run()
        assert done.moves == 1
        assert empty in await bookies_of(client, ledger.ledger_id)
        await check_readable(world, ledger.ledger_id, empty)

    run_real(test, bookies=3)


def test_frames_that_are_damaged_on_every_source_are_not_moved() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)
        for bookie in world.bookies.values():
            for ledger in bookie.ledgers.values():
                ledger.entries[0] = ledger.entries[0][:-1] + b"?"
        done = await rebalance(world)
        assert done.moves == 0 and await named_on(client, ledgers, NEW) == 0
        assert all(
            BookieStatus.IO_ERROR.name in text or "entry 0" in text for text in done.failed.values()
        )

    run_virtually(test, bookies=5)


def test_move_that_fails_counts_for_nothing() -> None:
    """Neither as one of those that are allowed, nor as what its target holds."""

    async def test(world: World) -> None:
        client = await world.client()
        ledgers = await before_it_came(world, client, count=8)
        for bookie in world.bookies.values():
            if ledgers[0] in bookie.ledgers:
                bookie.ledgers[ledgers[0]].entries.pop(0, None)
        done = await rebalance(world, replace(CONFIG, moves_max=1, at_once=1))
        assert list(done.failed) == [ledgers[0]], "nobody has its first entry"
        assert done.moves == 1 and await named_on(client, ledgers, NEW) == 1
        held = sum(share.held_bytes for name, share in done.after.items() if name == NEW)
        assert held == done.moved_bytes

    run_virtually(test, bookies=5)


def test_rebalance_that_lost_its_session_leaves_the_sign_of_another_one() -> None:
    async def test(world: World) -> None:
        client, other = await world.client(), world.tree.open_session()
        store = client.store
        assert isinstance(store, MemoryMetadataStore)
        await before_it_came(world, client)
        moved: list[int] = []

        def told(so_far: Rebalanced) -> None:
            moved.append(so_far.moves)
            if len(moved) == 3:
                store.expire()
                world.tree.apply([Create(REBALANCE_PATH, b"")])

        await Rebalance(client, CONFIG, told=told).run()
        assert len(moved) > 3
        assert await other.get(REBALANCE_PATH), "it is of another by now"

    run_virtually(test, bookies=5)
