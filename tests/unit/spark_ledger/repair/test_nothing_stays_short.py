"""Ways in which a ledger could lack copies for long although all that it needs is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.metadata.json_nodes import read_node, write_node
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.metadata.repair_locks import LOCKS_PATH
from spark_ledger.repair.closed import gaps, within
from spark_ledger.repair.nodes import STATE_PATH, AuditState, mark
from spark_ledger.repair.status import look
from spark_ledger.transport.base import ListedEntries, ReadChunk
from spark_ledger.types import BookieId, BookieState, BookieStatus, EntryId, Fragment, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import Closing, closed, wipe
from tests.unit.spark_ledger.repair.test_copying import Copying, Target
from tests.unit.spark_ledger.repair.test_locks import lost_one, whole_one
from tests.unit.spark_ledger.repair.world import Crew, crew, give_cookies, lacking, lose, marked

BUSY = BookieStatus.TOO_MANY_REQUESTS


async def audited(world: World, *names: str) -> None:
    """An auditor has marked what named these bookies."""
    store = MemoryMetadataStore(world.tree)
    known = await read_node(store, AuditState, STATE_PATH)
    await write_node(store, STATE_PATH, AuditState(audited=names), known)
    await store.close()


async def next_try_s(cared: Crew, ledger_id: int) -> float:
    """In how many seconds the worker tries a ledger again that it has failed at."""
    return cared.worker._paused[LedgerId(ledger_id)].again_at - cared.clock.now


async def turn(world: World, name: BookieId, state: BookieState) -> None:
    """A bookie that is registered tells of another state."""
    registry = world._registries[name]
    before = await registry.get(name)
    assert before is not None
    await registry.register(replace(before, state=state))


@pytest.mark.parametrize("operation", ["create", "delete", "transaction"])
def test_worker_that_is_cancelled_leaves_no_lock(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is on its way, or was never sent, when a drain ends its worker; its connection
    goes on. The lock goes with the last name, or by itself if nobody is named anew."""

    async def test(world: World) -> None:
        ledger_id, other = await (lost_one if operation != "delete" else whole_one)(world)
        cared = await crew(world)
        store = cared.worker._client.store
        begun, real = asyncio.Event(), getattr(store, operation)

        async def slow(what: Any, *given: Any, **options: Any) -> None:
            paths = [what] if isinstance(what, str) else [each.path for each in what]
            if not any(path.startswith(LOCKS_PATH) for path in paths) or begun.is_set():
                await real(what, *given, **options)
                return
            begun.set()
            if operation == "create":
                await real(what, *given, **options)
            await asyncio.sleep(3600.0)

        monkeypatch.setattr(store, operation, slow)
        passing = asyncio.ensure_future(cared.worker.run_pass())
        await begun.wait()
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
        assert await other.children(LOCKS_PATH) == []
        await mark(other, ledger_id, frozenset(), 2)
        await (await crew(world)).worker.run_pass()
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


def test_member_that_is_busy_for_a_moment_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        wipe(world, "b1", writer)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        cared = await crew(world)
        transport = cared.worker._client.context.transport
        real, refusals = transport.list_entries, [BUSY] * 6

        async def busy(*given: Any, **options: Any) -> ListedEntries:
            if refusals:
                return ListedEntries(refusals.pop(), [])
            return await real(*given, **options)

        monkeypatch.setattr(transport, "list_entries", busy)
        await cared.worker.run_pass()
        assert await marked(world) == {} and not refusals
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=4)


