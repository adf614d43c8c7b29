"""The servicer behind a real gRPC server, asked by a client that does not behave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie_server.service.grpc_server import GrpcServer
from bookie_server.service.grpc_service import BookieService, Description
from bookie_server.service.guard.nonsense import Nonsense
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits.bookie import BOOKIE_CONNECTIONS_MAX
from spark_ledger.limits.entries import (
    CONFIRMATIONS_PER_MESSAGE,
    MESSAGE_BYTES_MAX,
    REQUEST_BYTES_MAX,
)
from spark_ledger.types import BookieId, BookieStatus, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from spark_ledger.wire import bookie_pb2_grpc
from spark_ledger.wire.options import transfer_options
from tests.contracts.scripted_bookie import ScriptedBookie

BOOKIE = BookieId("b1")
HERE = (("bookie-id", BOOKIE),)


class Fixture:
    """A bookie's server, and a stub that protobuf generated."""

    def __init__(self, connections_max: int = BOOKIE_CONNECTIONS_MAX) -> None:
        self.bookie = ScriptedBookie()
        self.metrics = ServiceMetrics()
        self.service = BookieService(
            self.bookie,
            BOOKIE,
            describe=lambda: Description("c", "1.2", "writable", 3, 4, 5, 6, 7.5),
            metrics=self.metrics,
        )
        self.server = GrpcServer(self.service, self.metrics, connections_max=connections_max)
        self.address = ""
        self.channel: Any = None
        self.stub: Any = None

    async def start(self) -> None:
        port = await self.server.start("127.0.0.1", 0)
        self.address = f"127.0.0.1:{port}"
        options = [
            *((k, v) for k, v in transfer_options() if k != "grpc.max_send_message_length"),
            ("grpc.max_send_message_length", -1),
        ]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self.stub = bookie_pb2_grpc.BookieStub(self.channel)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(0.0)
        self.service.close()

    async def store(self, first: int, count: int, *, size: int = 50) -> None:
        call = self.stub.Append(metadata=HERE)
        run = pb.EntryRun(
            ledger_id=1, first_entry=first, sizes=[size] * count, frames=bytes(size * count)
        )
        await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=9, run=run)]))
        response = await call.read()
        assert [(r.tag, r.last_entry, r.status) for r in response.results] == [
            (9, first + count - 1, pb.OK)
        ]
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


def on_loop(
    test: Callable[[Fixture], Awaitable[None]], *, connections_max: int = BOOKIE_CONNECTIONS_MAX
) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            fixture = Fixture(connections_max)
            await fixture.start()
            try:
                async with asyncio.timeout(20):
                    await test(fixture)
            finally:
                await fixture.stop()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def read(f: Fixture, request: pb.ReadRequest) -> list[Any]:
    return [r async for r in f.stub.Read(request, timeout=5, metadata=HERE)]


@on_loop
async def test_the_generated_client_understands_the_service(f: Fixture) -> None:
    await f.store(0, 3)
    (response,) = await read(f, pb.ReadRequest(ledger_id=1, first_entry=0, last_entry=2))
    assert (response.run.first_entry, list(response.run.sizes)) == (0, [50] * 3)
    description = await f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=HERE)
    assert (description.bookie_id, description.version, description.uptime_s) == ("b1", "1.2", 7.5)


