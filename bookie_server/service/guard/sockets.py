"""The TCP connections of this process as the kernel knows them: what has arrived, how to end one.

gRPC says neither how many bytes of unfinished messages it holds, nor does it let its user end a
connection. The kernel does both for the process that has the socket.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final, NamedTuple

_TCP_INFO_BYTES: Final = 136
_BYTES_RECEIVED: Final = struct.Struct("=Q")
_BYTES_RECEIVED_AT: Final = 128
"""Where ``tcpi_bytes_received`` stands in the kernel's ``struct tcp_info`` (Linux 4.1)."""

_ATTACH_FILTER: Final = 26
_DETACH_FILTER: Final = 27
"""``SO_ATTACH_FILTER`` and ``SO_DETACH_FILTER`` of Linux, which Python does not name."""

_DROP_ALL: Final = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
"""The one instruction of a filter that keeps nothing of any packet: BPF_RET with 0."""
_DROPS_ALL: Final = struct.pack("@HP", 1, ctypes.addressof(_DROP_ALL))

_NOT_ENDED_HERE: Final = (1, 8)
"""``TCP_ESTABLISHED`` and ``TCP_CLOSE_WAIT`` of Linux."""

_DIRECTORY: Final = "/proc/self/fd"

KNOWN_S: Final = 2.0
"""A further connection under a name that is known is found after so long: to look at ten thousand
takes some hundredths of a second."""

_Address = tuple[str, int]
"""Host and port."""

_NO_ENDS: Final = ("", ("", 0))


class Received(NamedTuple):
    """What the kernel has received from a client since its connection began."""

    byte_count: int
    sockets: frozenset[int]
    """Of its connections to this process, by numbers that the next ones do not have."""


_NOTHING: Final = Received(0, frozenset())


class Sockets:
    """Finds connections by the names that gRPC gives to its peers. Any thread."""

    def __init__(self, open_files: Callable[[], Iterable[int]] | None = None) -> None:
        self._open_files = open_files or _open_files
        self._lock = Lock()
        # By the peer's name and the local address, as they were: each is looked at again before it
        # is used. A client may connect to two addresses of ours from one port of its own.
        self._descriptors: dict[str, dict[_Address, int]] = {}
        self._looked_at = float("-inf")
        self.port: int | None = None
        """Of the listener of gRPC; None while it is not known. Others have other clients."""

    def received(self, peers: Iterable[str]) -> dict[str, Received]:
        """What the kernel has received from each of them that is still there, on all its
        connections."""
        found: dict[str, Received] = {}
        for peer, connection in self._find(peers):
            try:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                number = os.fstat(connection.fileno()).st_ino
            except OSError:  # closed meanwhile
                continue
            if len(info) >= _TCP_INFO_BYTES:
                (byte_count,) = _BYTES_RECEIVED.unpack_from(info, _BYTES_RECEIVED_AT)
                before = found.get(peer, _NOTHING)
                found[peer] = Received(before.byte_count + byte_count, before.sockets | {number})
        return found

    def mute(self, peers: Iterable[str]) -> None:
        """Have the kernel drop what they send, until ``unmute``: gRPC goes on with what it has."""
        for _peer, connection in self._find(peers):
            with suppress(OSError):  # closed meanwhile
                connection.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, _DROPS_ALL)

    def unmute(self, peers: Iterable[str]) -> None:
        """Hear them again: their TCP sends again what was dropped."""
        for _peer, connection in self._find(peers):
            _hear(connection)

    def hang_up(self, peers: Iterable[str]) -> list[str]:
        """End the connections, and return whose were still there. gRPC notices at once, ends their
        calls, and frees all that it holds for them."""
        ended: dict[str, None] = {}
        for peer, connection in self._find(peers):
            _hear(connection)  # or the kernel waits long for an answer to its farewell
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed meanwhile
                continue
            ended[peer] = None
        return list(ended)

    def of_port(self, port: int) -> list[str]:
        """All connections that clients have to a port of this process."""
        with self._lock:
            return [peer for peer, local_port in self._look() if local_port == port]

    def _find(self, peers: Iterable[str]) -> Iterator[tuple[str, socket.socket]]:
        has_looked = False
        for peer in peers:
            with self._lock:
                if not has_looked and not self._is_known(peer):
                    has_looked = True
                    self._look()
                known = list(self._descriptors.get(peer, {}).items())
            for local, descriptor in known:
                with _copy(descriptor) as connection:
                    # The number may be another connection's by now; the copy's cannot change.
                    if connection is None or _ends(connection) != (peer, local):
                        continue
                    # gRPC takes a while to notice that one was ended: it is gone all the same.
                    try:
                        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
                    except OSError:  # closed meanwhile: the others are looked at all the same
                        continue
                    if state[0] in _NOT_ENDED_HERE:
                        yield peer, connection

    def _is_known(self, peer: str) -> bool:
        """Whether its connections are where they were, and may be all that it has."""
        known = self._descriptors.get(peer)
        if not known or time.monotonic() - self._looked_at >= KNOWN_S:
            return False
        return all(_ends_at(number) == (peer, local) for local, number in known.items())

    def _look(self) -> list[tuple[str, int]]:
        """Find all connections again; the peer and the local port of each."""
        found: list[tuple[str, int]] = []
        try:
            descriptors = list(self._open_files())
        except OSError:  # without a free descriptor the kernel cannot be asked: the next look can
            return found
        self._descriptors.clear()
        self._looked_at = time.monotonic()
        for descriptor in descriptors:
            peer, local = _ends_at(descriptor)
            if not peer:
                continue
            found.append((peer, local[1]))
            if self.port in (None, local[1]):
                self._descriptors.setdefault(peer, {})[local] = descriptor
        return found


