"""Counts every call by method and outcome, whatever the handler does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from bookie_server.service.metrics import ServiceMetrics

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class MetricsInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of all services; see ``ServiceMetrics.calls``."""

    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails],
            Awaitable[grpc.RpcMethodHandler[RequestT, ResponseT] | None],
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[RequestT, ResponseT] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        name = handler_call_details.method.rpartition("/")[2]
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary is not None:
            wrapped = self._counted(name, handler.unary_unary)
            return grpc.unary_unary_rpc_method_handler(wrapped, *coders)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._counted_stream(name, handler.unary_stream), *coders
            )
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                self._counted_stream(name, handler.stream_stream), *coders
            )
        return handler

    def _counted(self, name: str, behaviour: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            self._metrics.calls_in_progress[name] += 1
            try:
                return await behaviour(request, context)
            finally:
                self._finished(name, context)

        return call

    def _counted_stream(self, name: str, behaviour: Any) -> Any:
        """For handlers that write to the context, and for those that are generators."""

        async def call(request: Any, context: Any) -> None:
            self._metrics.calls_in_progress[name] += 1
            try:
                answers = behaviour(request, context)
                if isinstance(answers, AsyncIterator):
                    async for answer in answers:
                        await context.write(answer)
                else:
                    await answers
            finally:
                self._finished(name, context)

        return call

    def _finished(self, name: str, context: Any) -> None:
        self._metrics.calls_in_progress[name] -= 1
        code = context.code()
        text = code.name if isinstance(code, grpc.StatusCode) else str(code or "OK")
        self._metrics.calls[name, text] += 1