def test_member_that_is_busy_for_ever_ends_the_try(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        cared = await crew(world)

        transport = cared.worker._client.context.transport
        real = transport.list_entries

        async def busy(bookie_id: BookieId, *given: Any, **options: Any) -> ListedEntries:
            if bookie_id == "b1":
                return ListedEntries(BUSY, [])
            return await real(bookie_id, *given, **options)

        monkeypatch.setattr(transport, "list_entries", busy)
        await cared.worker.run_pass()
        assert set(await marked(world)) == {writer.ledger_id}
        assert await next_try_s(cared, writer.ledger_id) == 10.0

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("refusals", [3, 10**9])
def test_sources_that_are_busy_are_asked_again_for_a_while(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        made = await Copying(world).prepare()
        transport = made.client.context.transport
        real, asked = transport.read, 0

        async def busy(*given: Any, **options: Any) -> AsyncGenerator[ReadChunk, None]:
            nonlocal asked
            asked += 1
            if asked <= refusals:
                yield ReadChunk(BUSY, None, EntryId(0))
                return
            async for chunk in real(*given, **options):
                yield chunk

        monkeypatch.setattr(transport, "read", busy)
        began = asyncio.get_running_loop().time()
        if refusals == 3:
            await made.copier.copy([made.lane], made.target)
            assert made.counts["entries"] == 20
        else:
            with pytest.raises(Exception, match="cannot be read now"):
                await made.copier.copy([made.lane], made.target)
            assert 0 < asyncio.get_running_loop().time() - began < 60.0

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("busy", [0, 1])
def test_source_that_is_busy_is_asked_again_though_all_others_lack_the_entry(
    busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        made = await Copying(world).prepare()
        transport, refusals = made.client.context.transport, [BUSY] * 3
        real = transport.read

        async def read(
            bookie_id: BookieId, *given: Any, **options: Any
        ) -> AsyncGenerator[ReadChunk, None]:
            if bookie_id != made.others[busy]:
                yield ReadChunk(BookieStatus.NO_SUCH_ENTRY, None, EntryId(0))
            elif refusals:
                yield ReadChunk(refusals.pop(), None, EntryId(0))
            else:
                async for chunk in real(bookie_id, *given, **options):
                    yield chunk

        monkeypatch.setattr(transport, "read", read)
        await made.copier.copy([made.lane], made.target)
        assert made.counts["entries"] == 20 and not refusals

    run_virtually(test, bookies=4)


def test_member_that_does_not_take_what_it_lacks_keeps_the_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its hole would stay until the next check of all ledgers."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        wipe(world, "b1", writer)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        cared = await crew(world)
        refusing = Target([BookieStatus.IO_ERROR])
        with monkeypatch.context() as patch:
            patch.setattr(cared.worker._client.context.transport, "open_appender", refusing.opened)
            await cared.worker.run_pass()
        assert refusing.sent and set(await marked(world)) == {writer.ledger_id}
        cared.clock.now += 10.0
        await cared.worker.run_pass()
        assert await marked(world) == {}
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("entries", [4, 5, 6])
@pytest.mark.parametrize("at", [0, 1, -2, -1])
def test_hole_at_either_end_of_any_lane_of_a_member_is_filled(entries: int, at: int) -> None:
    """The lanes of a member neither begin nor end in their order."""

    async def test(world: World) -> None:
        client = await world.client()
        writers = [
            await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
            for _ in range(3)
        ]
        for index, writer in enumerate(writers):
            for number in range(entries):
                await writer.append(b"%d" % number)
            await writer.close()
            held = [e for e in range(entries) if index in (e % 3, (e + 1) % 3)]
            wipe(world, writer.metadata.last_fragment.bookies[index], writer, held[at])
            await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 1)
            assert await lacking(world, client, writer.ledger_id)
        await (await crew(world)).worker.run_pass()
        for writer in writers:
            assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=4)


def test_hole_that_shares_the_mark_of_a_lost_bookie_is_not_forgotten() -> None:
    """The member that has it is away while the lost bookie's copies are made again."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for number in range(20):
            await writer.append(b"%d" % number)
        await writer.close()
        lost, holed, _ = map(BookieId, writer.metadata.last_fragment.bookies)
        wipe(world, holed, writer, 3)
        await lose(world, lost)
        for bookies in (frozenset([lost]), frozenset[BookieId]()):
            await mark(client.store, writer.ledger_id, bookies, 2)
        world.kill(holed)
        cared = await crew(world)
        await cared.worker.run_pass()
        assert lost not in (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
        assert set(await marked(world)) == {writer.ledger_id}
        world.revive(holed)
        cared.clock.now += 60.0
        await cared.worker.run_pass()
        assert await marked(world) == {}
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=6)


def test_pause_ends_once_what_was_waited_for_is_lost() -> None:
    """Its ledger has one copy less since, and the mark may be the same."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        name = BookieId(min(writer.metadata.last_fragment.bookies))
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        await lose(world, name)
        cared = await crew(world)
        for _ in range(8):
            await cared.worker.run_pass()
            cared.clock.now += max(0.0, await next_try_s(cared, writer.ledger_id))
        await cared.worker.run_pass()
        assert await next_try_s(cared, writer.ledger_id) > 1000.0
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([name]), 2)
        await audited(world, name)
        await cared.worker.run_pass()
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


