"""Connections of this process: made on first use, kept, never shared with a forked child.

Used on both sides: in the processes beside Spark's driver and in the tasks on executors. Spark
reuses its Python processes for many tasks and micro-batches, and forks them from a daemon. So
connections live in module globals (readers and writers are pickled and hold none), and those of
another process id are set aside: their sockets belong to the parent.
"""

from __future__ import annotations

import os
import threading
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from connector.options import ConnectionOptions
from spark_ledger.client.counters import ClientCounters
from spark_ledger.config import ClientConfig
from spark_ledger.errors import ConfigurationError, NoSuchStreamError
from spark_ledger.limits.connector import (
    RAW_READERS_MAX,
    STREAM_HANDLES_MAX,
    STREAM_WRITERS_MAX,
)
from spark_ledger.types import LedgerId

if TYPE_CHECKING:
    from spark_ledger.client.blocking import BlockingReader
    from spark_ledger.stream.blocking import SegmentWriter, Stream, StreamConnection


class _Session:
    """One connection with the handles made over it."""

    def __init__(self, options: ConnectionOptions) -> None:
        from spark_ledger.stream.blocking import StreamConnection

        self.connection = StreamConnection.connect(options.metadata, **_client_settings(options))
        self.streams: dict[str, Stream] = {}
        """By name; the one that was used last is the last one."""
        self.writers: dict[tuple[str, str | None, int | None], SegmentWriter] = {}
        self.readers: dict[LedgerId, BlockingReader] = {}


_LOCK: Final = threading.RLock()
_SESSIONS: Final[dict[ConnectionOptions, _Session]] = {}
_INHERITED: Final[list[_Session]] = []
"""Sessions of the parent in a forked child. They are kept alive, because their destructors would
write to sockets that belong to the parent."""

_owner_pid = 0
"""The process whose sessions ``_SESSIONS`` holds."""

_SETTINGS: Final = {
    "readTimeout": "read_timeout_s",
    "speculativeReadDelay": "speculative_read_delay_s",
    "ledger.auth.token": "auth_token",
    "tls.caFile": "tls_ca_file",
    "tls.certFile": "tls_cert_file",
    "tls.keyFile": "tls_key_file",
    "tls.keyPassword": "tls_key_password",
}
"""Options that are settings of the client, by the client's name."""


def _client_settings(options: ConnectionOptions) -> dict[str, object]:
    """The keyword arguments of ``connect``.

    Raises ConfigurationError if this version of the client does not have a setting.
    """
    values: dict[str, object] = {
        "readTimeout": options.read_timeout_s,
        "speculativeReadDelay": options.speculative_read_delay_s,
        "ledger.auth.token": options.auth_token.reveal(),
        "tls.caFile": options.ca_file,
        "tls.certFile": options.cert_file,
        "tls.keyFile": options.key_file,
        "tls.keyPassword": options.key_password.reveal(),
    }
    known = {field.name for field in fields(ClientConfig)}
    settings: dict[str, object] = {}
    for option, value in values.items():
        if not value:
            continue
        if _SETTINGS[option] not in known:
            raise ConfigurationError(
                f"option {option}: this version of the client has no such protection; remove the "
                "option, and keep the cluster in a network that you trust"
            )
        settings[_SETTINGS[option]] = value
    return settings


def _session(options: ConnectionOptions) -> _Session:
    global _owner_pid
    with _LOCK:
        if _owner_pid != os.getpid():
            _INHERITED.extend(_SESSIONS.values())
            _SESSIONS.clear()
            _owner_pid = os.getpid()
        known = _SESSIONS.get(options)
        if known is None:
            known = _SESSIONS[options] = _Session(options)
        return known


def connection(options: ConnectionOptions) -> StreamConnection:
    """The connection of this process to a cluster, made if there is none."""
    return _session(options).connection


def is_connected(options: ConnectionOptions) -> bool:
    """Whether this process has reached the cluster, by these options, at some time."""
    with _LOCK:
        return _owner_pid == os.getpid() and options in _SESSIONS


def counters(options: ConnectionOptions) -> ClientCounters:
    """What the connection of this process has done so far. One that is yet to be made is not made
    for that: it has done nothing."""
    with _LOCK:
        known = _SESSIONS.get(options) if _owner_pid == os.getpid() else None
    return ClientCounters() if known is None else known.connection.counters


