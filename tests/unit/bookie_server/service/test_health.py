"""The standard health service: what its clients hear, and what they cannot keep from others."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie_server.service import health
from bookie_server.service.calls import BOUNDS, Kind
from spark_ledger.wire.codec import SERVICE_NAME
from tests.hostile.http2 import RawConnection, message
from tests.unit.bookie_server.service.test_grpc_service import BOOKIE, Fixture, on_loop
from tests.unit.bookie_server.service.test_hostile_calls import connect, serves_the_others, until

_STATUS: Final = health_pb2.HealthCheckResponse
CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
NAMES: Final = ("", SERVICE_NAME)


def asked(service: str = "") -> Any:
    return health_pb2.HealthCheckRequest(service=service)


def stub(f: Fixture) -> Any:
    return health_pb2_grpc.HealthStub(f.channel)


async def watch(f: Fixture, connection: RawConnection, number: int) -> None:
    """Begin so many watches on a connection, and wait until they are served."""
    before = f.metrics.calls_in_progress["Watch"]
    for _number in range(number):
        await connection.ask(WATCH, BOOKIE, b"")
    await until(lambda: f.metrics.calls_in_progress["Watch"] == before + number)
    while f.service._limits._receiving:
        await asyncio.sleep(0.005)


@on_loop
async def test_standard_client_is_told_how_the_bookie_and_its_service_do(f: Fixture) -> None:
    for name in NAMES:
        assert (await stub(f).Check(asked(name))).status == _STATUS.SERVING
        watching = stub(f).Watch(asked(name))
        assert (await watching.read()).status == _STATUS.SERVING
        watching.cancel()


@on_loop
async def test_service_that_is_not_here_is_not_found_and_unknown_to_whoever_watches_it(
    f: Fixture,
) -> None:
    """As the standard has it: a watch goes on, for the service may come."""
    with pytest.raises(grpc.aio.AioRpcError, match="no service") as caught:
        await stub(f).Check(asked("another"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watching = stub(f).Watch(asked("another"))
    assert (await watching.read()).status == _STATUS.SERVICE_UNKNOWN
    following = asyncio.ensure_future(watching.read())
    assert (await stub(f).Check(asked())).status == _STATUS.SERVING
    assert not following.done()
    stopping = asyncio.ensure_future(f.server.stop(60.0))
    assert await following is grpc.aio.EOF, "it knows no more of it than before"
    await stopping


@on_loop
async def test_bookie_that_stops_says_so_to_whoever_watches_its_health(f: Fixture) -> None:
    """A balancer sends nobody there any more, while what is under way ends. A watch has no end of
    its own: were it not ended, each stop took all of the time that is given to calls."""
    watches = [stub(f).Watch(asked(name)) for name in NAMES]
    for watching in watches:
        assert (await watching.read()).status == _STATUS.SERVING
    stopping = asyncio.ensure_future(f.server.stop(60.0))
    for watching in watches:
        assert (await watching.read()).status == _STATUS.NOT_SERVING
        assert await watching.read() is grpc.aio.EOF
        assert await watching.code() is grpc.StatusCode.OK
    await stopping


@on_loop
async def test_calls_that_come_while_the_bookie_stops_hear_that_it_does(f: Fixture) -> None:
    """Their requests are later than their begin."""
    request = asked().SerializeToString()
    late = [f.channel.stream_stream(path)() for path in (CHECK, WATCH)]
    await until(lambda: all(f.metrics.calls_in_progress[each] for each in ("Check", "Watch")))
    stopping = asyncio.ensure_future(f.server.stop(60.0))
    await asyncio.sleep(0.01)
    for call in late:
        await call.write(request)
        await call.done_writing()
        assert _STATUS.FromString(await call.read()).status == _STATUS.NOT_SERVING
        assert await call.read() is grpc.aio.EOF
    await stopping


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
@pytest.mark.parametrize("service", ["", "another"])
def test_watch_that_nobody_reads_does_not_hold_up_a_stop(service: str, grace_s: float) -> None:
    """Its client lets nothing of an answer through, for as long as it likes."""

    @on_loop
    async def run(f: Fixture) -> None:
        hostile = await connect(f, window=0)
        await hostile.ask(WATCH, BOOKIE, asked(service).SerializeToString())
        await until(lambda: f.metrics.calls_in_progress["Watch"] == 1)
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            await f.server.stop(grace_s)
        await hostile.close()

    run()


@on_loop
async def test_watch_that_nobody_reads_keeps_no_other_from_hearing_of_the_stop(f: Fixture) -> None:
    hostile = await connect(f, window=0)
    await watch(f, hostile, 1)
    watching = stub(f).Watch(asked())
    assert (await watching.read()).status == _STATUS.SERVING
    stopping = asyncio.ensure_future(f.server.stop(60.0))
    assert (await watching.read()).status == _STATUS.NOT_SERVING
    await hostile.close()
    await stopping


def test_watch_that_is_not_read_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "BOOKIE_UNREAD_S", 0.1)

    @on_loop
    async def run(f: Fixture) -> None:
        watching = stub(f).Watch(asked())
        assert (await watching.read()).status == _STATUS.SERVING
        hostile = await connect(f, window=0)
        await hostile.ask(WATCH, BOOKIE, b"")
        await until(lambda: f.metrics.connections_ended == {"unread": 1})
        await until(lambda: hostile.closed)
        await until(lambda: f.metrics.calls_in_progress["Watch"] == 1)
        assert not watching.done(), "one that was read has all the time it wants"
        await hostile.close()

    run()


@pytest.mark.parametrize("path", [CHECK, WATCH])
def test_half_of_a_question_is_seen_and_its_client_hung_up_on(path: str) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        f.service.clients.stop()
        hostile = await connect(f)
        stream = await hostile.call(path, BOOKIE)
        half = message(bytes(2_000_000), claimed=16_000_000)
        assert await hostile.send(stream, half)
        await until(lambda: f.service.connections.calls == 1)
        assert await f.service.relieve() == 1
        await until(lambda: f.metrics.connections_ended == {"unfinished": 1})
        await hostile.close()

    run()


@pytest.mark.parametrize("path", [CHECK, WATCH])
def test_long_question_is_refused_before_it_is_decoded(path: str) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match="at most 65536") as caught:
            await f.channel.unary_unary(path)(asked("x" * 65_536).SerializeToString())
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run()


def test_ninth_watch_is_refused_and_everything_else_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check too: it waits for nothing, and whoever is told nothing starts the bookie anew."""
    monkeypatch.setitem(BOUNDS, Kind.HEALTH, 8)

    @on_loop
    async def run(f: Fixture) -> None:
        hostile = [await connect(f, window=0) for _number in range(4)]
        for connection in hostile:
            await watch(f, connection, 2)
        with pytest.raises(grpc.aio.AioRpcError, match="ask again later") as caught:
            await stub(f).Watch(asked()).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f.metrics.calls_refused == {"health": 1}
        for name in NAMES:
            assert (await stub(f).Check(asked(name))).status == _STATUS.SERVING
        await serves_the_others(f)
        await hostile.pop().close()
        await until(lambda: f.metrics.calls_in_progress["Watch"] == 6)
        watching = [stub(f).Watch(asked()) for _number in range(2)]
        for call in watching:
            assert (await call.read()).status == _STATUS.SERVING
        for connection in hostile:
            await connection.close()

    run()


def test_one_connection_has_a_quarter_of_the_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BOUNDS, Kind.HEALTH, 8)

    @on_loop
    async def run(f: Fixture) -> None:
        greedy = await connect(f, window=0)
        await watch(f, greedy, 2)
        stream = await greedy.ask(WATCH, BOOKIE, b"")
        await greedy.until_ended(stream)
        watching = stub(f).Watch(asked())
        assert (await watching.read()).status == _STATUS.SERVING
        watching.cancel()
        await greedy.close()

    run()
