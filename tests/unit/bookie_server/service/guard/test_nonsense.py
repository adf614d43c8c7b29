"""How long connections are held that send what no client of this system sends."""

from __future__ import annotations

import asyncio
import random

import pytest

from bookie_server.service.guard.nonsense import Nonsense
from spark_ledger.limits.bookie import BOOKIE_NONSENSE_BYTES_S, BOOKIE_NONSENSE_PAUSE_S_MAX
from tests.unit.virtual_time import run_in_virtual_time


@pytest.mark.parametrize("seed", range(5))
def test_nonsense_is_paid_for_in_one_queue_and_nobody_is_held_without_end(seed: int) -> None:
    """Each waits behind all that came before, but never longer than the bound: it keeps a call, and
    who comes later must not wait for a debt that nobody can pay."""

    async def main() -> None:
        draw, loop, free_at = random.Random(seed), asyncio.get_running_loop(), 0.0
        nonsense = Nonsense()
        for _message in range(200):
            await asyncio.sleep(draw.choice([0.0, 0.01, 1.0]))
            size = draw.choice([1, 1 << 10, 1 << 20, 1 << 33])
            wanted_s = max(loop.time(), free_at) + size / BOOKIE_NONSENSE_BYTES_S - loop.time()
            wanted_s = min(wanted_s, BOOKIE_NONSENSE_PAUSE_S_MAX)
            pause_s = nonsense.pause_s(size)
            assert pause_s == pytest.approx(wanted_s), f"seed {seed}"
            free_at = loop.time() + wanted_s

    run_in_virtual_time(main())
