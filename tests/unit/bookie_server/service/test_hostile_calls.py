"""Clients that flood a bookie with calls, leave halves of them, or do not read what they asked."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from bookie_server.service import grpc_service, requests
from bookie_server.service.calls import BOUNDS, Kind
from bookie_server.service.guard import client_watch
from spark_ledger.limits.bookie import BOOKIE_MALFORMED_ADDS_MAX
from spark_ledger.limits.entries import APPEND_MESSAGE_ADDS_MAX
from spark_ledger.types import LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from tests.hostile.http2 import RawConnection, message
from tests.unit.bookie_server.service.test_grpc_service import BOOKIE, HERE, Fixture, on_loop

READ = pb.ReadRequest(ledger_id=1, first_entry=0, last_entry=0).SerializeToString()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def connect(f: Fixture, window: int = 65_535) -> RawConnection:
    return await RawConnection.open(f.address, window=window)


async def serves_the_others(f: Fixture) -> None:
    """Each kind of honest call but tail requests."""
    await f.store(0, 1)
    fence = pb.ReadLastConfirmedRequest(ledger_id=2, fence=True)
    assert (await f.stub.ReadLastConfirmed(fence, timeout=5, metadata=HERE)).fenced
    reads = [a async for a in f.stub.Read(pb.ReadRequest(ledger_id=1), timeout=5, metadata=HERE)]
    assert [answer.status for answer in reads] == [pb.OK]
    asked = pb.ReadLastConfirmedRequest(ledger_id=1)
    assert (await f.stub.ReadLastConfirmed(asked, timeout=5, metadata=HERE)).status == pb.OK
    described = await f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=HERE)
    assert described.status == pb.OK


def test_flood_of_tail_requests_refuses_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BOUNDS, Kind.POLL, 8)

    @on_loop
    async def run(f: Fixture) -> None:
        poll = pb.ReadLastConfirmedRequest(ledger_id=1, wait_above=50, wait_ms=20_000)
        flood = [await connect(f) for _number in range(8)]
        for _number in range(10):
            for connection in flood:
                await connection.ask("ReadLastConfirmed", BOOKIE, poll.SerializeToString())
        await until(lambda: f.metrics.long_polls == 8)
        answer = await f.stub.ReadLastConfirmed(poll, timeout=30, metadata=HERE)
        assert answer.status == pb.TOO_MANY_REQUESTS and "ask again later" in answer.message
        await serves_the_others(f)
        for connection in flood:
            await connection.close()
        await until(lambda: not f.metrics.long_polls)

    run()


@pytest.mark.parametrize("kind", [Kind.READ, Kind.FENCE, Kind.LIST, Kind.DESCRIBE, Kind.CONFIRM])
def test_call_above_the_bound_of_its_kind_is_answered_at_once(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BOUNDS, kind, 0)

    @on_loop
    async def run(f: Fixture) -> None:
        f.bookie.ledgers.clear()
        asked: dict[Kind, Callable[[], Any]] = {
            Kind.READ: lambda: f.stub.Read(pb.ReadRequest(), timeout=5, metadata=HERE),
            Kind.FENCE: lambda: f.stub.Read(pb.ReadRequest(fence=True), timeout=5, metadata=HERE),
            Kind.LIST: lambda: f.stub.ListEntries(
                pb.ListEntriesRequest(), timeout=5, metadata=HERE
            ),
            Kind.DESCRIBE: lambda: f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=HERE),
            Kind.CONFIRM: lambda: f.stub.WriteLastConfirmed(
                pb.WriteLastConfirmedRequest(), timeout=5, metadata=HERE
            ),
        }
        call = asked[kind]()
        answer = await call if kind in (Kind.DESCRIBE, Kind.CONFIRM) else await call.read()
        assert answer.status == pb.TOO_MANY_REQUESTS
        assert f.bookie.ledgers == {}, "nothing was decided"

    run()


def test_append_streams_above_their_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BOUNDS, Kind.APPEND, 1)

    @on_loop
    async def run(f: Fixture) -> None:
        first = f.stub.Append(metadata=HERE)
        await until(lambda: f.metrics.append_streams == 1)
        second = f.stub.Append(metadata=HERE)
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        await until(lambda: f.metrics.append_streams == 0)
        await f.store(0, 1)

    run()


def test_answers_that_are_not_read_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_service, "BOOKIE_ANSWER_BYTES_MAX", 4 * 1024 * 1024)
    monkeypatch.setattr(grpc_service, "BOOKIE_UNREAD_GRACE_S", 0.1)

    @on_loop
    async def run(f: Fixture) -> None:
        await f.store(0, 1, size=1_000_000)
        hostile = [await connect(f, window=1024) for _number in range(10)]
        streams = [await connection.ask("Read", BOOKIE, READ) for connection in hostile]
        await until(lambda: f.service._answers.bytes_held > 2_000_000)
        await serves_the_others(f)
        assert f.service._answers.bytes_held <= 6 * 1024 * 1024
        await until(lambda: sum(c.over(s) for s, c in zip(streams, hostile, strict=True)) > 5)
        for connection in hostile:
            await connection.close()
        await until(lambda: not f.service._answers.bytes_held)

    run()


def test_answer_that_is_never_read_is_cut_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_service, "BOOKIE_UNREAD_S", 0.1)

    @on_loop
    async def run(f: Fixture) -> None:
        await f.store(0, 1, size=1_000_000)
        hostile = await connect(f, window=1024)
        stream = await hostile.ask("Read", BOOKIE, READ)
        await until(lambda: hostile.over(stream) and not f.service._answers.bytes_held)
        await until(lambda: f.metrics.connections_ended == {"unread": 1})
        await hostile.close()

    run()


@on_loop
async def test_calls_that_keep_the_bookie_waiting_are_ended_when_memory_is_short(
    f: Fixture,
) -> None:
    f.service.clients.stop()
    await f.store(0, 1, size=1_000_000)
    half = message(bytes(2_000_000), claimed=16_000_000)
    hostile = [await connect(f, window=1024) for _number in range(3)]
    streams = [await connection.call("Append", BOOKIE) for connection in hostile[:1]]
    streams.append(await hostile[1].call("Describe", BOOKIE))
    for connection, stream in zip(hostile, streams, strict=False):
        await connection.send(stream, half)
    streams.append(await hostile[2].ask("Read", BOOKIE, READ))
    working = f.stub.Append(metadata=HERE)
    f.bookie.hold = True
    run = pb.EntryRun(ledger_id=1, first_entry=9, sizes=[50], frames=bytes(50))
    await working.write(pb.AppendRequest(adds=[pb.AddRun(tag=1, run=run)]))
    await until(lambda: f.service._answers.bytes_held > 0 and len(f.bookie.adds) == 2)
    idle = f.stub.Append(metadata=HERE)
    await until(lambda: f.metrics.append_streams == 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc_service, "BOOKIE_UNREAD_GRACE_S", 0.0)
        assert await f.service.relieve() == 3
    await until(lambda: all(connection.closed for connection in hostile))
    await until(lambda: f.metrics.connections_ended == {"unfinished": 2, "unread": 1})
    f.bookie.release()
    (result,) = (await working.read()).results
    assert result.last_entry == 9, "a client that waits for its answer is not cut"
    assert not idle.done(), "nor one that has nothing to send"
    for connection in hostile:
        await connection.close()


def test_request_that_does_not_arrive_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BOOKIE_RECEIVE_S", 0.1)

    @on_loop
    async def run(f: Fixture) -> None:
        hostile = await connect(f)
        stream = await hostile.call("Read", BOOKIE)
        await hostile.send(stream, message(READ, claimed=1000))
        await until(lambda: stream in hostile.ended)
        await until(lambda: f.metrics.calls["Read", "DEADLINE_EXCEEDED"] == 1)
        await hostile.close()

    run()


@pytest.mark.parametrize("method", ["Read", "ReadLastConfirmed", "WriteLastConfirmed", "Describe"])
def test_long_request_is_refused_before_it_is_decoded(method: str) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        unknown = b"\x7a" + b"\xff\xff\x03" + bytes(65_535)  # a field of a newer version
        call = f.channel.unary_unary(f"/spark_ledger.v1.Bookie/{method}")
        with pytest.raises(grpc.aio.AioRpcError, match="at most 65536") as caught:
            await call(unknown + unknown, timeout=5, metadata=HERE)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run()


@on_loop
async def test_describe_does_not_wait_behind_reads(f: Fixture) -> None:
    goes_on = threading.Event()
    pool = f.service.reads._lanes[0].pool
    for _number in range(pool._max_workers + 5):
        pool.submit(goes_on.wait)
    try:
        described = await f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=HERE)
        assert described.status == pb.OK
    finally:
        goes_on.set()


@on_loop
async def test_stream_of_malformed_adds_is_ended(f: Fixture) -> None:
    """Each is answered, but not two million of them."""
    call = f.stub.Append(metadata=HERE)
    bad = [pb.AddRun(tag=tag) for tag in range(1, BOOKIE_MALFORMED_ADDS_MAX + 2)]
    await call.write(pb.AppendRequest(adds=bad[:-1]))
    answered = 0
    while answered < BOOKIE_MALFORMED_ADDS_MAX:
        answered += len((await call.read()).results)
    await call.write(pb.AppendRequest(adds=bad[-1:]))
    with pytest.raises(grpc.aio.AioRpcError, match="17 adds of this stream were malformed"):
        while await call.read() is not grpc.aio.EOF:
            pass
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    call = f.stub.Append(metadata=HERE)
    await call.write(pb.AppendRequest(adds=[pb.AddRun()] * (APPEND_MESSAGE_ADDS_MAX + 1)))
    with pytest.raises(grpc.aio.AioRpcError, match="more than 4096 adds"):
        while await call.read() is not grpc.aio.EOF:
            pass


@on_loop
async def test_long_message_lets_other_clients_have_their_turn(f: Fixture) -> None:
    run = pb.EntryRun(ledger_id=1, sizes=[50], frames=bytes(50))
    adds = [pb.AddRun(tag=tag, run=run) for tag in range(APPEND_MESSAGE_ADDS_MAX)]
    lags: list[float] = []

    async def measure() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0)
            lags.append(loop.time() - before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bookie_server.service.append_session.APPEND_TURN_S", 0.001)
        call = f.stub.Append(metadata=HERE)
        await call.write(pb.AppendRequest(adds=[]))
        await until(lambda: f.metrics.append_streams == 1)
        measuring = asyncio.ensure_future(measure())
        await call.write(pb.AppendRequest(adds=adds))
        last = -1
        while last < APPEND_MESSAGE_ADDS_MAX - 1:
            last = max(last, *(result.tag for result in (await call.read()).results))
        measuring.cancel()
    assert len(f.bookie.adds) == APPEND_MESSAGE_ADDS_MAX
    turns = [lag for lag in lags if lag > 0.001]
    assert len(turns) > 5, "the message was taken in one turn"


@on_loop
async def test_clients_that_leave_write_nothing_into_the_log(f: Fixture) -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        await f.store(0, 1, size=1_000_000)
        for method in ("Read", "Append"):
            hostile = await connect(f, window=1024)
            if method == "Read":
                await hostile.ask("Read", BOOKIE, READ)
                await until(lambda: f.service._answers.bytes_held > 0)
            else:
                await hostile.call("Append", BOOKIE)
                await until(lambda: f.metrics.append_streams == 1)
            await hostile.close()
            await until(lambda: not f.service._answers.bytes_held + f.metrics.append_streams)
        poll = pb.ReadLastConfirmedRequest(ledger_id=1, wait_above=50, wait_ms=20_000)
        hostile = await connect(f)
        await hostile.ask("ReadLastConfirmed", BOOKIE, poll.SerializeToString())
        await until(lambda: f.metrics.long_polls == 1)
        await hostile.close()
        await until(lambda: not f.metrics.long_polls)
    finally:
        logging.getLogger().removeHandler(handler)
    assert [text for text in records if "Traceback" in text or "ERROR" in text.upper()] == []
    assert LedgerId(1) in f.bookie.ledgers


def test_halves_of_appends_are_ended_once_all_together_are_too_many() -> None:
    """The rest never comes. A client that waits for its answer, or has nothing to send, stays."""

    @on_loop
    async def run(f: Fixture) -> None:
        working, idle = f.stub.Append(metadata=HERE), f.stub.Append(metadata=HERE)
        await until(lambda: f.metrics.append_streams == 2)
        half = message(bytes(2_000_000), claimed=16_000_000)
        hostile = [await connect(f) for _number in range(5)]
        for connection in hostile:
            await connection.send(await connection.call("Append", BOOKIE), half)
        await until(lambda: sum(connection.closed for connection in hostile) == 3)
        await until(lambda: f.metrics.connections_ended == {"unfinished": 3})
        await f.store(0, 1)
        await asyncio.sleep(0.1)
        assert f.metrics.connections_ended == {"unfinished": 3}, "the others have room"
        assert not (working.done() or idle.done())
        for connection in hostile:
            await connection.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_watch, "BOOKIE_STALLED_MESSAGE_S", 0.05)
        patch.setattr(client_watch, "BOOKIE_UNFINISHED_BYTES_MAX", 5_000_000)
        run()


@on_loop
async def test_request_that_is_far_too_long_is_ended_before_it_is_there(f: Fixture) -> None:
    hostile = await connect(f)
    stream = await hostile.call("Describe", BOOKIE)
    await hostile.send(stream, message(bytes(2_000_000), claimed=16_000_000))
    await until(lambda: hostile.closed)
    await hostile.close()
    await until(lambda: f.metrics.connections_ended == {"long": 1})
    assert await f.service.relieve() == 1, "its memory is there to be given back"
    assert await f.service.relieve() == 0
    await serves_the_others(f)


def test_request_of_a_connection_that_is_gone_is_not_ended_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC tells a while later that a connection has ended: it was counted when it was ended."""
    monkeypatch.setattr(grpc_service, "BOOKIE_RECEIVE_SHORT_S", 0.0)

    @on_loop
    async def run(f: Fixture) -> None:
        with f.service._limits.receiving("ipv4:127.0.0.1:1"):
            assert await f.service.relieve() == 0
        silent = await connect(f)
        await silent.call("Describe", BOOKIE)
        await until(lambda: bool(f.service._limits.receiving_for(0.0)))
        assert await f.service.relieve() == 1
        await until(lambda: silent.closed)
        await silent.close()

    run()


