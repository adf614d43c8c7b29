"""TCP relays between each client and each server, which cut, hold, drop, delay and throttle.

They replace a misbehaving network, on any machine. A relay listens on one port per link, in a
thread that keeps running while everything else is paused. Faults on the wire:

* cut: connections are reset, new ones too: a server whose process is gone
* hold: bytes wait and arrive late, all at once, when the link heals: packets that are retransmitted
  until a partition ends; in one direction or both
* drop: bytes vanish; connections stay until the link heals, and are then reset: half-open
* delay, throttle: everything arrives, but later
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spark_ledger.local.ports import HOST

CHUNK_BYTES = 65536
UP, DOWN = "up", "down"
"""Requests, from client to server; and replies."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: close sends a reset."""


@dataclass(eq=False)
class Link:
    """One way from a client to a server. Change it through ``Relays`` only."""

    name: str
    target: Callable[[], int]
    port: int = 0
    is_cut: bool = False
    held: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[_Connection] = field(default_factory=set)

    @property
    def is_healthy(self) -> bool:
        return not (self.is_cut or self.held or self.dropped or self.delay_s or self.bytes_per_s)


@dataclass(eq=False)
class _Connection:
    """Both sockets of one connection."""

    writers: list[asyncio.StreamWriter]
    tainted: bool = False
    """Bytes were lost, so it has to end when the link heals."""

    def reset(self) -> None:
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it has ended already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Relays:
    """All relays of a run, on a thread and event loop of their own. Thread-safe."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()

    def add(self, name: str, target: Callable[[], int]) -> int:
        """Add a link. Returns its port. ``target`` is asked for the server's port at each
        connection."""
        link = self.links[name] = Link(name, target)
        return asyncio.run_coroutine_threadsafe(self._listen(link), self._loop).result()

    def close(self) -> None:
        """End all connections, the thread, and the loop."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Relays:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # -- faults ------------------------------------------------------------------------------------

    def cut(self, names: Iterable[str]) -> None:
        """Reset the connections of these links, and all new ones from now on."""
        self._change(names, lambda link: setattr(link, "is_cut", True))

    def hold(self, names: Iterable[str], directions: Iterable[str] = (UP, DOWN)) -> None:
        """Hold everything in these directions until the link heals."""
        ways = frozenset(directions)
        self._change(names, lambda link: setattr(link, "held", ways))

    def drop(self, names: Iterable[str], directions: Iterable[str] = (UP, DOWN)) -> None:
        """Lose everything in these directions; connections stay, and are reset on healing."""
        ways = frozenset(directions)
        self._change(names, lambda link: setattr(link, "dropped", ways))

    def slow(self, names: Iterable[str], *, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        """Delay each piece, or pass only so many bytes a second."""

        def change(link: Link) -> None:
            link.delay_s, link.bytes_per_s = delay_s, bytes_per_s

        self._change(names, change)

    def heal(self, names: Iterable[str]) -> None:
        """Pass everything again. Connections that lost bytes are reset."""

        def change(link: Link) -> None:
            link.is_cut, link.delay_s, link.bytes_per_s = False, 0.0, 0.0
            link.held = link.dropped = frozenset()

        self._change(names, change)

    def _change(self, names: Iterable[str], change: Callable[[Link], None]) -> None:
        links = [self.links[name] for name in names]

        async def apply() -> None:
            for link in links:
                change(link)
                link.changed.set()
                link.changed = asyncio.Event()
                for connection in list(link.connections):
                    if link.is_cut or (connection.tainted and not link.dropped):
                        connection.reset()

        asyncio.run_coroutine_threadsafe(apply(), self._loop).result()

    # -- forwarding --------------------------------------------------------------------------------

    async def _listen(self, link: Link) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(link, reader, writer)
            except (OSError, asyncio.CancelledError):
                writer.transport.abort()  # reset by a fault, by one end, or at the end of the run
            finally:
                self._tasks.discard(task)

        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        link.port = server.sockets[0].getsockname()[1]
        return link.port

    async def _serve(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = _Connection([writer])
        link.connections.add(connection)
        try:
            if link.is_cut:
                connection.reset()
                return
            up_reader, up_writer = await asyncio.open_connection(HOST, link.target())
            connection.writers.append(up_writer)
            if link.is_cut:  # the link was cut meanwhile
                connection.reset()
                return
            await self._forward(link, connection, (reader, writer), (up_reader, up_writer))
        finally:
            link.connections.discard(connection)
            for each in connection.writers:
                each.close()

    async def _forward(
        self,
        link: Link,
        connection: _Connection,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        pumps = [
            asyncio.ensure_future(self._pump(link, connection, UP, client[0], server[1])),
            asyncio.ensure_future(self._pump(link, connection, DOWN, server[0], client[1])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        link: Link,
        connection: _Connection,
        direction: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if link.delay_s:
                await asyncio.sleep(link.delay_s)
            if link.bytes_per_s:
                await asyncio.sleep(min(1.0, len(data) / link.bytes_per_s))
            while direction in link.held:
                await link.changed.wait()
            if direction in link.dropped or connection.tainted:
                connection.tainted = True
                continue
            writer.write(data)
            await writer.drain()
        # A held or dropped direction does not pass on the end of a connection either.
        while direction in link.held or direction in link.dropped:
            await link.changed.wait()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
