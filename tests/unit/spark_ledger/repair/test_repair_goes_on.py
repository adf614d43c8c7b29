"""Workers beside trouble: a fragment that is lost, tries that fail, a pass that is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from spark_ledger.limits.repair import REPAIR_FAILED_AGAIN_S_MAX
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.repair_locks import LOCKS_PATH
from spark_ledger.metadata.unsettled import id_path
from spark_ledger.repair.copying import Copier
from spark_ledger.repair.nodes import FAILED_PATH, FailedRepair, mark
from spark_ledger.repair.plan import LaneCopy
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import crew, lacking, lose, marked


def test_fragment_that_is_lost_keeps_no_other_from_its_copies() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        first, second, *_ = writer.metadata.last_fragment.bookies
        world.kill(second)
        for number in range(10):
            await writer.append(b"%d" % number)
        await writer.close()
        world.revive(second)
        begin, end = (await client.ledger_metadata(writer.ledger_id)).fragments
        assert first in begin.bookies and first in end.bookies and second not in end.bookies
        await lose(world, first)
        for bookie in world.bookies.values():
            if writer.ledger_id in bookie.ledgers:
                bookie.ledgers[writer.ledger_id].entries.pop(3, None)
        await mark(client.store, writer.ledger_id, frozenset([BookieId(first)]), 2)
        await (await crew(world)).worker.run_pass()
        begin, end = (await client.ledger_metadata(writer.ledger_id)).fragments
        assert first in begin.bookies, "nobody has its entry 3"
        assert first not in end.bookies
        assert set(await marked(world)) == {writer.ledger_id}
        failed = await read_node(client.store, FailedRepair, id_path(FAILED_PATH, writer.ledger_id))
        assert failed is not None and "entry 3 cannot be read" in failed.value.reason

    run_virtually(test, bookies=6)


def test_end_that_cannot_be_recovered_keeps_no_fragment_before_it_from_its_copies() -> None:
    """Its last fragment has one bookie left that answers: too few to find its end."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        first, second, third = writer.metadata.last_fragment.bookies
        world.kill(second)
        for number in range(10):
            await writer.append(b"%d" % number)
        world.revive(second)
        begin, end = (await client.ledger_metadata(writer.ledger_id)).fragments
        assert first in end.bookies and second not in end.bookies
        await lose(world, first)
        silent = {third, *end.bookies} - {first}
        for each in silent:
            world.kill(each)
        await mark(client.store, writer.ledger_id, frozenset([BookieId(first)]), 1)
        cared = await crew(world, open_grace_s=0.0)
        await cared.worker.run_pass()
        metadata = await client.ledger_metadata(writer.ledger_id)
        begin, end = metadata.fragments
        assert not metadata.is_closed and first in end.bookies
        assert first not in begin.bookies, "its entries are on the second bookie"
        assert set(await marked(world)) == {writer.ledger_id}, "something is left to do"
        failed = await read_node(client.store, FailedRepair, id_path(FAILED_PATH, writer.ledger_id))
        assert failed is not None
        for _ in range(8):  # nobody tells when they answer: they were registered all the time
            cared.clock.now += 3600.0
            await cared.worker.run_pass()
        for each in silent:
            world.revive(each)
        cared.clock.now += 60.0
        await cared.worker.run_pass()
        assert (await client.ledger_metadata(writer.ledger_id)).is_closed
        assert await lacking(world, client, writer.ledger_id) == [] and await marked(world) == {}

    run_virtually(test, bookies=8)


def test_ledger_that_fails_is_tried_twice_as_late_each_time_up_to_a_bound() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        name = BookieId(writer.metadata.last_fragment.bookies[0])
        await lose(world, name)
        await mark(client.store, writer.ledger_id, frozenset([name]), 2)
        cared = await crew(world)
        tries: list[float] = []
        for _ in range(20 * 360):
            if await cared.worker.run_pass():
                tries.append(cared.clock.now)
            cared.clock.now += 10.0
            if len(tries) == 13:
                break
        pauses = [later - former for former, later in pairwise(tries)]
        assert pauses[:4] == [10.0, 20.0, 40.0, 80.0]
        assert pauses[-2:] == [REPAIR_FAILED_AGAIN_S_MAX] * 2
        path = id_path(FAILED_PATH, writer.ledger_id)
        failed = await read_node(client.store, FailedRepair, path)
        assert failed is not None and failed.value.tries == 13
        await world.register(name)
        world.revive(name)
        cared.clock.now += 3600.0
        await cared.worker.run_pass()
        assert await read_node(client.store, FailedRepair, path) is None, "it is no trouble now"

    run_virtually(test)


def test_ledger_that_waits_for_an_operator_is_looked_at_each_minute() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client, password=b"secret")
        name = BookieId(writer.metadata.last_fragment.bookies[0])
        await lose(world, name)
        await mark(client.store, writer.ledger_id, frozenset([name]), 2)
        cared = await crew(world, open_grace_s=0.0)
        for _ in range(10):
            await cared.worker.run_pass()
            cared.clock.now += 3600.0
        await cared.worker.run_pass()
        path = id_path(FAILED_PATH, writer.ledger_id)
        failed = await read_node(client.store, FailedRepair, path)
        assert failed is not None and failed.value.tries == 11
        assert "only who knows the password" in failed.value.reason
        assert await cared.worker.run_pass() == 0
        cared.clock.now += 60.0
        assert await cared.worker.run_pass() == 1

    run(test, bookies=5)  # keys are derived on a thread


def test_pass_that_is_cut_off_leaves_nothing_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await world._registries[BookieId("b4")].deregister()
        await client.context.directory.refresh(all_again=True)
        options = {"ensemble_size": 4, "write_quorum": 3, "ack_quorum": 2}
        writers = [await filled(client, **options) for _ in range(6)]  # all are on all others
        for writer in writers:
            await writer.close()
        name = BookieId("b0")
        await lose(world, name)
        await world.register("b4")
        for writer in writers:
            await mark(client.store, writer.ledger_id, frozenset([name]), 2)
        at_work, most, copy = 0, 0, Copier.copy

        async def slow(copier: Copier, lanes: Sequence[LaneCopy], target: BookieId) -> None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            try:
                await asyncio.sleep(1.0)
                await copy(copier, lanes, target)
            finally:
                at_work -= 1

        monkeypatch.setattr(Copier, "copy", slow)
        cared = await crew(world, at_once=2)
        passing = asyncio.ensure_future(cared.worker.run_pass())
        await asyncio.sleep(1.5)
        assert at_work == most == 2
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
        assert at_work == 0 and await client.store.children(LOCKS_PATH) == []
        before = len(asyncio.all_tasks())
        await cared.worker.run_pass()
        assert most == 2 and await marked(world) == {}
        assert len(asyncio.all_tasks()) == before
        for writer in writers:
            assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=5)
