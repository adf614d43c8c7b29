"""The standard health service of gRPC (``grpc.health.v1.Health``), served like the bookie's own.

grpc's servicer holds a lock while it writes to a watcher, so one that does not read kept a bookie
from stopping; and gRPC received its requests before anybody could bound them.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from bookie_server.service.calls import CallLimits, HangsUp, Kind
from bookie_server.service.context import CallContext
from bookie_server.service.guard.hanging_up import Why
from bookie_server.service.requests import Requests
from spark_ledger.limits.bookie import BOOKIE_UNREAD_S
from spark_ledger.wire.codec import SERVICE_NAME

_Response: Final = health_pb2.HealthCheckResponse

_NAME: Final[str] = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_KNOWN: Final = ("", SERVICE_NAME)
"""The bookie as a whole, and its service: they do equally well."""


class Health:
    """Says whether the bookie serves: it does until it stops. Service thread only."""

    def __init__(self, requests: Requests, limits: CallLimits, hang_up: HangsUp) -> None:
        self._requests = requests
        self._limits = limits
        self._hang_up = hang_up
        self._stops = asyncio.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Both methods, for ``grpc.aio.Server.add_generic_rpc_handlers``."""
        request = health_pb2.HealthCheckRequest
        return grpc.method_handlers_generic_handler(
            _NAME,
            {
                "Check": grpc.stream_unary_rpc_method_handler(
                    self._requests.received(self.check, request),
                    None,
                    _Response.SerializeToString,
                ),
                "Watch": grpc.stream_stream_rpc_method_handler(
                    self._requests.received(self.watch, request),
                    None,
                    _Response.SerializeToString,
                ),
            },
        )

    def stop(self) -> None:
        """The bookie serves no more: tell those who watch, and end their calls. Waits for none."""
        self._stops.set()

    async def check(
        self, request: health_pb2.HealthCheckRequest, context: CallContext
    ) -> health_pb2.HealthCheckResponse:
        """How the bookie does now. This waits for nothing, so it needs no bound of its own, and
        many watches refuse no check: whoever is told nothing may start the bookie anew."""
        if request.service not in _KNOWN:
            message = f"no service {request.service[:100]!r} is served here"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return self._answer(request.service)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: CallContext) -> None:
        """How the bookie does now, and that it stops once it does."""
        with self._limits.admitted(Kind.HEALTH, context.peer()) as busy:
            if busy is not None:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, busy.message)
            told = self._answer(request.service)
            await self._tell(told, context)
            await self._stops.wait()
            last = self._answer(request.service)
            if last != told:
                await self._tell(last, context)

    def _answer(self, service: str) -> health_pb2.HealthCheckResponse:
        if service not in _KNOWN:
            return _Response(status=_Response.SERVICE_UNKNOWN)
        stops = self._stops.is_set()
        return _Response(status=_Response.NOT_SERVING if stops else _Response.SERVING)

    async def _tell(self, answer: health_pb2.HealthCheckResponse, context: CallContext) -> None:
        """Write it; the connection of a client that does not read even that ends."""
        try:
            async with asyncio.timeout(BOOKIE_UNREAD_S):
                await context.write(answer)
        except TimeoutError:
            self._hang_up(context.peer(), Why.UNREAD)
            raise asyncio.CancelledError from None