@on_loop
async def test_idle_writers_that_share_a_message_are_answered_in_order(f: Fixture) -> None:
    await f.store(0, 3)
    request = pb.WriteLastConfirmedRequest(
        ledger_id=1, last_add_confirmed=2, more=[pb.LedgerConfirmed(ledger_id=-1)]
    )
    answer = await f.stub.WriteLastConfirmed(request, timeout=5, metadata=HERE)
    assert (answer.status, [*answer.more]) == (pb.BAD_REQUEST, [pb.BAD_REQUEST])
    assert f.bookie.ledgers[LedgerId(1)].last_add_confirmed < 2, "nothing of it was done"
    request.more[0].ledger_id = 1
    request.more[0].access_key = b"another"
    answer = await f.stub.WriteLastConfirmed(request, timeout=5, metadata=HERE)
    assert (answer.status, [*answer.more]) == (pb.OK, [pb.UNAUTHORIZED])
    assert f.bookie.ledgers[LedgerId(1)].last_add_confirmed == 2
    del request.more[:]
    others = CONFIRMATIONS_PER_MESSAGE - 1
    request.more.extend(pb.LedgerConfirmed(ledger_id=1) for _ in range(others))
    answer = await f.stub.WriteLastConfirmed(request, timeout=5, metadata=HERE)
    assert (answer.status, [*answer.more]) == (pb.OK, [pb.OK] * others), "so many are allowed"
    request.more.extend([pb.LedgerConfirmed(ledger_id=1)])
    answer = await f.stub.WriteLastConfirmed(request, timeout=5, metadata=HERE)
    assert answer.status == pb.BAD_REQUEST and "at most" in answer.message


@on_loop
async def test_calls_without_a_deadline_are_refused(f: Fixture) -> None:
    await f.store(0, 1)
    (response,) = [
        r
        async for r in f.stub.Read(
            pb.ReadRequest(ledger_id=1, first_entry=0, last_entry=0), metadata=HERE
        )
    ]
    assert response.status == pb.BAD_REQUEST and "deadline" in response.message
    request = pb.ReadLastConfirmedRequest(ledger_id=1, fence=True)
    assert (await f.stub.ReadLastConfirmed(request, metadata=HERE)).status == pb.BAD_REQUEST
    assert not f.bookie.ledgers[LedgerId(1)].fenced
    write = pb.WriteLastConfirmedRequest(ledger_id=1)
    assert (await f.stub.WriteLastConfirmed(write, metadata=HERE)).status == pb.BAD_REQUEST
    listed = f.stub.ListEntries(pb.ListEntriesRequest(ledger_id=1), metadata=HERE)
    assert [r.status async for r in listed] == [pb.BAD_REQUEST]
    described = await f.stub.Describe(pb.DescribeRequest(), metadata=HERE)
    assert described.status == pb.BAD_REQUEST


@pytest.mark.parametrize("metadata", [(), (("bookie-id", "b2"),)], ids=["none", "another"])
def test_calls_meant_for_another_bookie_are_refused(metadata: Any) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        request = pb.ReadLastConfirmedRequest(ledger_id=1, fence=True)
        answer = await f.stub.ReadLastConfirmed(request, timeout=5, metadata=metadata)
        asked = "bookie b2 was asked" if metadata else "no bookie was named"
        assert answer.status == pb.WRONG_BOOKIE
        assert answer.message == f"this is bookie b1; {asked}"
        assert (answer.last_add_confirmed, answer.last_entry) == (-1, -1)
        call = f.stub.Append(metadata=metadata)
        frames = pb.EntryRun(ledger_id=1, sizes=[50], frames=bytes(50))
        await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=4, run=frames)]))
        (result,) = (await call.read()).results
        assert (result.tag, result.status) == (4, pb.WRONG_BOOKIE)
        call.cancel()
        assert f.bookie.ledgers == {}

    run()


@pytest.mark.parametrize(
    "request_",
    [
        pb.ReadRequest(ledger_id=-1),
        pb.ReadRequest(ledger_id=1, first_entry=-1),
        pb.ReadRequest(ledger_id=1, first_entry=5, last_entry=4),
        pb.ReadRequest(ledger_id=1, last_entry=4, stride=-2),
        pb.ReadRequest(ledger_id=1, first_entry=5, last_entry=4, fence=True),
    ],
)
def test_malformed_read_requests_are_refused(request_: pb.ReadRequest) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        (response,) = await read(f, request_)
        assert response.status == pb.BAD_REQUEST and response.message
        assert f.bookie.ledgers == {}, "nothing was fenced"

    run()


@on_loop
async def test_a_message_over_the_limit_is_refused_and_the_connection_lives(f: Fixture) -> None:
    call = f.stub.Append(metadata=HERE)
    size = MESSAGE_BYTES_MAX + 1
    run = pb.EntryRun(ledger_id=1, sizes=[size], frames=bytes(size))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=1, run=run)]))
        await call.read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await f.store(0, 1)


