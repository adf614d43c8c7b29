"""Attempts to change the end of a stream: how long they pause in between, and when they end."""

from __future__ import annotations

import asyncio
import random

import pytest

from spark_ledger.errors import RetryableError
from spark_ledger.limits.stream import TRUNCATE_TIMEOUT_S
from spark_ledger.stream.retention import tries as module
from spark_ledger.stream.retention.tries import Tries
from tests.unit.virtual_time import run_in_virtual_time


class Longest(random.Random):
    """Draws the longest pause that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        self.bounds.append(b)
        return b


def test_pauses_between_attempts_double_up_to_a_bound_until_time_is_up() -> None:
    async def scenario() -> None:
        rng = Longest()
        loop = asyncio.get_running_loop()
        tries, began_s = Tries("s", rng), loop.time()
        with pytest.raises(RetryableError, match=r"'s': other writers won every race"):
            while True:
                await tries.begin()
        least, most = module._BACKOFF_S_MIN, module._BACKOFF_S_MAX
        assert rng.bounds[0] == 0.0, "the first attempt waits for nothing"
        assert rng.bounds[1:] == [min(least * 2**n, most) for n in range(len(rng.bounds) - 1)]
        assert rng.bounds[-1] == most
        assert TRUNCATE_TIMEOUT_S < loop.time() - began_s <= TRUNCATE_TIMEOUT_S + most

    run_in_virtual_time(scenario())
