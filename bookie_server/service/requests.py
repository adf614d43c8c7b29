"""Receives the one message of a request, and refuses what is none.

It is received here and not by grpc: so it is bounded how many requests are on their way, and for
how long, and bytes that are no message end the call instead of filling the log with a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from bookie_server.service.calls import CallLimits
from bookie_server.service.context import CallContext
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.nonsense import Nonsense
from spark_ledger.limits.bookie import BOOKIE_RECEIVE_S
from spark_ledger.limits.entries import REQUEST_BYTES_MAX

_Request = TypeVar("_Request", bound=Message)
_Result = TypeVar("_Result")


class Requests:
    """Gives handlers their requests. Service thread only."""

    def __init__(self, limits: CallLimits, connections: Connections, nonsense: Nonsense) -> None:
        self._limits = limits
        self._connections = connections
        self._nonsense = nonsense

    def received(
        self, handler: Callable[[_Request, CallContext], Awaitable[_Result]], kind: type[_Request]
    ) -> Callable[[AsyncIterator[bytes], CallContext], Awaitable[_Result]]:
        """The handler over the message of a call. Bytes that are no message end the call with
        INVALID_ARGUMENT."""

        async def handle(_requests: AsyncIterator[bytes], context: CallContext) -> _Result:
            with self._connections.call(context.peer()):
                data = await self._receive(context)
                try:
                    request = kind.FromString(data)
                except DecodeError as error:
                    await self._refuse_nonsense(context, str(error), len(data))
                return await handler(request, context)

        return handle

    async def _receive(self, context: CallContext) -> bytes:
        peer = context.peer()
        try:
            async with asyncio.timeout(BOOKIE_RECEIVE_S):
                with self._limits.receiving(peer):
                    data = await context.read()
        except TimeoutError:
            message = f"no request arrived within {BOOKIE_RECEIVE_S:g} s"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, message)
        if not isinstance(data, bytes):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        size = len(data)
        self._connections.given(peer, size)
        if size > REQUEST_BYTES_MAX:
            del data  # it is not kept for as long as this takes
            message = f"a request of {size} bytes: at most {REQUEST_BYTES_MAX} are allowed"
            await self._refuse_nonsense(context, message, size)
        return data

    async def _refuse_nonsense(self, context: CallContext, error: str, size: int) -> NoReturn:
        """End a call, but not at once: a client that sends such things sends more of them."""
        await asyncio.sleep(self._nonsense.pause_s(size))
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error)
