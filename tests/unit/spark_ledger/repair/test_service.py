"""Auditor, checkers and worker side by side: each duty is done, and who may do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from spark_ledger.metadata.json_nodes import write_node
from spark_ledger.repair.auditor import AuditorConfig
from spark_ledger.repair.checker import CheckerConfig
from spark_ledger.repair.nodes import CHECK_PATH, CheckState, mark
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.service import RepairConfig, run_repair
from spark_ledger.repair.worker import WorkerConfig
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import closed, wipe
from tests.unit.spark_ledger.repair.world import give_cookies, lacking, lose, marked

NEVER_S = 1e9


def config(*, check_s: float = 0.0, closed_pass_s: float = NEVER_S) -> RepairConfig:
    """``check_s``: from one check of all ledgers to the next; 0: none."""
    return RepairConfig(
        AuditorConfig(lost_bookie_delay_s=2.0, pass_s=0.5, reads_per_s=1e6),
        WorkerConfig(bytes_per_s=1e12, pass_s=0.5),
        CheckerConfig(check_s, 1e6, pass_s=0.5, closed_pass_s=closed_pass_s),
    )


async def repaired_for(
    world: World,
    seconds: float,
    how: RepairConfig,
    is_elected: Callable[[], bool] = lambda: True,
) -> None:
    """Repair runs for so long, and then ends because it is told to."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_repair(await world.client(), how, stop, is_elected))
    await asyncio.sleep(seconds)
    assert not running.done()
    stop.set()
    await running


def test_copies_of_a_bookie_that_is_gone_for_the_delay_are_made_again() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client)
        name = writer.metadata.last_fragment.bookies[0]
        await lose(world, name)
        await repaired_for(world, 8.0, config())
        assert name not in all_names(await client.ledger_metadata(writer.ledger_id))
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=5)


@pytest.mark.parametrize(
    "how", [config(check_s=2.0), config(closed_pass_s=1.0)], ids=["check of all", "check of new"]
)
def test_holes_are_found_by_either_check_and_filled(how: RepairConfig) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        wipe(world, writer.metadata.last_fragment.bookies[0], writer, 0, 1, 2, 3, 4)
        assert await lacking(world, client, writer.ledger_id)
        await write_node(client.store, CHECK_PATH, CheckState(ended_ms=1), None)  # long ago
        await repaired_for(world, 8.0, how)
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=5)


def test_holes_that_nobody_looks_for_stay() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        wipe(world, writer.metadata.last_fragment.bookies[0], writer, 0, 1, 2, 3, 4)
        await write_node(client.store, CHECK_PATH, CheckState(ended_ms=1), None)
        await repaired_for(world, 8.0, config())
        assert await lacking(world, client, writer.ledger_id)

    run_virtually(test, bookies=5)


def test_worker_beside_the_one_of_the_keeper_only_takes_what_is_marked() -> None:
    """Who is not elected neither counts bookies as lost nor looks for holes (rule R7)."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        told, holed, lost = [await closed(client) for _ in range(3)]
        wipe(world, told.metadata.last_fragment.bookies[0], told, 0, 1, 2, 3, 4)
        wipe(world, holed.metadata.last_fragment.bookies[0], holed, 0, 1, 2, 3, 4)
        await write_node(client.store, CHECK_PATH, CheckState(ended_ms=1), None)
        await mark(client.store, told.ledger_id, frozenset(), 2)
        how = config(check_s=2.0, closed_pass_s=1.0)
        await repaired_for(world, 8.0, how, lambda: False)
        assert await marked(world) == {}
        assert await lacking(world, client, told.ledger_id) == []
        assert await lacking(world, client, holed.ledger_id)
        name = lost.metadata.last_fragment.bookies[0]
        await lose(world, name)
        await repaired_for(world, 8.0, how, lambda: False)
        assert name in all_names(await client.ledger_metadata(lost.ledger_id))

    run_virtually(test, bookies=5)