def test_writer_of_many_small_messages_is_not_to_blame_when_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What gRPC sends around its messages added up: after 27,000 of them it was hung up on."""
    monkeypatch.setattr(grpc_service, "BOOKIE_HELD_BYTES_MAX", 4_096)

    @on_loop
    async def run(f: Fixture) -> None:
        call = f.stub.Append(metadata=HERE)
        for entry in range(400):
            run = pb.EntryRun(ledger_id=1, first_entry=entry, sizes=[40], frames=bytes(40))
            await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=9, run=run)]))
            await call.read()
        assert await f.service.relieve() == 0
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK

    run()


@on_loop
async def test_call_with_headers_far_larger_than_ours_is_refused_before_it_is_looked_at(
    f: Fixture,
) -> None:
    """Each call that waits keeps its headers."""
    for size, code in ((1_000, grpc.StatusCode.OK), (5_000, grpc.StatusCode.RESOURCE_EXHAUSTED)):
        headers = (*HERE, ("x-padding", "y" * size))
        call = f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=headers)
        assert await call.code() is code
    await serves_the_others(f)


def test_longest_idle_connections_give_way_to_new_ones() -> None:
    async def run(f: Fixture) -> None:
        await f.store(0, 1)  # the connection of an honest client
        poll = pb.ReadLastConfirmedRequest(ledger_id=1, wait_above=50, wait_ms=20_000)
        waiting = await connect(f)
        await waiting.ask("ReadLastConfirmed", BOOKIE, poll.SerializeToString())
        await until(lambda: f.metrics.long_polls == 1)
        hostile = [await connect(f) for _number in range(18)]
        while f.metrics.long_polls < 2:  # some come when there is no room yet
            hostile.append(await connect(f))
            await hostile[-1].ask("ReadLastConfirmed", BOOKIE, poll.SerializeToString())
            await until(lambda: hostile[-1].closed or f.metrics.long_polls > 1)
        assert not waiting.closed, "nor is a client ended that waits for an answer"
        assert set(f.metrics.connections_ended) == {"idle"}
        asked = {"timeout": 10, "metadata": HERE, "wait_for_ready": True}
        assert (await f.stub.Describe(pb.DescribeRequest(), **asked)).status == pb.OK
        for connection in (waiting, *hostile):
            await connection.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_watch, "BOOKIE_IDLE_S", 0.02)
        patch.setattr(client_watch, "BOOKIE_CONNECTIONS_LOOK_S", 0.02)
        on_loop(run, connections_max=18)()