def _hear(connection: socket.socket) -> None:
    with suppress(OSError):  # most are not muted
        connection.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


def open_file_count() -> int:
    """How many descriptors this process has."""
    # Not by a Path: it is asked four times a second, and that took longer than the kernel does.
    size = os.stat(_DIRECTORY).st_size  # noqa: PTH116
    return size or sum(1 for _ in _open_files())  # 0 before Linux 6.2


def _open_files() -> Iterator[int]:
    return map(int, os.listdir(_DIRECTORY))  # noqa: PTH208 - ten thousand paths take too long


@contextmanager
def _copy(descriptor: int) -> Iterator[socket.socket | None]:
    """A socket of our own for the same connection; None if it was closed."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # no socket
        os.close(copy)
        yield None
        return
    with connection:
        yield connection


def _ends_at(descriptor: int) -> tuple[str, _Address]:
    """The ends of the connection there; "" as the peer for anything else."""
    try:
        connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:  # no socket, or closed
        return _NO_ENDS
    try:
        return _ends(connection)
    finally:
        connection.detach()  # it is gRPC's


def _ends(connection: socket.socket) -> tuple[str, _Address]:
    """The name of the peer, and the local address; "" as the peer for what is not connected."""
    peer = _name(connection)
    try:
        return (peer, tuple(connection.getsockname()[:2])) if peer else _NO_ENDS
    except OSError:  # closed meanwhile
        return _NO_ENDS


def _name(connection: socket.socket) -> str:
    """As ``grpc.aio.ServicerContext.peer`` calls it; "" for what is not TCP."""
    try:
        address = connection.getpeername()
    except OSError:  # not connected
        return ""
    if not isinstance(address, tuple) or len(address) not in (2, 4):
        return ""
    host, port = address[:2]
    if len(address) == 2:
        return f"ipv4:{host}:{port}"
    if host.startswith("::ffff:"):  # a listener on all addresses
        return f"ipv4:{host[7:]}:{port}"
    return f"ipv6:%5B{host}%5D:{port}"
