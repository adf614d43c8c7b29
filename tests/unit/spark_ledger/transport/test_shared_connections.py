"""What all ledgers of a client share on the connection to one bookie: a stream, and calls."""

from __future__ import annotations

import asyncio

from spark_ledger.transport.base import AddResult
from spark_ledger.transport.grpc_aio import GrpcTransport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.spark_ledger.transport.test_grpc_aio import (
    BOOKIE,
    LEDGER,
    Bookies,
    make_run,
    on_loop,
    until,
)


@on_loop
async def test_append_stream_that_ended_is_replaced_on_a_connection_that_works(
    bookies: Bookies,
) -> None:
    """As after an answer that was none, or a fault in what an application does with one."""
    port = await bookies.start(ScriptedBookie())
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    results: list[AddResult] = []

    async def send(entry: int) -> None:
        appender = transport.open_appender(
            BOOKIE, LEDGER, access_key=b"", recovery=False, on_result=results.append
        )
        appender.send(make_run(entry))
        await until(lambda: len(results) > entry)

    for entry in range(3):
        await send(entry)
        stream = transport._connections[BOOKIE].append_stream
        assert stream is not None
        stream.break_off("it ended")
    assert [(result.status, result.last_entry) for result in results] == [
        (BookieStatus.OK, entry) for entry in range(3)
    ]
    await transport.close()


@on_loop
async def test_what_idle_writers_tell_one_bookie_shares_a_call(bookies: Bookies) -> None:
    port = await bookies.start(ScriptedBookie())
    transport = GrpcTransport(lambda _bookie_id: f"127.0.0.1:{port}")
    calls: list[pb.WriteLastConfirmedRequest] = []
    ask = transport._write_last_confirmed

    async def counted(
        bookie_id: BookieId, request: pb.WriteLastConfirmedRequest, timeout_s: float
    ) -> pb.WriteLastConfirmedResponse | BookieStatus:
        calls.append(request)
        return await ask(bookie_id, request, timeout_s)

    transport._write_last_confirmed = counted  # type: ignore[method-assign]
    told = [
        transport.write_last_confirmed(BOOKIE, LedgerId(number), EntryId(0), timeout_s=5)
        for number in range(3)
    ]
    assert await asyncio.gather(*told) == [BookieStatus.OK] * 3
    assert [1 + len(call.more) for call in calls] == [3]
    await transport.close()
