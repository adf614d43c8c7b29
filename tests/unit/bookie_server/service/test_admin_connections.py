"""Connections to the admin port: how many there are, and that one at work is not cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import aiohttp
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
