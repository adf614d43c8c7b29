"""What a worker remembers of ledgers, beside others that repair the same ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import NoReturn

import pytest

from spark_ledger.errors import (
    LedgerError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.repair import worker
from spark_ledger.repair.ledger import LedgerRepair
from spark_ledger.repair.nodes import DONE_PATH, RepairDone, mark
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.status import look
from spark_ledger.types import BookieId, LedgerId
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import wipe
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import crew, lose, marked


def test_writer_whose_bookie_is_lost_again_has_all_of_its_grace() -> None:
    """Another worker took the mark off in between: this one has nothing to remember."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        name = BookieId(min(writer.metadata.last_fragment.bookies))
        first, second = await crew(world), await crew(world)
        await lose(world, name)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([name]), 2)
        await first.worker.run_pass()
        world.revive(name)
        await world.register(name)
        await second.worker.run_pass()
        assert await marked(world) == {}, "it is there again"
        await first.worker.run_pass()
        first.clock.now += 1000.0
        await lose(world, name)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([name]), 2)
        await first.worker.run_pass()
        assert not (await client.ledger_metadata(writer.ledger_id)).is_closed
        first.clock.now += 201.0
        await first.worker.run_pass()
        assert (await client.ledger_metadata(writer.ledger_id)).is_closed

    run_virtually(test, bookies=5)


def test_writer_that_left_its_bookies_and_came_back_has_all_of_its_grace() -> None:
    """It was busy: that the metadata name the same bookies as before says nothing."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        ledger_id, fragment = LedgerId(writer.ledger_id), writer.metadata.last_fragment
        cared = await crew(world)
        await lose(world, fragment.bookies[0])
        await mark(client.store, ledger_id, frozenset([fragment.bookies[0]]), 2)
        await cared.worker.run_pass()
        spare = min(set(world.bookies) - set(fragment.bookies))
        left = fragment._replace(bookies=(spare, *fragment.bookies[1:]))
        ledgers = LedgerStore(client.store)
        for last in (left, fragment):
            now = await ledgers.read(ledger_id)
            fragments = (*now.value.fragments[:-1], last)
            await ledgers.compare_and_set(now.value.with_changes(fragments=fragments), now.version)
        cared.clock.now += 201.0
        await cared.worker.run_pass()
        assert not (await client.ledger_metadata(ledger_id)).is_closed
        cared.clock.now += 201.0
        await cared.worker.run_pass()
        assert (await client.ledger_metadata(ledger_id)).is_closed

    run_virtually(test, bookies=5)


def test_ledger_that_another_worker_repaired_is_paused_no_more() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        name = BookieId(min(writer.metadata.last_fragment.bookies))
        first, second = await crew(world), await crew(world)
        await lose(world, name)
        for other in set(world.bookies) - {name}:
            world.kill(other)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([name]), 2)
        await first.worker.run_pass()
        for other in set(world.bookies) - {name}:
            world.revive(other)
        await second.worker.run_pass()
        assert await marked(world) == {}
        await first.worker.run_pass()
        assert first.worker._paused == {} and not first.worker._graces.ledgers
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        assert await first.worker.run_pass() == 1, "it is new to this worker"
        assert await marked(world) == {}

    run_virtually(test, bookies=4)


def test_bookie_that_leaves_and_comes_back_ends_the_pauses_each_time() -> None:
    """What waits for it is tried at once, also when it was there before."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        first, spare = min(writer.metadata.last_fragment.bookies), BookieId("b9")
        world.bookies[spare] = ScriptedBookie()
        cared = await crew(world)
        await lose(world, first)
        await mark(client.store, writer.ledger_id, frozenset([BookieId(first)]), 2)
        assert await cared.worker.run_pass() == 1
        for _ in range(3):
            assert await cared.worker.run_pass() == 0, "nobody is there who could take the copies"
            await world.register(spare)
            await asyncio.sleep(1.5)
            assert await cared.worker.run_pass() == 1, "it is there, and takes none yet"
            await world._registries[spare].deregister()
            await asyncio.sleep(1.5)
        world.revive(spare)
        assert await cared.worker.run_pass() == 0
        await world.register(spare)
        await asyncio.sleep(1.5)
        assert await cared.worker.run_pass() == 1
        assert await marked(world) == {}

    run_virtually(test)


