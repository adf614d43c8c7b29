"""The gRPC server around the service: options, interceptors, listening address."""

from __future__ import annotations

import logging
import socket
from typing import Final

import grpc.aio

from bookie_server.service.grpc_service import BookieService
from bookie_server.service.guard.log_bound import LogBound
from bookie_server.service.interceptors import MetricsInterceptor
from bookie_server.service.metrics import ServiceMetrics
from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.bookie import (
    BOOKIE_CALLS_MAX,
    BOOKIE_CALLS_WAITING,
    BOOKIE_CALLS_WAITING_MAX,
    BOOKIE_CONNECTIONS_MAX,
    BOOKIE_HANDSHAKE_TIMEOUT_S,
    BOOKIE_HEADERS_BYTES_MAX,
    BOOKIE_LOOKAHEAD_BYTES,
)
from spark_ledger.wire.options import transfer_options

_LINES: Final = LogBound()
"""On what grpc itself logs, with a traceback, when a client leaves in the middle of an answer."""


def server_options(connections_max: int = BOOKIE_CONNECTIONS_MAX) -> list[tuple[str, int]]:
    """grpc options of a bookie: sizes, and permission for the keepalive probes of clients."""
    return [
        *transfer_options(lookahead_bytes=BOOKIE_LOOKAHEAD_BYTES),
        # Probes of our own find clients that vanished without closing the connection.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        # Clients probe often, also idle ones, to find a dead bookie soon: that is no attack.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
        # No bound on the streams of a connection: in the first moment, before its client knows the
        # bound, gRPC would reset honest calls. ``CallLimits`` tells them to come later.
        # Of calls that wait for the service loop gRPC resets some by lot above the first number,
        # and each new one above the second. Each keeps its headers and what gRPC sets aside for it:
        # 3,000, its own bound, took 100 MiB. With 12,000 the loop was busy for ten seconds.
        ("grpc.server.max_pending_requests", BOOKIE_CALLS_WAITING),
        ("grpc.server.max_pending_requests_hard_limit", BOOKIE_CALLS_WAITING_MAX),
        # Ours have a few hundred bytes. Each call that waits keeps its headers, in the memory of
        # gRPC and again in Python's; gRPC's own bound is 16 KiB.
        ("grpc.max_metadata_size", BOOKIE_HEADERS_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", BOOKIE_HEADERS_BYTES_MAX),
        # Each takes a descriptor, and the storage needs some (see ``descriptors``).
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", int(BOOKIE_HANDSHAKE_TIMEOUT_S * 1000)),
        # Two bookies on one port would each get some of the connections.
        ("grpc.so_reuseport", 0),
    ]


class GrpcServer:
    """Serves one BookieService. Made and used on the service thread."""

    def __init__(
        self,
        service: BookieService,
        metrics: ServiceMetrics,
        *,
        connections_max: int = BOOKIE_CONNECTIONS_MAX,
    ) -> None:
        """Near ``connections_max`` connections the longest idle ones make room; above it the newest
        are closed at once."""
        self._service = service
        self._connections_max = connections_max
        self._port = 0
        self._server = grpc.aio.server(
            options=server_options(connections_max),
            interceptors=[MetricsInterceptor(metrics, service.leftovers)],
            maximum_concurrent_rpcs=BOOKIE_CALLS_MAX,
        )
        self._server.add_generic_rpc_handlers((service.handlers(), service.health.handlers()))

    def bind(self, host: str, port: int) -> int:
        """Take the address; the port, which the system picks when ``port`` is 0.

        Nothing is answered before ``serve``. Raises ConfigurationError if the address is unknown
        or taken.
        """
        address = f"{host}:{port}"
        try:
            socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # also of what can be no name
            raise _not_of_this_machine(address, error) from error
        try:
            self._port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            try:
                _take_any_port(host.strip("[]"))
            except OSError as reason:
                raise _not_of_this_machine(address, reason) from reason
            raise ConfigurationError(f"cannot listen on {address}: is it in use?") from error
        return self._port

    async def serve(self) -> None:
        """Answer calls at the bound address."""
        logging.getLogger(grpc.aio.UsageError.__module__).addFilter(_LINES)
        await self._server.start()
        self._service.clients.start(self._port, self._connections_max)

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; the port. Raises ConfigurationError if the address is taken."""
        bound = self.bind(host, port)
        await self.serve()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no new calls; let those in flight finish for ``grace_s``, then cut them off."""
        self._service.health.stop()
        self._service.clients.stop()
        await self._server.stop(grace_s)


def _take_any_port(host: str) -> None:
    """Take a free port of an address, and give it back. Raises OSError if it is not ours."""
    family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as taken:
        taken.bind(address)


def _not_of_this_machine(address: str, error: OSError | UnicodeError) -> ConfigurationError:
    reason = (error.strerror if isinstance(error, OSError) else "") or error
    return ConfigurationError(
        f"cannot listen on {address}: {reason}: listen.host must be a name or an address of this "
        "machine"
    )
