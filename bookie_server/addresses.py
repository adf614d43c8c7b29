"""The addresses that a bookie takes, and what it announces of them."""

from __future__ import annotations

import socket
from typing import Final

from bookie_server.config import BookieConfig
from bookie_server.service import admin
from bookie_server.service.grpc_server import GrpcServer
from spark_ledger.errors import ConfigurationError

_ANY_ADDRESS: Final = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound


def bind(server: GrpcServer, config: BookieConfig) -> str:
    """Take the address for clients; what to announce. Raises ConfigurationError."""
    host, port = config.listen.advertised
    if not host and config.listen.host in _ANY_ADDRESS:
        raise ConfigurationError(
            f"listen.host {config.listen.host!r} is no address that clients can connect to: "
            "set listen.advertised_address"
        )
    bound = server.bind(_bracketed(config.listen.host), config.listen.port)
    return f"{_bracketed(host or config.listen.host)}:{port or bound}"


def bind_admin(config: BookieConfig) -> tuple[socket.socket | None, str]:
    """Take the address of the admin port, if there is one; what to announce."""
    if not config.admin.enabled:
        return None, ""
    listener = admin.bind(config.admin.host, config.admin.port)
    return listener, f"{_bracketed(config.admin.host)}:{listener.getsockname()[1]}"


def _bracketed(host: str) -> str:
    """An IPv6 address needs brackets in front of a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