@on_loop
async def test_a_stream_of_garbage_ends_and_the_connection_lives(f: Fixture) -> None:
    raw = f.channel.stream_stream("/spark_ledger.v1.Bookie/Append")
    call = raw(metadata=HERE)
    await call.write(b"\xff\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await f.store(0, 1)


@on_loop
async def test_many_small_runs_are_read_as_one_message(f: Fixture) -> None:
    await f.store(0, 100)
    await f.store(100, 100)
    request = pb.ReadRequest(ledger_id=1, first_entry=0, last_entry=199)
    (response,) = await read(f, request)
    assert (len(response.run.sizes), len(response.run.entry_ids)) == (200, 0)
    request.stride = 50
    (response,) = await read(f, request)
    assert list(response.run.entry_ids) == [0, 50, 100, 150]


@on_loop
async def test_health_and_metrics_follow_the_calls(f: Fixture) -> None:
    health = health_pb2_grpc.HealthStub(f.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(service="spark_ledger.v1.Bookie"))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await f.store(0, 4)
    await read(f, pb.ReadRequest(ledger_id=1, first_entry=0, last_entry=3))
    await read(f, pb.ReadRequest(ledger_id=1, first_entry=0, last_entry=9))
    await f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=HERE)
    assert f.metrics.entries_added == 4 and f.metrics.bytes_added == 200
    assert f.metrics.reads == {BookieStatus.OK: 1, BookieStatus.NO_SUCH_ENTRY: 1}
    assert f.metrics.bytes_read == 400
    while any(f.metrics.calls_in_progress.values()):
        await asyncio.sleep(0.005)
    assert f.metrics.calls["Append", "OK"] == 1
    assert f.metrics.calls["Read", "OK"] == 2
    assert f.metrics.calls["Describe", "OK"] == 1


@on_loop
async def test_streams_fences_and_times_are_counted(f: Fixture) -> None:
    await f.store(0, 1)
    call = f.stub.Append(metadata=HERE)
    run = pb.EntryRun(ledger_id=1, first_entry=1, sizes=[50], frames=bytes(50))
    await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=1, run=run)]))
    await call.read()
    assert f.metrics.append_streams == 1
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    while f.metrics.append_streams:
        await asyncio.sleep(0.005)
    for _again in range(2):
        (response,) = await read(f, pb.ReadRequest(ledger_id=1, last_entry=1, fence=True))
        assert len(response.run.sizes) == 2
    assert f.metrics.fences == {BookieStatus.OK: 2}
    assert sum(f.metrics.read_latency.counts) == 2
    assert 0 < f.metrics.read_latency.total < 40, "seconds that two reads took"


@on_loop
async def test_drain_ends_streams_and_answers_long_polls(f: Fixture) -> None:
    await f.store(0, 1)
    call = f.stub.Append(metadata=HERE)
    f.bookie.hold = True
    run = pb.EntryRun(ledger_id=1, first_entry=1, sizes=[50], frames=bytes(50))
    await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=1, run=run)]))
    request = pb.ReadLastConfirmedRequest(ledger_id=1, wait_above=5, wait_ms=30_000)
    poll = asyncio.ensure_future(f.stub.ReadLastConfirmed(request, timeout=40, metadata=HERE))
    while f.bookie.append_bytes_in_flight == 0 or f.metrics.long_polls == 0:
        await asyncio.sleep(0.005)
    f.service.drain()
    assert (await poll).status == pb.OK
    f.bookie.release()
    (result,) = (await call.read()).results
    assert (result.tag, result.last_entry, result.status) == (1, 1, pb.OK)
    assert await call.read() is grpc.aio.EOF


@on_loop
async def test_calls_that_come_during_a_drain_end_as_those_that_were_there(f: Fixture) -> None:
    """Their clients were told of the bookie a moment ago, and it waits for each stream."""
    await f.store(0, 1)
    f.service.drain()
    call = f.stub.Append(metadata=HERE)
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    request = pb.ReadLastConfirmedRequest(ledger_id=1, wait_above=5, wait_ms=30_000)
    assert (await f.stub.ReadLastConfirmed(request, timeout=40, metadata=HERE)).status == pb.OK
    assert f.metrics.append_streams == f.metrics.long_polls == 0


