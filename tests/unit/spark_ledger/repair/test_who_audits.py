"""Whether audits, checks and repairs may be done now: elected, restored stores, losses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from spark_ledger.errors import MetadataRestoredError
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.repair.auditor import Auditor
from spark_ledger.repair.checker import Checker, CheckerConfig
from spark_ledger.repair.closed import ClosedCheck
from spark_ledger.repair.nodes import CHECK_PATH, CLOSED_PATH, CheckState, ClosedState, mark
from spark_ledger.types import BookieId, BookieInfo, BookieState
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled, names
from tests.unit.spark_ledger.repair.world import AUDIT, crew, give_cookies, lose, marked


@pytest.mark.parametrize("who", ["auditor", "worker"])
def test_metadata_that_were_restored_are_neither_audited_nor_repaired(who: str) -> None:
    """They name bookies of a time before: copies would be made of what is no more wanted."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        before = await client.ledger_metadata(writer.ledger_id)
        name = min(await names(client, writer.ledger_id))
        await lose(world, name)
        cared = await crew(world)
        run_pass: Callable[[], Awaitable[object]] = getattr(cared, who).run_pass
        if who == "worker":
            await mark(client.store, writer.ledger_id, frozenset([BookieId(name)]), 2)
        listed = await marked(world)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryMetadataStore, "restored", property(lambda _: "restored"))
            for _ in range(15):
                cared.clock.now += 10.0
                with pytest.raises(MetadataRestoredError):
                    await run_pass()
        assert await marked(world) == listed
        assert await client.ledger_metadata(writer.ledger_id) == before

    run_virtually(test, bookies=4)


def test_bookie_that_is_read_only_is_not_lost() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        before = await client.ledger_metadata(writer.ledger_id)
        name = BookieId(min(await names(client, writer.ledger_id)))
        await world._registries[name].register(
            BookieInfo(name, f"memory:{name}", state=BookieState.READ_ONLY)
        )
        cared = await crew(world)
        for _ in range(15):
            cared.clock.now += 10.0
            assert not (await cared.auditor.run_pass()).lost
        assert await marked(world) == {}
        await mark(client.store, writer.ledger_id, frozenset([name]), 2)  # it was away
        await cared.worker.run_pass()
        assert await marked(world) == {}
        assert await client.ledger_metadata(writer.ledger_id) == before, "its copies are there"

    run_virtually(test, bookies=4)


QUICK = replace(AUDIT, lost_bookie_delay_s=5.0, pass_s=0.1)


def test_auditor_that_is_elected_again_goes_on_from_what_others_saw() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client, stop, elected = await world.client(), asyncio.Event(), [True]
        writer = await filled(client)
        await writer.close()
        name = min(await names(client, writer.ledger_id))
        auditor = Auditor(await world.client(), QUICK)
        running = asyncio.ensure_future(auditor.run(stop, lambda: elected[0]))
        await lose(world, name)
        await asyncio.sleep(3.1)
        elected[0] = False
        await asyncio.sleep(0.5)
        await world.register(name)
        await Auditor(client, QUICK).run_pass()  # another one is elected, and sees it
        await world._registries[BookieId(name)].deregister()
        elected[0] = True
        await asyncio.sleep(3.1)
        assert await marked(world) == {}, "it is gone for three seconds, and not for six"
        await asyncio.sleep(3)
        assert set(await marked(world)) == {writer.ledger_id}
        stop.set()
        await running

    run_virtually(test, bookies=4)


def test_whoever_is_not_elected_writes_nothing() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client, stop, elected = await world.client(), asyncio.Event(), [False]
        writer = await filled(client)
        await writer.close()
        name = min(await names(client, writer.ledger_id))
        del world.bookies[BookieId(name)].ledgers[writer.ledger_id]
        config = CheckerConfig(members_per_s=1e6, interval_s=3.0, pass_s=0.5, closed_pass_s=0.5)
        loop = asyncio.get_running_loop()
        checker = Checker(client, config, clock=loop.time)
        closed = ClosedCheck(client, checker, config)
        running = asyncio.gather(
            checker.run(stop, lambda: elected[0]), closed.run(stop, lambda: elected[0])
        )
        await asyncio.sleep(5)
        assert await read_node(client.store, CheckState, CHECK_PATH) is None
        assert await read_node(client.store, ClosedState, CLOSED_PATH) is None
        assert await marked(world) == {}
        elected[0] = True
        await asyncio.sleep(1)
        assert await marked(world) == {writer.ledger_id: 2}
        assert await read_node(client.store, CheckState, CHECK_PATH) is not None
        stop.set()
        await running

    run_virtually(test, bookies=4)


def test_check_that_loses_its_election_leaves_the_rest_to_the_next() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        config = CheckerConfig(members_per_s=1e6)
        closed = ClosedCheck(client, Checker(client, config), config)
        await closed.run_pass()
        writers = [await filled(client) for _ in range(3)]
        for writer in writers:
            await writer.close()
            for bookie in world.bookies.values():
                bookie.ledgers[writer.ledger_id].entries.pop(3)
        asked: list[int] = []

        def is_elected() -> bool:
            asked.append(1)
            return len(asked) < 2

        assert await closed.run_pass(is_elected) == 1
        assert set(await marked(world)) == {writers[2].ledger_id}, "the newest one first"
        assert await closed.run_pass() == 2, "they are due still"

    run_virtually(test)


def test_check_of_all_that_loses_its_election_skips_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        checker = Checker(client, CheckerConfig(members_per_s=1e6, interval_s=0.0))
        await checker.run_pass()
        writers = [await filled(client) for _ in range(3)]
        for writer in writers:
            await writer.close()
            for bookie in world.bookies.values():
                bookie.ledgers[writer.ledger_id].entries.pop(3)
        asked: list[int] = []

        def is_elected() -> bool:
            asked.append(1)
            return len(asked) < 2

        assert not await checker.run_pass(is_elected)
        assert set(await marked(world)) == {writers[0].ledger_id}
        state = await read_node(client.store, CheckState, CHECK_PATH)
        assert state is not None and state.value.begun_ms and state.value.ended_ms
        assert (state.value.after, state.value.ledgers) == (0, 0), "another one is at it"
        assert await checker.run_pass()
        assert set(await marked(world)) == {writer.ledger_id for writer in writers}

    run_virtually(test)


def test_closed_ledger_is_checked_although_the_store_failed_meanwhile() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        config = CheckerConfig(members_per_s=1e6)
        checker = Checker(client, config)
        closed = ClosedCheck(client, checker, config)
        await closed.run_pass()
        writer = await filled(client)
        await writer.close()
        for bookie in world.bookies.values():
            bookie.ledgers[writer.ledger_id].entries.pop(3)
        check = checker.check
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checker, "check", broken)
            with pytest.raises(MetadataRestoredError):
                await closed.run_pass()
        assert checker.check == check
        assert await closed.run_pass() == 1

    async def broken(*_: object) -> None:
        raise MetadataRestoredError("now")

    run_virtually(test)


def test_deleted_ledger_holds_up_no_place_of_the_check() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        config = CheckerConfig(members_per_s=1e6)
        closed = ClosedCheck(client, Checker(client, config), config)
        gone, stays = await filled(client), await filled(client)
        await closed.run_pass()
        await gone.close()
        await client.delete_ledger(gone.ledger_id)
        await stays.close()
        for _ in range(2):
            await closed.run_pass()
        state = await read_node(client.store, ClosedState, CLOSED_PATH)
        assert state is not None and state.value.after == stays.ledger_id

    run_virtually(test)
