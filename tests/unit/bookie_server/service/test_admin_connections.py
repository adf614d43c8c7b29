"""Connections to the admin port: how many there are, and that one at work is not cut."""
"""Connections to the admin port: how many there may be, and how long each lasts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import aiohttp
import time
from collections.abc import Awaitable, Callable

import pytest

from bookie_server.service import admin

CONNECTION_S = 0.05


def serving(
    test: Callable[[int], Awaitable[None]], status: Callable[[], object] = dict
) -> Callable[[], None]:
    """Runs a test with the port of an admin server."""

    def run() -> None:
        async def main() -> None:
            listener = admin.bind("127.0.0.1", 0)
            server = admin.AdminServer(
                listener, status=status, metrics=lambda: b"", is_healthy=lambda: True
            )
            await server.start()
            async with asyncio.timeout(20):
                await test(listener.getsockname()[1])
            await server.stop()

        asyncio.run(main())

    return run


class Connection:
    """A connection to the port, which stays until it is ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def make(cls, port: int, ending: AsyncExitStack) -> Connection:
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        ending.push_async_callback(made.end)
        return made

    async def is_answered(self) -> bool:
        """Whether a request gets an answer, and no end of the connection."""
        try:
            self._writer.write(b"GET /healthz HTTP/1.1\r\nHost: b\r\n\r\n")
            return (await self._reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        except (ConnectionError, asyncio.IncompleteReadError):
            return False

    async def end(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def test_connection_above_the_bound_is_closed_and_those_that_are_there_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes a descriptor, and the storage needs some."""
    monkeypatch.setattr(admin, "BOOKIE_ADMIN_CONNECTIONS_MAX", 2)

    async def test(port: int) -> None:
        async with AsyncExitStack() as ending:
            stays, ends = [await Connection.make(port, ending) for _ in range(2)]
            assert await stays.is_answered() and await ends.is_answered()
            for _ in range(3):
                assert not await (await Connection.make(port, ending)).is_answered()
            assert await stays.is_answered(), "it was not disturbed"
            await ends.end()
            while not await (await Connection.make(port, ending)).is_answered():
                await asyncio.sleep(0.001)  # the end of the other has not been noticed

    serving(test)()


def test_request_that_takes_longer_than_a_connection_may_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a bookie whose disks are slow: this is when somebody looks."""
    monkeypatch.setattr(admin, "BOOKIE_ADMIN_CONNECTION_S", CONNECTION_S)
    may_answer = threading.Event()

    def status() -> dict[str, str]:
        assert may_answer.wait(10)
        return {"bookie_id": "b1"}

    async def test(port: int) -> None:
        asyncio.get_running_loop().call_later(3 * CONNECTION_S, may_answer.set)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/status") as answer,
        ):
            assert await answer.json() == {"bookie_id": "b1"}

    serving(test, status)()
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