def stream(options: ConnectionOptions, name: str, stream_id: str) -> Stream:
    """The handle of one stream, as it was known when it was opened: costs no metadata read.

    Raises NoSuchStreamError if it does not exist, also if another stream has its name (rule T7).
    """
    known = _used(_session(options), name)
    if known is None or known.config.stream_id != stream_id:
        known = present_stream(options, name, stream_id)
    return known


def present_stream(options: ConnectionOptions, name: str, stream_id: str) -> Stream:
    """The same, looked up: one metadata read. A handle that is kept, and ledgers that are yet to be
    collected, would give the rows of a stream that is deleted. Only of the newest metadata it is
    believed that it is (rule T7). Raises as ``stream``."""
    known = fresh_stream(options, name)
    if known.config.stream_id != stream_id:  # or our server lags, and knows the former one only
        known = fresh_stream(options, name, latest=True)
    if known.config.stream_id != stream_id:
        raise NoSuchStreamError(
            f"stream {name!r} was deleted and created again in the middle of this; start again"
        )
    return known


def _opened(session: _Session, name: str) -> Stream:
    with _LOCK:
        known = session.streams.get(name)
        if known is None:
            known = session.streams[name] = session.connection.stream(name)
        written = {key[0] for key in session.writers}
        with_writer = [each for each in session.streams if each in written]
        without = [each for each in session.streams if each not in written]
        oldest = with_writer[: max(0, len(with_writer) - STREAM_WRITERS_MAX)]
        oldest += without[: max(0, len(without) - STREAM_HANDLES_MAX)]
    for each in oldest:
        _let_go(session, each)
    return known


def _used(session: _Session, name: str) -> Stream | None:
    """The handle that is kept under a name; it is the last to go then."""
    with _LOCK:
        known = session.streams.pop(name, None)
        if known is not None:
            session.streams[name] = known
        return known


def _let_go(session: _Session, name: str) -> None:
    """Keep a stream's handle no more. Whoever uses it goes on: it only loses what it has kept, and
    writers close their ledgers by themselves once they are idle."""
    with _LOCK:
        known = session.streams.pop(name, None)
        for key in [each for each in session.writers if each[0] == name]:
            del session.writers[key]
    if known is not None:
        known.close()


def fresh_stream(options: ConnectionOptions, name: str, *, latest: bool = False) -> Stream:
    """The handle of the stream that has the name now, with its newest schema. With ``latest`` it
    is so by metadata that are no older than this call.

    Raises NoSuchStreamError if there is none.
    """
    session = _session(options)
    known = _used(session, name)
    if known is None and latest:
        known = _opened(session, name)  # as our server knows it, which may lag
    if known is not None:
        try:
            known.refresh(latest=latest)
        except NoSuchStreamError:
            _forget_stream(session, name)
        else:
            return known
    return _opened(session, name)


def _forget_stream(session: _Session, name: str) -> None:
    with _LOCK:
        known = session.streams.pop(name, None)
        writers = [session.writers.pop(key) for key in list(session.writers) if key[0] == name]
    for writer in writers:
        writer.close()
    if known is not None:
        known.close()


def segment_writer(
    options: ConnectionOptions,
    name: str,
    stream_id: str,
    *,
    compression: str | None,
    entry_bytes: int | None,
) -> SegmentWriter:
    """This process's writer to a stream; it keeps its ledger open from one task to the next."""
    handle = stream(options, name, stream_id)
    session = _session(options)
    key = (name, compression, entry_bytes)
    with _LOCK:
        known = session.writers.get(key)
        if known is None:
            known = session.writers[key] = handle.writer(
                compression=compression, entry_bytes=entry_bytes
            )
        return known


def ledger_reader(options: ConnectionOptions, ledger_id: LedgerId) -> BlockingReader:
    """A reader of a raw ledger, without recovery.

    Raises NoSuchLedgerError if it does not exist, UnauthorizedError if the password is wrong.
    """
    session = _session(options)
    with _LOCK:
        known = session.readers.pop(ledger_id, None)
        if known is None:
            password = options.password.reveal().encode()
            known = session.connection.open_ledger(ledger_id, password=password)
        session.readers[ledger_id] = known
        if len(session.readers) > RAW_READERS_MAX:
            del session.readers[next(iter(session.readers))]
        return known


def discard(options: ConnectionOptions) -> None:
    """Close the connection and forget it; the next use makes a new one."""
    with _LOCK:
        if _owner_pid != os.getpid():
            return
        session = _SESSIONS.pop(options, None)
    if session is not None:
        session.connection.close()
