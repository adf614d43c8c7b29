"""Each kind of call over gRPC whose caller leaves, or whose connection is closed under it.

Who leaves is told that, and nothing else: a call that took a cancellation for a broken connection
would go on with its loop after ``wait_for`` gave it up. And who did not leave is not cancelled.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest

from spark_ledger.errors import BookieUnavailableError, LedgerClosedError
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.cut_off import cut_off, cut_off_at_each_wait

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


def test_read_of_a_bookie_that_is_silent_ends_with_its_patience() -> None:
    """That is no broken connection: whoever reads the error looks for a bookie that hangs."""

    async def main() -> None:
        async with mute() as transport:
            chunks = transport.read(BOOKIE, LEDGER, EntryId(3), EntryId(9), timeout_s=0.05)
            (chunk,) = [each async for each in chunks]
            assert (chunk.status, chunk.run, chunk.entry_id) == (BookieStatus.TIMEOUT, None, 3)
            assert chunk.message == "bookie b1: no answer within 0.05 s"

    asyncio.run(main())


async def append(transport: GrpcTransport) -> BookieStatus:
    transport.open_appender(
        BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=lambda _result: None
    )
    return BookieStatus.OK


@pytest.mark.parametrize("call", [*CALLS, append], ids=lambda call: call.__name__)
def test_closed_transport_refuses_every_call_and_connects_to_nobody(call: Call) -> None:
    """Nobody would close that connection."""

    async def main() -> None:
        async with mute() as transport:
            await transport.close()
            with pytest.raises(LedgerClosedError, match="open a new client"):
                await call(transport)
            assert transport._connections == {}

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


@contextmanager
def used() -> Iterator[tuple[GrpcTransport, list[AddResult], list[asyncio.Future[BookieStatus]]]]:
    """A transport to two mute bookies, each with an append and a telling on its way: the transport,
    what becomes of the appends, and of the tellings."""
    with ExitStack() as listening:
        ports = {}
        for name in ("b1", "b2"):
            server = listening.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports[BookieId(name)] = server.getsockname()[1]
        transport = GrpcTransport(lambda bookie_id: f"127.0.0.1:{ports[bookie_id]}")
        results: list[AddResult] = []
        told = []
        for bookie_id in ports:
            appender = transport.open_appender(
                bookie_id, LEDGER, access_key=b"", recovery=False, on_result=results.append
            )
            appender.send(EntryRun(LEDGER, EntryId(0), None, [100], bytes(100)))
            told.append(
                transport.write_last_confirmed(bookie_id, LEDGER, EntryId(1), timeout_s=PATIENCE_S)
            )
        yield transport, results, told


async def assert_ended(
    results: list[AddResult], told: list[asyncio.Future[BookieStatus]], before: set[object]
) -> None:
    """Within much less time than a connection to a mute host takes to break by itself."""
    done, waiting = await asyncio.wait(told, timeout=1.0)
    assert not waiting, "who tells is told"
    assert {each.result() for each in done} == {BookieStatus.UNAVAILABLE}
    assert sorted(each.bookie_id for each in results) == ["b1", "b2"]
    async with asyncio.timeout(10):
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.01)


def test_close_of_a_transport_that_is_left_at_any_moment_ends_every_connection() -> None:
    """It ended the one that it was at, and the others spoke on until their process ended."""

    async def one(wait: int) -> bool:
        before: set[object] = {*asyncio.all_tasks()}
        with used() as (transport, results, told):
            await asyncio.sleep(0.05)
            was_cut = await cut_off(transport.close(), wait)
            await assert_ended(results, told, before)
            await transport.close()
            return was_cut

    asyncio.run(cut_off_at_each_wait(one))


def test_connection_that_cannot_be_closed_holds_up_no_other() -> None:
    async def main() -> None:
        before: set[object] = {*asyncio.all_tasks()}
        with used() as (transport, results, told):
            await asyncio.sleep(0.05)
            connection = transport._connections[BookieId("b1")]
            close = connection.channel.close

            async def close_and_fail() -> None:
                await close()
                raise OSError("out of memory")

            connection.channel.close = close_and_fail  # type: ignore[method-assign, assignment]
            with pytest.raises(OSError, match="out of memory"):
                await transport.close()
            await assert_ended(results, told, before)

    asyncio.run(main())
