"""What has arrived on each connection, and how much of that gRPC has not handed out yet.

gRPC does not say how many bytes of unfinished messages it holds. The kernel says how many a
connection has received, and the service knows how many it was given: what is between them, less
what calls and frames need around them, is held.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from pathlib import Path
from typing import Final

_TCP_INFO_BYTES: Final = 136
_BYTES_RECEIVED: Final = struct.Struct("=Q")
_BYTES_RECEIVED_AT: Final = 128
"""Where ``tcpi_bytes_received`` stands in the kernel's ``struct tcp_info`` (Linux 4.1)."""

_CALL_BYTES: Final = 2_048
"""Headers of one call, with those of its answer that come back: far more than ours have."""

_FRAMING_SHARE: Final = 64
"""One byte in so many belongs to frames, window updates and probes."""

_DIRECTORY: Final = Path("/proc/self/fd")


class Connections:
    """Counts by connection, under the names that gRPC gives them. Service thread only."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()

    def call_began(self, peer: str) -> None:
        """One more call."""
        self._calls[peer] += 1

    def given(self, peer: str, byte_count: int) -> None:
        """A message was received as a whole."""
        self._given[peer] += byte_count

    def held(self, received: dict[str, int]) -> dict[str, int]:
        """Bytes that gRPC holds for each connection, at least; forgets those that are gone."""
        for counted in (self._given, self._calls):
            for peer in counted.keys() - received.keys():
                del counted[peer]
        return {
            peer: byte_count
            - self._given[peer]
            - self._given[peer] // _FRAMING_SHARE
            - self._calls[peer] * _CALL_BYTES
            for peer, byte_count in received.items()
        }


def received_bytes() -> dict[str, int]:
    """What the kernel has received on each TCP connection of this process; any thread."""
    found: dict[str, int] = {}
    for entry in _DIRECTORY.iterdir():
        try:
            copy = os.dup(int(entry.name))
        except OSError:  # closed meanwhile
            continue
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            continue
        with connection:
            try:
                peer = _name(connection)
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            except OSError:  # not of TCP, or not connected
                continue
            if peer and len(info) >= _TCP_INFO_BYTES:
                (found[peer],) = _BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)
    return found


def _name(connection: socket.socket) -> str:
    """As ``grpc.aio.ServicerContext.peer`` calls it; "" for what is not TCP."""
    if connection.family == socket.AF_INET:
        host, port = connection.getpeername()
        return f"ipv4:{host}:{port}"
    if connection.family == socket.AF_INET6:
        host, port = connection.getpeername()[:2]
        if host.startswith("::ffff:"):  # a listener on all addresses
            return f"ipv4:{host[7:]}:{port}"
        return f"ipv6:%5B{host}%5D:{port}"
    return ""
