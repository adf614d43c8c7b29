"""What one client costs others: room that it does not use, lines of the log, late reads."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from bookie_server.service.append_gate import AppendGate, AppendShares
from bookie_server.service.calls import Leftovers
from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.guard.log_bound import LogBound
from bookie_server.service.interceptors import MetricsInterceptor
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import BOOKIE_READ_THREADS
from spark_ledger.types import BookieId
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.bookie_server.service.test_append_shares import on_loop, settle
from tests.unit.bookie_server.service.test_appenders import gated


@on_loop
async def test_stream_that_goes_on_alone_keeps_no_room_for_what_it_may_read() -> None:
    """Only those behind it must see that: it would wait for itself, a twentieth of a second."""
    shares = AppendShares(2 * MIB)
    shares.began("client", 2 * MIB)
    first = asyncio.ensure_future(shares.wait("client", 2 * MIB))
    await settle()
    shares.ended("client", 2 * MIB)
    await first
    second = asyncio.ensure_future(shares.wait("client", 2 * MIB))
    await settle()
    assert second.done(), "the first one has read nothing"


def test_long_error_is_one_short_line_of_the_log() -> None:
    """A stranger says what is in it."""
    error = ValueError("nonsense " * 10_000)
    record = logging.LogRecord("x", logging.ERROR, "", 1, "bad", (), (ValueError, error, None))
    assert LogBound(clock=lambda: 0.0).filter(record)
    assert record.getMessage().startswith("bad: nonsense") and len(record.getMessage()) < 250


@pytest.mark.parametrize("streams", [False, True])
def test_handler_whose_client_has_gone_ends_as_cancelled(streams: bool) -> None:
    """grpc would write its traceback into the log. It counts as ended all the same."""

    async def main() -> None:
        metrics = ServiceMetrics()
        interceptor = MetricsInterceptor(metrics, Leftovers(lambda _peer, _why: None))

        async def gone(_request: object, _context: object) -> None:
            assert metrics.calls_in_progress["Describe"] == 1
            raise grpc.aio.InternalError("the client has gone")

        made: Any = (
            grpc.stream_stream_rpc_method_handler(gone)
            if streams
            else grpc.stream_unary_rpc_method_handler(gone)
        )

        async def handler(_details: object) -> Any:
            return made

        details = cast("grpc.HandlerCallDetails", SimpleNamespace(method="/bookie/Describe"))
        wrapped: Any = await interceptor.intercept_service(handler, details)
        context = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1", code=lambda: None)
        call = wrapped.stream_stream if streams else wrapped.stream_unary
        with pytest.raises(asyncio.CancelledError):
            await call(None, context)
        assert metrics.calls_in_progress["Describe"] == 0
        assert metrics.calls["Describe", "OK"] == 1

    asyncio.run(main())


def test_read_that_has_not_begun_when_the_service_is_closed_does_not_begin() -> None:
    """The storage is closed once those have ended that had."""

    async def main() -> None:
        service = BookieService(
            ScriptedBookie(),
            BookieId("b"),
            describe=lambda: Description("c", "1", "writable", 0, 0, 0, 0, 0.0),
            metrics=ServiceMetrics(),
        )
        may_end = threading.Event()
        pool = service.reads._lanes[0].pool
        begun = [pool.submit(may_end.wait, 10) for _ in range(BOOKIE_READ_THREADS)]
        late = pool.submit(may_end.is_set)
        service.close()
        may_end.set()
        service.wait_for_reads()
        assert all(each.result() for each in begun)
        assert late.cancelled()

    asyncio.run(main())


@gated
async def test_an_eighth_is_taken_in_while_memory_is_short(
    bookie: ScriptedBookie, gate: AppendGate
) -> None:
    """And not one message after the other: a bookie whose memory stays short goes on well."""
    gate.memory_is_short(True)
    bookie.append_bytes_in_flight = 100 // 8
    async with asyncio.timeout(1):
        await gate.wait(1)
    bookie.append_bytes_in_flight += 1
    waits = asyncio.ensure_future(gate.wait(1))
    await settle()
    assert not waits.done()
    bookie.append_bytes_in_flight -= 1
    gate.completed()
    await waits
