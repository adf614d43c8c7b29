"""What the processes of a query tell its listener: one small datagram per task and per commit.

Spark carries a Python sink's messages from the tasks to its commit process, and nothing from a
source's tasks; neither reaches the program that started the query. So a listener on the driver's
machine opens a socket that is named by the run of the query, in a directory that only its user may
enter, and who finds the socket writes to it. Nobody waits: a report that cannot be delivered at
once is lost, and the number of tasks that reported says so. Tasks on other machines find no socket;
their numbers stand in their executors' logs.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import Literal

import msgspec

from spark_ledger.limits.spark import (
    REPORT_BATCHES_MAX,
    REPORT_BYTES_MAX,
    REPORT_SENT_AGAIN_S,
    SOCKET_PARENT_CHARACTERS_MAX,
)

Kind = Literal["read", "write"]


class Report(msgspec.Struct, frozen=True):
    """What tasks of one micro-batch did: of one task, or of all whose rows a commit made visible.

    ``requests`` are requests to replicas, to which a ``failover`` adds one after a replica failed
    and a ``speculative_read`` one because a replica was slow. ``commit_seconds`` is of the one
    transaction that makes the rows visible.
    """

    batch_id: int
    kind: Kind
    tasks: int = 1
    rows: int = 0
    entries: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    requests: int = 0
    failovers: int = 0
    speculative_reads: int = 0
    ensemble_changes: int = 0
    commit_seconds: float = 0.0
    cache_bytes: int = 0
    """What caches of a process hold: of the process that holds most."""
    cache_bytes_max: int = 0
    """The bounds of its caches, together."""

    def plus(self, other: Report) -> Report:
        """Both together."""
        added = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__struct_fields__
            if name not in ("batch_id", "kind", "cache_bytes", "cache_bytes_max")
        }
        for name in ("cache_bytes", "cache_bytes_max"):
            added[name] = max(getattr(self, name), getattr(other, name))
        return msgspec.structs.replace(self, **added)


def _directory() -> Path:
    """In the temporary directory; in /tmp if a socket's path would be too long there."""
    parent = tempfile.gettempdir()
    if len(parent) > SOCKET_PARENT_CHARACTERS_MAX:
        parent = "/tmp"  # noqa: S108 - what is made there is looked at before it is used
    return Path(parent) / f"spark-ledger-{os.getuid()}"


def _is_private(directory: Path) -> bool:
    """Whether only this user may put sockets there. Others may have taken its name."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _socket_path(run_id: str) -> Path | None:
    return _directory() / run_id if re.fullmatch(r"[0-9a-fA-F-]{1,64}", run_id) else None


def send(run_id: str, report: Report) -> None:
    """Tell the listener of a run, if there is one on this machine. Never waits, never fails."""
    path = _socket_path(run_id)
    # In this order: a directory that somebody else has made may be one that we may not look into.
    if path is None or not _is_private(path.parent) or not path.exists():
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(REPORT_SENT_AGAIN_S)
        out.sendto(msgspec.json.encode(report), str(path))


class Inbox:
    """The reports of one run, summed up by micro-batch and kind. Safe to use from any thread."""

    def __init__(self, run_id: str) -> None:
        self._lock = threading.Lock()
        self._reports: dict[int, dict[Kind, Report]] = {}
        self._socket: socket.socket | None = None
        self._path = _socket_path(run_id)
        with contextlib.suppress(OSError):
            self._open()

    def _open(self) -> None:
        directory = _directory()
        directory.mkdir(mode=0o700, exist_ok=True)
        if self._path is None or not _is_private(directory):
            return
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            inbox.bind(str(self._path))
        except OSError:
            inbox.close()
            raise
        self._socket = inbox
        threading.Thread(
            target=self._receive, args=(inbox,), name="ledger-reports", daemon=True
        ).start()

    def _receive(self, inbox: socket.socket) -> None:
        while True:
            try:
                data = inbox.recv(REPORT_BYTES_MAX)
            except OSError:
                return
            if not data:  # the word of ``close``
                return
            with contextlib.suppress(msgspec.MsgspecError):
                self._take_in(msgspec.json.decode(data, type=Report))

    def _take_in(self, report: Report) -> None:
        with self._lock:
            batch = self._reports.setdefault(report.batch_id, {})
            known = batch.get(report.kind)
            batch[report.kind] = report if known is None else known.plus(report)
            while len(self._reports) > REPORT_BATCHES_MAX:
                del self._reports[min(self._reports)]

    def take(self, batch_id: int) -> dict[Kind, Report]:
        """What was reported of a micro-batch; it and all before it are forgotten."""
        with self._lock:
            found = self._reports.pop(batch_id, {})
            for older in [each for each in self._reports if each < batch_id]:
                del self._reports[older]
            return found

    def close(self) -> None:
        """End the thread, and remove the socket. A second call is fine."""
        inbox, self._socket = self._socket, None
        if inbox is None or self._path is None:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out,
        ):
            out.settimeout(REPORT_SENT_AGAIN_S)
            out.sendto(b"", str(self._path))
        with contextlib.suppress(OSError):
            self._path.unlink()
        inbox.close()
