"""up, down, status: a local cluster that runs on after the program that started it.

A cluster is named by its directory. The supervisor holds a lock there as long as the cluster runs,
which tells whether it runs without any process id; ``cluster.json`` says the rest.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Final

import msgspec

from spark_ledger.errors import ConfigurationError, CorruptionError, LedgerError
from spark_ledger.limits.repair import LOST_BOOKIE_DELAY_S
from spark_ledger.local.cluster import ZOOKEEPER, LocalCluster
from spark_ledger.local.files import absolute
from spark_ledger.local.ports import HOST
from spark_ledger.local.supervisor import LOCK_NAME, STATE_NAME

DOWN_TIMEOUT_S: Final = 30.0
"""Bookies drain, one after the other in the worst case; then ZooKeeper ends."""

_FORMAT_VERSION: Final = 1
_POLL_S: Final = 0.02


class ProcessStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process. ``running`` is false for one that has died since the start."""

    name: str
    address: str
    pid: int
    admin_address: str = ""
    running: bool = True
    note: str = ""
    """How often it has ended and was started again, and why; empty if it never did."""


class ClusterStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A detached cluster. One that is down has neither URI nor processes."""

    directory: str
    running: bool
    uri: str = ""
    supervisor_pid: int = 0
    zookeeper: ProcessStatus | None = None
    bookies: tuple[ProcessStatus, ...] = ()
    format_version: int = _FORMAT_VERSION


def up(
    directory: str | Path,
    bookies: int = 3,
    *,
    zookeeper_heap_bytes: int | None = None,
    lost_bookie_delay_s: float = LOST_BOOKIE_DELAY_S,
    racks: int = 0,
) -> ClusterStatus:
    """Start a cluster that keeps running, on the data in ``directory`` if there are any.

    With data it also runs if bookies refuse to start: they are not ``running``, their ``note`` says
    why, and they are started again every ten to thirty seconds. A bookie that ends later is started
    again, unless it was asked to (SIGTERM), or no start changes why (exit codes 2 and 4).

    ``zookeeper_heap_bytes``, ``lost_bookie_delay_s``, ``racks``: as in ``LocalCluster``.

    Raises ConfigurationError if one runs there already, and whatever ``LocalCluster`` raises.
    """
    cluster = LocalCluster(
        bookies,
        directory,
        keeper=True,
        zookeeper_heap_bytes=zookeeper_heap_bytes,
        lost_bookie_delay_s=lost_bookie_delay_s,
        racks=racks,
        _daemon=True,
    )
    state = cluster.directory / STATE_NAME
    try:
        states = cluster.processes.states()
        status_now = ClusterStatus(
            directory=str(cluster.directory),
            running=True,
            uri=cluster.uri,
            supervisor_pid=cluster.processes.supervisor_pid,
            zookeeper=ProcessStatus(
                ZOOKEEPER, f"{HOST}:{cluster.zookeeper_port}", states[ZOOKEEPER].pid
            ),
            bookies=tuple(
                ProcessStatus(
                    bookie_id,
                    cluster.bookie_address(index),
                    cluster.bookie_pid(index),
                    cluster.bookie_admin_address(index),
                    running=bookie_id not in cluster.refused,
                    note=cluster.refused.get(bookie_id, ""),
                )
                for index, bookie_id in enumerate(cluster.bookie_ids)
            ),
        )
        temporary = state.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(status_now)))
        temporary.replace(state)
        cluster.detach(state)
    except BaseException:
        state.unlink(missing_ok=True)
        cluster.stop()
        # Interrupted behind the detaching, it hears no request, and nobody else knows its number.
        _end(cluster.directory, cluster.processes.supervisor_pid)
        raise
    return status_now


def status(directory: str | Path) -> ClusterStatus:
    """What runs in the directory. Raises CorruptionError if the state file is damaged,
    ConfigurationError if another program holds it."""
    path = absolute(directory)
    if not _is_locked(path):
        return ClusterStatus(directory=str(path), running=False)
    try:
        data = (path / STATE_NAME).read_bytes()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"a cluster runs in {path}, but another program holds it: it is starting or stopping, "
            "or it is a LocalCluster that ends with its program"
        ) from error
    try:
        found = msgspec.json.decode(data, type=ClusterStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"state file {path / STATE_NAME} is damaged: {error}") from error
    zookeeper = found.zookeeper
    return msgspec.structs.replace(
        found,
        zookeeper=_checked(zookeeper, found.supervisor_pid) if zookeeper else None,
        bookies=tuple(_checked(bookie, found.supervisor_pid) for bookie in found.bookies),
    )


def down(directory: str | Path) -> bool:
    """Stop the cluster in the directory: bookies drain, then ZooKeeper ends. The data stay.

    False if none was running. Raises LedgerError if it does not end in time, ConfigurationError if
    another program or user holds it.
    """
    found = status(directory)
    if not found.running:
        return False
    return _end(Path(found.directory), found.supervisor_pid)


def _end(directory: Path, supervisor_pid: int) -> bool:
    """Have the supervisor end its cluster; False if it has ended. Raises as ``down``."""
    if not _is_locked(directory):
        return False
    try:
        os.kill(supervisor_pid, signal.SIGTERM)
    except ProcessLookupError:
        return False  # it ended since the look above
    except PermissionError as error:
        raise ConfigurationError(
            f"the cluster in {directory} is another user's (supervisor: process "
            f"{supervisor_pid}): have that user end it"
        ) from error
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while _is_locked(directory):
        if time.monotonic() > deadline:
            raise LedgerError(
                f"the cluster in {directory} did not stop within {DOWN_TIMEOUT_S:g} s "
                f"(supervisor: process {supervisor_pid})"
            )
        time.sleep(_POLL_S)
    return True


def _is_locked(directory: Path) -> bool:
    try:
        lock = os.open(directory / LOCK_NAME, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def _checked(process: ProcessStatus, supervisor_pid: int) -> ProcessStatus:
    return msgspec.structs.replace(process, running=_is_child(process.pid, supervisor_pid))


def _is_child(pid: int, parent: int) -> bool:
    """True if the process runs and is the supervisor's own: a process id may be in use again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
        try:
            os.kill(pid, 0)  # no /proc here: the number is all there is
        except ProcessLookupError:
            return False
        return True
    state, parent_pid = stat.rpartition(")")[2].split()[:2]
    return state != "Z" and int(parent_pid) == parent
