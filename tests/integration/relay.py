"""A TCP relay that loses requests or replies on demand. Runs on the test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum


class Lose(Enum):
    NOTHING = "nothing"
    REQUEST = "request"  # the next bytes from a client are dropped with their connection
    REPLY = "reply"  # they reach the server, whose answer is dropped with the connection
    SILENCE = "silence"  # nothing passes any more, and connections stay open


class Relay:
    """Listens on a free loopback port and forwards to another port."""

    REPLY_WAIT_S = 0.1

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._lose = Lose.NOTHING
        self._open = asyncio.Event()
        self._open.set()
        self.cut = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exception: object) -> None:
        assert self._server is not None
        self._server.close()
        self._ended = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # a connection that was refused half-way releases its socket

    def lose_next(self, what: Lose, *, then_closed: bool = False) -> None:
        """Lose the next message. ``then_closed``: accept no new connections until ``open``."""
        self._lose = what
        self.cut.clear()
        if then_closed:
            self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_all(self) -> None:
        """End the loss, and the connections that have lost something."""
        self._lose = Lose.NOTHING
        for task in self._tasks:
            task.cancel()

    def pass_new(self) -> None:
        """End the loss for what is sent from now on; what was lost stays unanswered."""
        self._lose = Lose.NOTHING

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: one that is cancelled before its first step would leave the socket."""
        if self._ended:
            writer.transport.abort()
            return

        def release(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            writer.transport.abort()

        task = asyncio.create_task(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(release)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # cut by one end
            await self._open.wait()
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        tasks = [
            asyncio.create_task(self._requests(reader, up_writer)),
            asyncio.create_task(self._replies(up_reader, writer)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            up_writer.transport.abort()  # before the waits, which another cancellation would end
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._cut(up_writer)

    async def _cut(self, writer: asyncio.StreamWriter) -> None:
        """Release a socket now. ``close`` alone would wait for a peer that reads no more."""
        writer.transport.abort()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()

    async def _requests(self, reader: asyncio.StreamReader, up: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            match self._lose:
                case Lose.REQUEST:
                    self._lose = Lose.NOTHING
                    self.cut.set()
                    return
                case Lose.REPLY:
                    up.write(data)
                    await up.drain()
                    await asyncio.sleep(self.REPLY_WAIT_S)  # the server has handled it by then
                    self._lose = Lose.NOTHING
                    self.cut.set()
                    return
                case Lose.SILENCE:
                    self.cut.set()
                case Lose.NOTHING:
                    up.write(data)

    async def _replies(self, up: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await up.read(65536):
                if self._lose not in (Lose.REPLY, Lose.SILENCE):
                    writer.write(data)