@pytest.mark.parametrize(
    "error", [CorruptionError("index /l is damaged"), OSError("disk /l is gone")]
)
@pytest.mark.parametrize("method", ["entry_page", "held_ledgers"])
def test_list_that_cannot_be_read_answers_io_error(
    method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise error

    monkeypatch.setattr(ScriptedBookie, method, unreadable)

    async def ask(f: Fixture) -> None:
        request = pb.ListEntriesRequest(ledger_id=1, ledgers=method == "held_ledgers")
        call = f.stub.ListEntries(request, timeout=5, metadata=HERE)
        (answer,) = [response async for response in call]
        assert (answer.status, answer.message) == (pb.IO_ERROR, str(error))
        assert await call.code() is grpc.StatusCode.OK, "statuses travel inside messages"

    on_loop(ask)()


@pytest.mark.parametrize(
    "error", [CorruptionError("index /l is damaged"), OSError("disk /l is gone")]
)
def test_describe_with_unreadable_storage_answers_io_error(error: Exception) -> None:
    def unreadable() -> Description:
        raise error

    async def ask(f: Fixture) -> None:
        f.service._describe = unreadable
        answer = await f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=HERE)
        assert (answer.status, answer.message) == (pb.IO_ERROR, str(error))
        assert answer.bookie_id == BOOKIE

    on_loop(ask)()


def test_an_address_in_use_is_named() -> None:
    async def main() -> None:
        first, second = Fixture(), Fixture()
        port = await first.server.start("127.0.0.1", 0)
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
            await second.server.start("127.0.0.1", port)
        for fixture in (first, second):
            await fixture.server.stop(0.0)
            fixture.service.close()

    asyncio.run(main())


def test_host_that_does_not_exist_is_named_as_such() -> None:
    async def main() -> None:
        fixture = Fixture()
        with pytest.raises(ConfigurationError, match=r"nowhere\.invalid.*listen\.host") as refused:
            await fixture.server.start("nowhere.invalid", 0)
        assert "in use" not in str(refused.value)
        fixture.service.close()

    asyncio.run(main())


@on_loop
async def test_bytes_that_are_no_message_are_refused_by_name(f: Fixture) -> None:
    """Not as UNKNOWN, which is what grpc makes of an exception, and logs with a traceback."""
    service = "/spark_ledger.v1.Bookie/"
    for method in ("ReadLastConfirmed", "WriteLastConfirmed", "Describe"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await f.channel.unary_unary(service + method)(b"\xff", timeout=5, metadata=HERE)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for method in ("Read", "ListEntries"):
        call = f.channel.unary_stream(service + method)(b"\xff", timeout=5, metadata=HERE)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=HERE)).ledgers == 3


@pytest.mark.parametrize("ends", ["answered", "too long", "no message", "of another bookie"])
def test_bytes_of_requests_do_not_count_as_held_by_grpc_however_they_end(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever asks often enough is cut when memory is short."""
    monkeypatch.setattr(Nonsense, "pause_s", lambda *_of: 0.0)
    key = bytes(2 * REQUEST_BYTES_MAX if ends == "too long" else 3000)
    request = pb.ReadLastConfirmedRequest(ledger_id=1, access_key=key).SerializeToString()
    sent = b"\xff" * 3000 if ends == "no message" else request
    metadata = (("bookie-id", "b2"),) if ends == "of another bookie" else HERE

    @on_loop
    async def ask(f: Fixture) -> None:
        call = f.channel.unary_unary("/spark_ledger.v1.Bookie/ReadLastConfirmed")
        for _number in range(50):
            with suppress(grpc.aio.AioRpcError):
                await call(sent, timeout=5, metadata=metadata)
        connections = f.service._connections
        (peer,) = connections._known
        assert connections.granted([peer])[peer] > 50 * (len(sent) + 500)

    ask()
