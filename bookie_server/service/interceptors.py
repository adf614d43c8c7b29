"""Counts every call by method and outcome, whatever the handler does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import grpc.aio

from bookie_server.service.calls import Leftovers
from bookie_server.service.context import CallContext
from bookie_server.service.metrics import ServiceMetrics

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class MetricsInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of all services; see ``ServiceMetrics.calls``. Service thread only.

    grpc raises InternalError to a handler whose client has gone, and would log its traceback: any
    client could fill the log. The call is ended instead.
    """

    def __init__(self, metrics: ServiceMetrics, leftovers: Leftovers) -> None:
        self._metrics = metrics
        self._leftovers = leftovers

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        name = handler_call_details.method.rpartition("/")[2]
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.stream_unary is not None:
            wrapped = self._counted(name, handler.stream_unary)
            return grpc.stream_unary_rpc_method_handler(wrapped, *coders)
        assert handler.stream_stream is not None, "each handler reads its request itself"
        wrapped = self._counted(name, handler.stream_stream)
        return grpc.stream_stream_rpc_method_handler(wrapped, *coders)

    def _counted(
        self, name: str, behaviour: Callable[..., object]
    ) -> Callable[[object, CallContext], Awaitable[object]]:
        async def call(request: object, context: CallContext) -> object:
            self._metrics.calls_in_progress[name] += 1
            try:
                answer = behaviour(request, context)
                assert isinstance(answer, Awaitable), "handlers of an asyncio server are coroutines"
                return await answer
            except grpc.aio.InternalError:
                raise asyncio.CancelledError from None
            finally:
                self._finished(name, context)

        return call

    def _finished(self, name: str, context: CallContext) -> None:
        self._leftovers.handler_ended(context.peer())
        self._metrics.calls_in_progress[name] -= 1
        code = context.code()
        text = code.name if isinstance(code, grpc.StatusCode) else str(code or "OK")
        self._metrics.calls[name, text] += 1
