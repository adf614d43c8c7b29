"""What is done around each call: it is counted by its outcome, and remembered until it was read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from bookie_server.service import calls
from bookie_server.service.calls import Leftovers
from bookie_server.service.guard.hanging_up import Why
from bookie_server.service.interceptors import MetricsInterceptor
from bookie_server.service.metrics import ServiceMetrics

KINDS = {
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


class Context:
    def __init__(self, code: object) -> None:
        self._code = code

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def code(self) -> object:
        return self._code


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("error", "code", "raised", "counted"),
    [
        (None, None, None, "OK"),
        (None, 0, None, "OK"),
        (ValueError("a bug"), grpc.StatusCode.UNKNOWN, ValueError, "UNKNOWN"),
        (grpc.aio.InternalError("gone"), 13, asyncio.CancelledError, "13"),
        (asyncio.CancelledError(), grpc.StatusCode.CANCELLED, asyncio.CancelledError, "CANCELLED"),
    ],
)
def test_call_is_counted_once_by_its_outcome_and_left_over_when_its_handler_is_done(
    kind: str,
    error: BaseException | None,
    code: object,
    raised: type[BaseException] | None,
    counted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One left over is one too many here: its connection ends, and no other."""
    monkeypatch.setattr(calls, "BOOKIE_LEFTOVERS_AT_ONCE_MAX", 0)
    metrics, ended, running = ServiceMetrics(), list[tuple[str, Why]](), list[int]()
    context = Context(code)

    async def answer(request: object, _context: object) -> object:
        running.append(metrics.calls_in_progress["Name"])
        if error is not None:
            raise error
        return request

    async def main() -> None:
        made: Any = KINDS[kind](cast("Any", answer), cast("Any", "in"), cast("Any", "out"))

        async def continuation(_details: object) -> Any:
            return made

        interceptor = MetricsInterceptor(metrics, Leftovers(lambda *of: ended.append(of)))
        details = cast("grpc.HandlerCallDetails", SimpleNamespace(method="/package.Service/Name"))
        wrapped: Any = await interceptor.intercept_service(continuation, details)
        assert (wrapped.request_deserializer, wrapped.response_serializer) == ("in", "out")
        call = asyncio.ensure_future(getattr(wrapped, kind)("request", context))
        await asyncio.wait([call])
        if raised is asyncio.CancelledError:
            assert call.cancelled()
        elif raised is not None:
            assert isinstance(call.exception(), raised)
        else:
            assert call.result() == "request"

    asyncio.run(main())
    assert metrics.calls == {("Name", counted): 1}
    assert set(running) == {1} and not +metrics.calls_in_progress
    assert ended == [("ipv4:127.0.0.1:1", Why.UNREAD)]


def test_method_that_is_not_there_is_left_to_grpc() -> None:
    async def continuation(_details: object) -> Any:
        return None

    async def main() -> None:
        metrics = ServiceMetrics()
        interceptor = MetricsInterceptor(metrics, Leftovers(lambda *_of: None))
        details = cast("grpc.HandlerCallDetails", SimpleNamespace(method="/package.Service/Name"))
        assert await interceptor.intercept_service(continuation, details) is None
        assert not metrics.calls

    asyncio.run(main())
