"""Connections of this process: made on first use, kept, never shared with a forked child.

Spark reuses its Python processes for many tasks and micro-batches, and forks them from a daemon.
So connections live in module globals (a reader or writer object is pickled and holds none), and
those made by another process id are set aside: their sockets belong to the parent.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

import spark_ledger
from connector.options import ConnectionOptions

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream, StreamConnection

_LOCK: Final = threading.Lock()
_CONNECTIONS: dict[ConnectionOptions, StreamConnection] = {}
_STREAMS: dict[tuple[ConnectionOptions, str], Stream] = {}
_INHERITED: Final[list[Any]] = []
"""What a forked child got from its parent: kept alive, because closing it would write to sockets
that are the parent's."""

_owner_pid = 0


def connection(options: ConnectionOptions) -> StreamConnection:
    """The connection of this process to a cluster, made if there is none."""
    with _LOCK:
        _forget_the_parents()
        known = _CONNECTIONS.get(options)
        if known is None:
            known = _CONNECTIONS[options] = spark_ledger.connect(options.metadata)
        return known


def stream(options: ConnectionOptions, name: str) -> Stream:
    """The handle of a stream. Raises NoSuchStreamError."""
    connected = connection(options)
    with _LOCK:
        known = _STREAMS.get((options, name))
    if known is None:
        known = connected.stream(name)
        with _LOCK:
            _STREAMS[options, name] = known
    return known


def discard(options: ConnectionOptions) -> None:
    """Close the connection and forget it; the next use makes a new one."""
    with _LOCK:
        _forget_the_parents()
        known = _CONNECTIONS.pop(options, None)
        for key in [key for key in _STREAMS if key[0] == options]:
            del _STREAMS[key]
    if known is not None:
        known.close()


def _forget_the_parents() -> None:
    global _owner_pid
    if _owner_pid != os.getpid():
        _INHERITED.append((dict(_CONNECTIONS), dict(_STREAMS)))
        _CONNECTIONS.clear()
        _STREAMS.clear()
        _owner_pid = os.getpid()
