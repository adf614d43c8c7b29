"""Pauses that are short again once their reason is over, and graces that nothing makes longer."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client.left_open import LeftOpen
from spark_ledger.errors import LedgerError, MetadataUnavailableError, NoSuchLedgerError
from spark_ledger.limits.client import LEFT_OPEN_DELAY_S, LEFT_OPEN_MAX, WRITER_CLOSE_GRACE_S
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.test_left_open import Recoveries
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.virtual_time import run_in_virtual_time


def test_ledger_behind_one_that_was_deleted_is_closed_after_the_first_pause_again() -> None:
    """Whoever says that a ledger is gone answers: the outage that made the pauses long is over."""
    away = MetadataUnavailableError("no ZooKeeper server answers")

    def fails(_: LedgerId, call: int) -> LedgerError | None:
        return away if call <= 5 else NoSuchLedgerError("it is gone") if call == 6 else None

    recoveries = Recoveries(fails)

    async def test() -> None:
        left = LeftOpen(recoveries)
        for number in range(2):
            left.add(LedgerId(number))
        await asyncio.sleep(120)
        times = [at for at, _ in recoveries.calls]
        assert times[5] - times[4] == pytest.approx(32 * LEFT_OPEN_DELAY_S)
        assert times[6] - times[5] == pytest.approx(LEFT_OPEN_DELAY_S)
        assert recoveries.done == [0]
        await left.close()

    run_in_virtual_time(test())


def test_no_more_ledgers_wait_than_the_bound_while_one_of_them_is_tried() -> None:
    """The one that is tried is not among them meanwhile, and comes back if it fails."""

    async def test() -> None:
        async def fails_slowly(_: LedgerId) -> None:
            await asyncio.sleep(1.0)
            raise MetadataUnavailableError("no ZooKeeper server answers")

        left = LeftOpen(fails_slowly)
        for number in range(LEFT_OPEN_MAX):
            left.add(LedgerId(number))
        for number in range(LEFT_OPEN_MAX, LEFT_OPEN_MAX + 20):
            await asyncio.sleep(1.0)
            left.add(LedgerId(number))
            assert len(left.ledger_ids) <= LEFT_OPEN_MAX
        assert LEFT_OPEN_MAX + 19 in left.ledger_ids
        await left.close()

    run_in_virtual_time(test())


def test_replica_that_comes_further_bit_by_bit_delays_a_close_by_one_grace() -> None:
    """Each answer of it is progress, and none of them begins the grace anew."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        slow = world.bookies[writer.metadata.last_fragment.bookies[2]]
        slow.hold = True
        for number in range(20):
            await writer.append(b"%d" % number)
        loop = asyncio.get_running_loop()
        began = loop.time()
        closing = asyncio.create_task(writer.close())
        while not closing.done():
            await asyncio.sleep(WRITER_CLOSE_GRACE_S / 2.5)
            if slow._held:
                slow._held.pop(0)()
        await closing
        assert len(slow.ledgers[writer.ledger_id].entries) in (2, 3), "the rest is not waited for"
        assert loop.time() - began < 2 * WRITER_CLOSE_GRACE_S

    run_virtually(test)
