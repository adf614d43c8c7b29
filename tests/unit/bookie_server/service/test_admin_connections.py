"""Connections to the admin port: how many there may be, and how long each lasts."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from bookie_server.service import admin

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ASK = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"


def served(
    test: Callable[[admin.AdminServer, int], Awaitable[None]],
    metrics: Callable[[], bytes] = lambda: b"a_metric 1\n",
) -> None:
    """Runs a test with a server and its port."""

    async def main() -> None:
        listener = admin.bind("127.0.0.1", 0)
        server = admin.AdminServer(listener, status=dict, metrics=metrics, is_healthy=lambda: True)
        await server.start()
        async with asyncio.timeout(20):
            await test(server, listener.getsockname()[1])
        await server.stop()

    asyncio.run(main())


async def connect(port: int) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port)


async def answer(streams: Streams) -> bytes:
    """The status line; empty if the server hangs up."""
    reader, writer = streams
    try:
        writer.write(ASK)
        await writer.drain()
        return await reader.readline()
    except ConnectionError:
        return b""


async def leave(streams: Streams) -> None:
    streams[1].close()
    await asyncio.gather(streams[1].wait_closed(), return_exceptions=True)


def test_connections_above_the_bound_are_closed_and_those_below_it_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "BOOKIE_ADMIN_CONNECTIONS_MAX", 2)

    async def test(_server: admin.AdminServer, port: int) -> None:
        two = [await connect(port) for _number in range(2)]
        assert [await answer(each) for each in two] == [b"HTTP/1.1 200 OK\r\n"] * 2
        more = await connect(port)
        assert await answer(more) == b""
        await leave(more)
        await leave(two.pop())
        while not await answer(another := await connect(port)):
            await leave(another)  # the server has not seen yet that one has left
        for each in (*two, another):
            await leave(each)

    served(test)


def test_connection_that_is_being_answered_ends_behind_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scrape of a busy bookie takes its time."""
    monkeypatch.setattr(admin, "BOOKIE_ADMIN_CONNECTION_S", 0.05)

    def slow() -> bytes:
        time.sleep(0.2)
        return b"a_metric 1\n"

    async def test(_server: admin.AdminServer, port: int) -> None:
        reader, writer = streams = await connect(port)
        writer.write(ASK)
        text = await reader.read()
        assert text.startswith(b"HTTP/1.1 200 OK\r\n") and text.endswith(b"a_metric 1\n")
        await leave(streams)

    served(test, slow)


@pytest.mark.parametrize("size", [32 << 20, 60_000], ids=["being answered", "answered"])
def test_connection_that_reads_no_answer_ends(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """It would keep its place for ever: to close it waits until its answers are read."""
    monkeypatch.setattr(admin, "BOOKIE_ADMIN_CONNECTIONS_MAX", 1)
    monkeypatch.setattr(admin, "BOOKIE_ADMIN_CONNECTION_S", 0.2)

    async def test(server: admin.AdminServer, port: int) -> None:
        server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port))
        deaf.setblocking(False)
        deaf.send(ASK)
        await asyncio.sleep(0.1)
        while await answer(another := await connect(port)) != b"HTTP/1.1 200 OK\r\n":
            await leave(another)
            await asyncio.sleep(0.01)
        await leave(another)
        deaf.close()

    served(test, lambda: bytes(size))


def test_server_that_was_stopped_keeps_no_connection_and_no_port() -> None:
    async def test(server: admin.AdminServer, port: int) -> None:
        idle, used = await connect(port), await connect(port)
        assert await answer(used)
        await server.stop()
        assert await answer(idle) == b""
        with pytest.raises(ConnectionRefusedError):
            await connect(port)
        admin.bind("127.0.0.1", port).close()
        for each in (idle, used):
            await leave(each)

    served(test)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_port_that_was_bound_and_never_served_is_free_again(host: str) -> None:
    """As of a bookie that could not start."""

    async def main() -> int:
        listener = admin.bind(host, 0)
        port: int = listener.getsockname()[1]
        server = admin.AdminServer(
            listener, status=dict, metrics=lambda: b"", is_healthy=lambda: True
        )
        await server.stop()
        assert listener.fileno() == -1
        return port

    admin.bind(host, asyncio.run(main())).close()
