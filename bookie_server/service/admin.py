"""The admin port: /metrics for Prometheus, /status as JSON, /healthz. Plain HTTP, read only.

The port is bound before the bookie announces itself; the HTTP library is loaded after that, because
loading it takes longer than everything else in a start. Requests wait in the socket meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from bookie_server.service.guard.log_bound import LogBound
from bookie_server.service.paced import Paced
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.bookie import BOOKIE_ADMIN_CONNECTION_S, BOOKIE_ADMIN_CONNECTIONS_MAX

if TYPE_CHECKING:
    from aiohttp import web

_http_logger = logging.getLogger(f"{__name__}.http")
_http_logger.addFilter(LogBound())  # what is no HTTP is reported by the library, with a traceback

_BACKLOG: Final = 128
"""Connections that wait until the HTTP library is loaded: scrapers, and people who look."""


_ACCEPTED_AT_ONCE: Final = 16
"""In one turn of the loop: those that are closed again take a descriptor until the next one."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one.

    Raises ConfigurationError if the address cannot be bound.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # also no name at all
        raise ConfigurationError(f"cannot listen on {host}:{port} (admin): {error}") from error
    listener.setblocking(False)
    return listener


class _Closing(asyncio.Protocol):
    """Closes a connection for which there is no descriptor to spare (see ``descriptors``)."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _end(handler: web.RequestHandler) -> None:
    """End a connection, after the request that is being answered."""
    if handler.transport is not None:
        _look_again(handler.transport)
    if getattr(handler, "_current_request", None) is None:
        handler.force_close()
    else:
        handler.close()


def _look_again(transport: asyncio.Transport) -> None:
    asyncio.get_running_loop().call_later(BOOKIE_ADMIN_CONNECTION_S, _end_unread, transport)


def _end_unread(transport: asyncio.Transport) -> None:
    """Cut a connection whose client does not read: its end would wait for that for ever."""
    if transport.get_write_buffer_size():
        transport.abort()
    elif not transport.is_closing():
        _look_again(transport)  # the answer takes its time


class AdminServer:
    """Serves on a bound socket. Its methods belong to the service thread.

    ``status`` and ``metrics`` run in a thread of a pool, because they may ask the disk.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        status: Callable[[], object],
        metrics: Callable[[], bytes],
        is_healthy: Callable[[], bool],
    ) -> None:
        """``status`` returns what msgspec can write as JSON."""
        self._listener = listener
        self._status = status
        self._metrics = metrics
        self._is_healthy = is_healthy
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Load the HTTP library and serve."""
        await asyncio.to_thread(importlib.import_module, "aiohttp.web")
        from aiohttp import web  # loaded now

        metrics, status = Paced(self._metrics), Paced(self._encoded_status)

        async def get_metrics(_request: web.Request) -> web.Response:
            text = await metrics.get()
            headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            return web.Response(body=text, headers=headers)

        async def get_status(_request: web.Request) -> web.Response:
            return web.Response(body=await status.get(), content_type="application/json")

        async def get_health(_request: web.Request) -> web.Response:
            if self._is_healthy():
                return web.Response(text="ok\n")
            return web.Response(text="the storage has failed\n", status=503)

        application = web.Application()
        application.router.add_get("/metrics", get_metrics)
        application.router.add_get("/status", get_status)
        application.router.add_get("/healthz", get_health)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            logger=_http_logger,
        )
        await self._runner.setup()
        accepts = self._runner.server
        assert accepts is not None, "it is there after the setup"

        def protocol() -> asyncio.BaseProtocol:
            if len(accepts.connections) >= BOOKIE_ADMIN_CONNECTIONS_MAX:
                return _Closing()
            handler = accepts()
            # A request takes milliseconds; halves of requests must not take all connections.
            loop.call_later(BOOKIE_ADMIN_CONNECTION_S, _end, handler)
            return handler

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            protocol, sock=self._listener, backlog=_ACCEPTED_AT_ONCE
        )

    def _encoded_status(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self._status())) + b"\n"

    async def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._listener.close()
