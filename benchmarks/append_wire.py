"""Append streams without gRPC: the client's AppendStream joined to the bookie's AppendSession.

Messages are encoded, decoded and answered as over a connection, so what the service does with an
append can be counted. A queue stands where gRPC would.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn, cast

import grpc
import grpc.aio

from bookie_server.bookie import Bookie
from bookie_server.service.append_gate import AppendGate, AppendShares
from bookie_server.service.append_session import AppendSession
from bookie_server.service.append_turns import AppendTurns
from bookie_server.service.context import CallContext
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.nonsense import Nonsense
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.limits.bookie import BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX
from spark_ledger.transport.append_stream import (
    AppendCall,
    AppendStream,
    NewestMessages,
    StreamAppender,
)
from spark_ledger.transport.base import AddResult
from spark_ledger.transport.memory import MemoryTransport
from spark_ledger.types import BookieId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb


class _Call:
    """Both ends of one Append call: what gRPC gives the client, and in ``service`` the handler."""

    def __init__(self, bookie: Bookie) -> None:
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._session = asyncio.create_task(self._serve(bookie))

    async def _serve(self, bookie: Bookie) -> None:
        session = AppendSession(
            bookie,
            cast("CallContext", _Service(self._requests, self._answers)),
            gate=AppendGate(bookie, BOOKIE_APPEND_BYTES_IN_FLIGHT_MAX),
            shares=AppendShares(),
            turns=AppendTurns(math.inf),  # else a slow machine has more of them
            connections=Connections(),
            nonsense=Nonsense(),
            metrics=ServiceMetrics(),
            refusal=None,
        )
        await session.run()

    async def wait_for_connection(self) -> None:
        """It is there."""

    async def write(self, message: bytes) -> None:
        """The client sends."""
        self._requests.put_nowait(message)

    async def read(self) -> bytes:
        """The client takes an answer."""
        return await self._answers.get()

    def cancel(self) -> None:
        """The client has gone."""
        self._session.cancel()


class _Service:
    """The context of a handler."""

    def __init__(self, requests: asyncio.Queue[bytes], answers: asyncio.Queue[bytes]) -> None:
        self._requests = requests
        self._answers = answers

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> bytes:
        return await self._requests.get()

    async def write(self, response: pb.AppendResponse) -> None:
        self._answers.put_nowait(response.SerializeToString())

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise AssertionError(f"an append stream ended: {code} {details}")


def _open_call(bookie: Bookie) -> AppendCall:
    call: object = _Call(bookie)  # gRPC's class has far more than an append stream uses
    return cast("AppendCall", call)


class WiredTransport(MemoryTransport):
    """Appends go over streams; everything else is as in memory."""

    def __init__(self, bookies: Mapping[BookieId, Bookie]) -> None:
        super().__init__(bookies)
        self._wired = bookies
        self._streams: dict[BookieId, AppendStream] = {}
        self._newest_messages = NewestMessages()

    def open_appender(  # type: ignore[override]  # another class of the same protocol
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> StreamAppender:
        stream = self._streams.get(bookie_id)
        if stream is None:
            stream = self._streams[bookie_id] = AppendStream(
                bookie_id,
                partial(_open_call, self._wired[bookie_id]),
                self._newest_messages,
                connect_timeout_s=1.0,
            )
        return stream.open(ledger_id, access_key=access_key, recovery=recovery, on_result=on_result)

    async def close(self) -> None:
        for stream in self._streams.values():
            await stream.close()
        await super().close()
