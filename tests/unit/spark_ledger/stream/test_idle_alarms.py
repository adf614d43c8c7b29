"""When a ledger counts as idle: from its last use on; and it is looked at once in that time."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.limits.client import TIMER_STEP_S
from spark_ledger.limits.stream import IDLE_LEDGER_S
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.test_idle_ledgers import micro_batch
from tests.unit.spark_ledger.stream.test_segment_writer import new_stream
from tests.unit.spark_ledger.stream.world import table
from tests.unit.virtual_time import run_in_virtual_time


class Asked(FakeLedgers):
    """Ledgers that count how often a writer asks whether it could have another."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def has_bookies_for(self, ensemble_size: int) -> bool:
        self.asked += 1
        return super().has_bookies_for(ensemble_size)


def test_ledger_is_idle_from_its_last_use_on() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        writer = (await new_stream(ledgers)).writer()
        first = await micro_batch(writer, 0)
        for number in range(1, 6):
            await asyncio.sleep(0.7 * IDLE_LEDGER_S)
            assert await micro_batch(writer, number) == first
        await asyncio.sleep(IDLE_LEDGER_S - TIMER_STEP_S)
        assert not ledgers.ledgers[first].closed
        await asyncio.sleep(3 * TIMER_STEP_S)
        assert ledgers.ledgers[first].closed and writer.ledger_id is None
        await writer.close()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("is_used", [False, True])
def test_ledger_that_has_to_stay_open_is_looked_at_once_in_its_time(is_used: bool) -> None:
    """While bookies are too few, or a micro-batch waits for rows: for hours, if need be."""

    async def scenario() -> None:
        ledgers = Asked()
        writer = (await new_stream(ledgers)).writer()
        if is_used:
            await writer.write(table(0, 400))
        else:
            await micro_batch(writer, 0)
            ledgers.bookies = 2
        alarm = writer._idle
        assert alarm is not None
        looks, on_idle = 0, writer._on_idle

        def looked() -> None:
            nonlocal looks
            looks += 1
            if looks < 100:  # else it looks without end
                on_idle()

        alarm._callback = looked
        await asyncio.sleep(4.5 * IDLE_LEDGER_S)
        assert writer.ledger_id is not None and 3 <= looks <= 5
        await writer.close()

    run_in_virtual_time(scenario())