def test_repairs_that_take_long_are_counted_whole_though_others_are_written_down_meanwhile() -> (
    None
):
    async def test(world: World) -> None:
        client, cared = await world.client(), await crew(world)
        under_way = cared.worker._uncounted  # a repair counts in it to its end
        for copied in (5, 7, 11):
            under_way["bytes"] += copied
            await cared.worker._count()
        done = await read_node(client.store, RepairDone, DONE_PATH)
        assert done is not None and done.value.copied_bytes == 5 + 7 + 11

    run_virtually(test)


@pytest.mark.parametrize(
    ("error", "is_written"),
    [
        (MetadataUnavailableError("away"), False),
        (OutcomeUnknownError("no reply"), False),
        (NotEnoughBookiesError("nobody takes it"), True),
    ],
)
def test_ledger_is_said_to_fail_only_by_what_is_its_own_fault(
    error: LedgerError, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short outage of the metadata store would show all ledgers as failing."""

    async def fails(*_: object) -> NoReturn:
        raise error

    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        await mark(client.store, writer.ledger_id, frozenset(), 2)
        cared = await crew(world)
        monkeypatch.setattr(LedgerRepair, "run", fails)
        assert await cared.worker.run_pass() == 1
        assert await cared.worker.run_pass() == 0, "it has a pause either way"
        assert len((await look(client.store)).failed) == is_written

    run_virtually(test)


def test_rate_that_is_written_down_is_of_the_time_since_the_last_one() -> None:
    async def test(world: World) -> None:
        client, cared = await world.client(), await crew(world)
        steps = ((100, 10.0, 10), (600, 20.0, 30), (0, 500.0, 30), (50, 10.0, 5))
        for copied, elapsed_s, rate in steps:
            cared.clock.now += elapsed_s
            if copied:
                cared.worker._uncounted["bytes"] += copied
            cared.worker._throttles.source_waited_s += 1.5 if copied else 0.0
            await cared.worker._count()
            done = await read_node(client.store, RepairDone, DONE_PATH)
            assert done is not None and done.value.bytes_per_s == rate
        assert done is not None
        assert (done.value.copied_bytes, done.value.source_waited_ms) == (750, 4500)

    run_virtually(test)


def test_bookie_that_comes_back_while_others_are_lost_is_replaced_no_more() -> None:
    async def test(world: World) -> None:
        back, gone, *spare = sorted(world.bookies)
        for name in spare[-2:]:
            await world._registries[name].deregister()
        client, cared = await world.client(), await crew(world)
        writers = [await filled(client, ensemble_size=5, write_quorum=3) for _ in range(2)]
        for writer in writers:
            await writer.close()
        for name in spare[-2:]:
            await world.register(name)
        await asyncio.sleep(1.5)
        await lose(world, back)
        await lose(world, gone)
        both = frozenset([back, gone])
        for writer in writers[:1]:
            await mark(client.store, writer.ledger_id, both, 1)
        await cared.worker.run_pass()
        world.revive(back)
        await world.register(back)
        cared.clock.now += 10.0
        await mark(client.store, writers[1].ledger_id, both, 1)
        await cared.worker.run_pass()
        first, second = [all_names(await client.ledger_metadata(w.ledger_id)) for w in writers]
        assert both.isdisjoint(first) and both & second == {back}
        assert await marked(world) == {}

    run_virtually(test, bookies=7)


def test_reason_says_when_the_ledger_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client, cared = await world.client(), await crew(world)
        writer = await filled(client)
        await writer.close()
        for name in world.bookies:
            world.kill(name)
        await mark(client.store, writer.ledger_id, frozenset(), 2)
        monkeypatch.setattr(worker, "time", SimpleNamespace(time=lambda: 5e5, time_ns=lambda: 0))
        for tries, pause_s in enumerate((10, 20, 40), 1):
            await cared.worker.run_pass()
            ((_, failed),) = (await look(client.store)).failed
            assert (failed.tries, failed.again_ms) == (tries, 500_000_000 + 1000 * pause_s)
            cared.clock.now += pause_s - 0.1
            assert await cared.worker.run_pass() == 0
            cared.clock.now += 0.2

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("lacks", [True, False])
def test_ledger_counts_as_repaired_only_if_it_lacked_something(*, lacks: bool) -> None:
    async def test(world: World) -> None:
        client, cared = await world.client(), await crew(world)
        writer = await filled(client)
        await writer.close()
        if lacks:
            wipe(world, writer.metadata.last_fragment.bookies[0], writer, 7)
        await mark(client.store, writer.ledger_id, frozenset(), 2)
        await cared.worker.run_pass()
        assert await marked(world) == {}
        done = (await look(client.store)).done
        assert (done.ledgers, done.copied_entries) == (lacks, lacks)

    run_virtually(test)
