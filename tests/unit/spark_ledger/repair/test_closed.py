"""What the check of closed ledgers leaves to the next keeper: what it has not seen whole."""

from __future__ import annotations

import asyncio

from spark_ledger.repair.checker import Checker, CheckerConfig
from spark_ledger.repair.closed import ClosedCheck
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import closed, wipe
from tests.unit.spark_ledger.repair.world import marked


async def keeper(world: World) -> ClosedCheck:
    client, config = await world.client(), CheckerConfig(members_per_s=1e6)
    return ClosedCheck(client, Checker(client, config), config)


def test_ledger_of_which_a_member_was_silent_is_checked_by_the_next_keeper() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        first = await closed(client)
        later = await closed(client)
        name = first.metadata.last_fragment.bookies[0]
        world.kill(name)
        assert await (await keeper(world)).run_pass() == 0
        world.revive(name)
        wipe(world, name, first, 0, 1, 2, 3, 4)
        assert await (await keeper(world)).run_pass() == 1
        assert set(await marked(world)) == {first.ledger_id}
        assert later.ledger_id > first.ledger_id

    run_virtually(test, bookies=4)


def test_ledger_in_a_gap_that_came_while_this_keeper_worked_is_checked_by_the_next() -> None:
    """Its client took a block of ids first, and used it last."""

    async def test(world: World) -> None:
        slow = await world.client()
        await closed(slow)
        cared = await keeper(world)
        await cared.run_pass()
        above = await closed(await world.client())
        await cared.run_pass()
        late = await closed(slow)
        assert late.ledger_id < above.ledger_id
        wipe(world, late.metadata.last_fragment.bookies[0], late, 0, 1, 2, 3, 4)
        assert await (await keeper(world)).run_pass() == 1
        assert set(await marked(world)) == {late.ledger_id}

    run_virtually(test, bookies=4)


def test_ledger_that_was_open_when_a_keeper_ended_is_checked_by_the_next() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(ensemble_size=4, write_quorum=3, ack_quorum=2)
        for number in range(10):
            await writer.append(b"%d" % number)
        await closed(client)
        cared, stop = await keeper(world), asyncio.Event()
        assert await cared.run_pass() == 0
        stop.set()
        await cared.run(stop, lambda: True)
        await writer.close()
        wipe(world, BookieId(writer.metadata.last_fragment.bookies[0]), writer)
        assert await (await keeper(world)).run_pass() == 1

    run_virtually(test, bookies=4)