def test_bookie_that_was_hung_and_registered_all_the_time_is_asked_each_minute() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        world.kill("b1")  # its registration stays
        cared = await crew(world)
        for _ in range(8):
            await cared.worker.run_pass()
            cared.clock.now += await next_try_s(cared, writer.ledger_id)
        ((_, failed),) = (await look(client.store)).failed
        assert failed.tries == 8 and failed.again_ms > 0
        await cared.worker.run_pass()
        assert await next_try_s(cared, writer.ledger_id) == 60.0

    run_virtually(test, bookies=4)


def test_bookie_that_comes_back_read_only_ends_the_pauses() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        await lose(world, "b1")
        cared = await crew(world)
        await cared.worker.run_pass()
        assert set(await marked(world)) == {writer.ledger_id}
        world.revive("b1")
        await world.register("b1", state=BookieState.READ_ONLY)
        await cared.worker._client.context.directory.refresh(all_again=True)
        await cared.worker.run_pass()
        assert await marked(world) == {}

    run_virtually(test, bookies=4)


def test_bookie_that_has_room_again_ends_the_pauses() -> None:
    """It was registered all the time, and read-only."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        (fragment,) = (await client.ledger_metadata(writer.ledger_id)).fragments
        full = min(world.bookies.keys() - set(fragment.bookies))
        await turn(world, full, BookieState.READ_ONLY)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(fragment.bookies[:1]), 2)
        await lose(world, fragment.bookies[0])
        cared = await crew(world)
        directory = cared.worker._client.context.directory
        await cared.worker.run_pass()
        assert set(await marked(world)) == {writer.ledger_id}, "there is no other bookie"
        await turn(world, full, BookieState.WRITABLE)
        await directory.refresh(all_again=True)
        await cared.worker.run_pass()
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


def test_closed_ledger_that_names_a_bookie_found_lost_before_is_marked() -> None:
    """A client that had not heard of it chose the bookie after all ledgers were looked at."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client)
        checking = Closing(await world.client())
        stored = await LedgerStore(client.store).read(writer.ledger_id)
        (only,) = stored.value.fragments
        gone = BookieId("b9")
        named = stored.value.with_changes(
            fragments=(Fragment(only.first_entry, (gone, *only.bookies[1:])),)
        )
        await client.context.ledgers.compare_and_set(named, stored.version)
        await audited(world, gone)
        assert await checking.closed.run_pass() == 1
        assert await checking.closed.run_pass() == 0, "once"
        await (await crew(world)).worker.run_pass()
        assert gone not in (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


def test_ledger_of_an_older_block_of_ids_is_checked_by_the_next_keeper() -> None:
    """Each client has a block of ids: what is made last does not have the highest one."""

    async def test(world: World) -> None:
        older, newer = await world.client(), await world.client()
        await closed(older)
        await closed(newer)
        first = Closing(await world.client())
        await first.closed.run_pass()
        between = await closed(older)
        wipe(world, "b1", between)
        second = Closing(await world.client())
        assert await second.closed.run_pass() == 1
        assert await marked(world) == {between.ledger_id: 2}
        assert await Closing(await world.client()).closed.run_pass() == 0

    run_virtually(test, bookies=4)


def test_silent_member_is_asked_again_also_if_the_pass_was_broken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        checking = Closing(await world.client())
        await checking.closed.run_pass()
        for _ in range(8):
            await closed(client)
        writer = await closed(client)
        wipe(world, "b1", writer)
        world.kill("b1")
        check, seen = checking.checker.check, [0]

        async def broken(*given: Any) -> Any:
            seen[0] += 1
            if seen[0] > 5:
                raise MetadataUnavailableError("for a moment")
            return await check(*given)

        with monkeypatch.context() as patch:
            patch.setattr(checking.checker, "check", broken)
            with pytest.raises(MetadataUnavailableError):
                await checking.closed.run_pass()
        world.revive("b1")
        assert await checking.closed.run_pass() == 1
        assert await marked(world) == {writer.ledger_id: 2}

    run_virtually(test, bookies=4)


def test_ranges_of_ids_that_no_ledger_has() -> None:
    ids = [LedgerId(each) for each in (3, 4, 9, 11)]
    assert gaps(ids, 0) == [(1, 2), (5, 8), (10, 10)]
    assert gaps([], 7) == []
    new = [LedgerId(each) for each in (1, 3, 8, 10, 12)]
    assert within(new, [(1, 2), (5, 8), (10, 10)]) == {1, 8, 10}
    assert within(new, []) == set()
