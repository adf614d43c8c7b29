"""What a bookie lacks is found on whichever page it is, and silence says nothing."""

from __future__ import annotations

import pytest

from spark_ledger.repair.held import held_parts
from spark_ledger.repair.plan import LaneCopy, within
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, LedgerId
from tests.contracts.scripted_bookie import ScriptedBookie, _Ledger
from tests.unit.spark_ledger.client.world import World, run_virtually

B0 = BookieId("b0")


@pytest.mark.parametrize("ranges_per_page", [1, 2, 3, 100])
def test_what_is_missing_is_found_on_any_page(ranges_per_page: int) -> None:
    lanes = [LaneCopy(0, 29, 5, ()), LaneCopy(2, 29, 5, ())]
    wanted = {*range(0, 30, 5), *range(2, 30, 5)}

    async def test(world: World) -> None:
        for lost in sorted(wanted):
            bookie = ScriptedBookie()
            bookie.ranges_per_page = ranges_per_page
            held = dict.fromkeys(wanted - {lost}, b"x")
            bookie.ledgers[LedgerId(1)] = _Ledger(None, held)
            transport = MemoryTransport({B0: bookie})
            found: list[LaneCopy] = []
            asked = 0
            async for part in held_parts(transport, B0, LedgerId(1), 0, 29, timeout_s=1.0):
                asked += 1
                found += part.missing(lanes)
            assert [(each.first, each.last) for each in found] == [(lost, lost)]
            assert asked == -(-11 // ranges_per_page)
            await transport.close()

    run_virtually(test)


def test_silent_bookie_says_nothing_and_an_ignorant_one_denies_all() -> None:
    async def test(world: World) -> None:
        transport = MemoryTransport({B0: ScriptedBookie()})
        lane = LaneCopy(3, 9, 2, ())
        denied = [part async for part in held_parts(transport, B0, LedgerId(1), 3, 9, timeout_s=1)]
        assert [part.missing([lane]) for part in denied] == [[lane]]
        gone = BookieId("b9")
        silent = [p async for p in held_parts(transport, gone, LedgerId(1), 3, 9, timeout_s=1)]
        assert [part.ranges for part in silent] == [None]
        await transport.close()

    run_virtually(test)


def test_lane_is_cut_at_its_own_entries() -> None:
    lane = LaneCopy(2, 29, 5, ())
    assert within(lane, 0, 99) == lane
    assert within(lane, 7, 20)[:2] == (7, 20) and within(lane, 8, 20)[:2] == (12, 20)
    assert within(lane, 28, 29).first == 32, "it has none there"
