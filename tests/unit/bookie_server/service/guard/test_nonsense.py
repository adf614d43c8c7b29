"""How long connections are held that send what no client of this system sends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, NoReturn, cast

import grpc
import pytest

from bookie_server.service.calls import CallLimits
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.nonsense import Nonsense
from bookie_server.service.requests import Requests
from spark_ledger.limits.bookie import BOOKIE_NONSENSE_BYTES_S, BOOKIE_NONSENSE_PAUSE_S_MAX
from spark_ledger.limits.entries import REQUEST_BYTES_MAX
from spark_ledger.wire import bookie_pb2 as pb
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


class Context:
    """A call that brings one message."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> bytes:
        return self._data

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise ValueError(f"{code.name}: {details}")


@pytest.mark.parametrize("data", [b"\xff" * 64, bytes(REQUEST_BYTES_MAX + 1)])
def test_request_that_is_nonsense_is_refused_behind_its_pause(data: bytes) -> None:
    """A client that is told at once sends more at once."""

    async def main() -> None:
        loop, nonsense = asyncio.get_running_loop(), Nonsense()
        limits = CallLimits(lambda *_of: None, Counter())
        requests = Requests(limits, Connections(), nonsense)

        async def handler(_request: object, _context: object) -> None:
            raise AssertionError("it is no request")

        handle = requests.received(handler, pb.DescribeRequest)
        nonsense.pause_s(BOOKIE_NONSENSE_BYTES_S)  # of another one: a second
        began = loop.time()
        with pytest.raises(ValueError, match="INVALID_ARGUMENT") as refused:
            await handle(cast("Any", None), cast("Any", Context(data)))
        is_long = len(data) > REQUEST_BYTES_MAX
        assert ("are allowed" in str(refused.value)) is is_long
        assert loop.time() - began == pytest.approx(1 + len(data) / BOOKIE_NONSENSE_BYTES_S)

    run_in_virtual_time(main())


def test_request_of_as_many_bytes_as_are_allowed_is_not_too_long() -> None:
    async def main() -> None:
        requests = Requests(CallLimits(lambda *_of: None, Counter()), Connections(), Nonsense())
        with pytest.raises(ValueError, match="INVALID_ARGUMENT") as refused:
            await requests.received(cast("Any", None), pb.DescribeRequest)(
                cast("Any", None), cast("Any", Context(b"\xff" * REQUEST_BYTES_MAX))
            )
        assert "are allowed" not in str(refused.value)

    run_in_virtual_time(main())
