"""Each kind of call over gRPC whose caller leaves, or whose connection is closed under it.

Who leaves is told that, and nothing else: a call that took a cancellation for a broken connection
would go on with its loop after ``wait_for`` gave it up. And who did not leave is not cancelled.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId

BOOKIE = BookieId("b1")
LEDGER = LedgerId(1)
PATIENCE_S = 30.0


async def read(transport: GrpcTransport) -> BookieStatus:
    chunks = transport.read(BOOKIE, LEDGER, EntryId(0), EntryId(9), timeout_s=PATIENCE_S)
    (chunk,) = [each async for each in chunks]
    return chunk.status


async def last_confirmed(transport: GrpcTransport) -> BookieStatus:
    return (await transport.read_last_confirmed(BOOKIE, LEDGER, timeout_s=PATIENCE_S)).status


async def confirm(transport: GrpcTransport) -> BookieStatus:
    return await transport.write_last_confirmed(BOOKIE, LEDGER, EntryId(1), timeout_s=PATIENCE_S)


async def entries(transport: GrpcTransport) -> BookieStatus:
    return (await transport.list_entries(BOOKIE, LEDGER, timeout_s=PATIENCE_S))[0]


async def ledgers(transport: GrpcTransport) -> BookieStatus:
    return (await transport.list_ledgers(BOOKIE, LEDGER, timeout_s=PATIENCE_S))[0]


async def describe(transport: GrpcTransport) -> BookieStatus:
    with pytest.raises(BookieUnavailableError):
        await transport.describe(BOOKIE, timeout_s=PATIENCE_S)
    return BookieStatus.UNAVAILABLE


Call = Callable[[GrpcTransport], Awaitable[BookieStatus]]
CALLS: list[Call] = [read, last_confirmed, confirm, entries, ledgers, describe]
each_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


@asynccontextmanager
async def mute() -> AsyncIterator[GrpcTransport]:
    """A transport to a host that takes connections and says nothing: its process stands still."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
        try:
            yield transport
        finally:
            await transport.close()


@each_call
def test_call_whose_caller_leaves_is_cancelled(call: Call) -> None:
    async def main() -> None:
        async with mute() as transport:
            task = asyncio.ensure_future(call(transport))
            await asyncio.sleep(0.05)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()

    asyncio.run(main())


@each_call
def test_call_that_is_cut_by_a_close_is_not_cancelled(call: Call) -> None:
    async def main() -> None:
        async with mute() as transport:
            task = asyncio.ensure_future(call(transport))
            await asyncio.sleep(0.05)
            await transport.close()
            assert await asyncio.wait_for(task, 10) is BookieStatus.UNAVAILABLE

    asyncio.run(main())


def test_connection_that_is_given_up_fails_what_is_on_it() -> None:
    """As when its bookie is registered elsewhere: reads, and appends that have no answer."""

    async def main() -> None:
        async with mute() as transport:
            results: list[AddResult] = []
            reading = asyncio.ensure_future(read(transport))
            appender = transport.open_appender(
                BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
            )
            frames = bytes(100)
            appender.send(EntryRun(LEDGER, EntryId(0), None, [len(frames)], frames))
            await asyncio.sleep(0.05)
            async with mute() as other:
                transport._resolve = other._resolve
                moved = asyncio.ensure_future(describe(transport))
                assert await asyncio.wait_for(reading, 10) is BookieStatus.UNAVAILABLE
                async with asyncio.timeout(10):
                    while not results:
                        await asyncio.sleep(0.01)
                assert [(r.status, r.last_entry) for r in results] == [
                    (BookieStatus.UNAVAILABLE, 0)
                ]
                await transport.close()
                await moved

    asyncio.run(main())
