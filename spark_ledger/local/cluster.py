"""LocalCluster: a real ZooKeeper and real bookies on this machine, as child processes."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from spark_ledger.errors import BookieUnavailableError, ConfigurationError, MetadataUnavailableError
from spark_ledger.limits import MIB
from spark_ledger.limits.repair import LOST_BOOKIE_DELAY_S, OPEN_LEDGER_GRACE_S
from spark_ledger.local import bookie, zookeeper
from spark_ledger.local.files import absolute
from spark_ledger.local.ports import HOST, free_port, is_free
from spark_ledger.local.processes import POLL_S, Processes, log_tail
from spark_ledger.metadata.notices import notice_path

START_TIMEOUT_S: Final = 60.0
"""All processes of a start together. Two seconds are usual; a busy test machine takes longer."""

PORT_ATTEMPTS: Final = 5
"""How often a process is started on another port, because its own was taken meanwhile."""

_CANNOT_LISTEN: Final = "cannot listen on"
"""What a bookie says last when its port is taken."""

REFUSED_PAUSE_S: Final = 10.0
"""A bookie that refused to start is started again so late: who does what it says needs its lock."""

_LOG_PREFIX: Final = re.compile(r"^\S+ \S+ [A-Z]+ \S+: ")
"""Time, level and logger, before what a bookie says."""

ROOT: Final = "/ledgers"
ZOOKEEPER: Final = "zookeeper"


@dataclass(slots=True)
class _Server:
    """A process that may have to be started again on another port."""

    name: str
    directory: Path
    port: int = 0

    @property
    def log(self) -> Path:
        return self.directory / "log"


class LocalCluster:
    """Starts on construction, or raises; ``stop`` or the end of the ``with`` block ends it all.

    ``bookies``: how many to start; with a directory that was used before, all that are in it.
    ``directory``: where data and logs stay; None is a temporary one that is removed at the end.
    ``keeper``: have one of the bookies run the keeper, which ends what dead writers leave.
    ``zookeeper_heap_bytes``: the memory in which ZooKeeper keeps all metadata; None is a share of
    the machine's. When it is full, ZooKeeper ends, is started again, and clients' errors say so.

    ``lost_bookie_delay_s``: with a keeper, the copies of a bookie that is gone for so long are made
    again on others. ``open_ledger_grace_s``: an open ledger that names such a bookie for so long,
    and whose writer adds nothing, is closed (rule R3). ``racks``: deal the bookies out to so many
    racks, /rack-0, /rack-1, ...; with 0 each is where it was the last time.
    ``collection_interval_s``: bookies give the space of deleted ledgers back so often.

    No process outlives the caller, even one that is killed. Thread-safe, but start and stop one
    bookie from one thread at a time. Raises ConfigurationError if Java, pyspark or the bookie's
    packages are missing, and shows the end of the log of a process that dies at start.
    """

    def __init__(
        self,
        bookies: int = 3,
        directory: str | Path | None = None,
        *,
        keeper: bool = False,
        zookeeper_heap_bytes: int | None = None,
        lost_bookie_delay_s: float = LOST_BOOKIE_DELAY_S,
        open_ledger_grace_s: float = OPEN_LEDGER_GRACE_S,
        racks: int = 0,
        collection_interval_s: float = bookie.COLLECTION_INTERVAL_S,
        _daemon: bool = False,
    ) -> None:
        if not isinstance(bookies, int) or bookies < 0:
            raise ConfigurationError(f"bookies is {bookies!r}: it must be a number from 0 on")
        self._heap_bytes = _checked_heap(zookeeper_heap_bytes)
        if bookies > 0:
            bookie.check_installed()
        temporary = directory is None
        self.directory = _prepared(directory)
        self._durable = not temporary
        self._keeper = keeper
        self._lost_bookie_delay_s = lost_bookie_delay_s
        self._open_ledger_grace_s = open_ledger_grace_s
        self._racks = racks
        self._collection_interval_s = collection_interval_s
        self._processes = Processes(self.directory, remove=temporary, daemon=_daemon)
        self._zookeeper = _Server(ZOOKEEPER, self.directory / ZOOKEEPER)
        self._bookies: list[_Server] = []
        self.refused: dict[str, str] = {}
        """Bookies that did not start, and their last words. Of a cluster with data that is to be
        detached the others go on: what a bookie asks for is mostly a command that needs them."""
        self._goes_on = _daemon and zookeeper.has_data(self._zookeeper.directory)
        try:
            self._start_all(max(bookies, bookie.count_existing(self.directory)))
        except BaseException:
            self.stop()
            raise

    # -- what it is --------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """The metadata URI, ``zk://127.0.0.1:<port>/ledgers``."""
        return f"zk://{HOST}:{self._zookeeper.port}{ROOT}"

    @property
    def bookie_ids(self) -> list[str]:
        """Ids by index, in order of first start: ``bookie-0`` ...; stopped ones included."""
        return [server.name for server in self._bookies]

    @property
    def zookeeper_port(self) -> int:
        return self._zookeeper.port

    def bookie_address(self, index: int) -> str:
        """``host:port`` of the bookie's service."""
        return f"{HOST}:{self._bookie(index).port}"

    def bookie_admin_address(self, index: int) -> str:
        """``host:port`` of the bookie's metrics and status."""
        server = self._bookie(index)
        return f"{HOST}:{bookie.read_ports(server.directory).admin_port}"

    def bookie_log(self, index: int) -> Path:
        """Where the bookie writes its log."""
        return self._bookie(index).log

    def bookie_directory(self, index: int) -> Path:
        """Where the bookie's config, journal and ledgers are."""
        return self._bookie(index).directory

    def bookie_pid(self, index: int) -> int:
        """Process id of the bookie, or of its last process."""
        return self._processes.states()[self._bookie(index).name].pid

    def is_bookie_running(self, index: int) -> bool:
        """True for a paused one too."""
        return self._processes.is_running(self._bookie(index).name)

    @property
    def processes(self) -> Processes:
        """The processes by name: ``zookeeper``, ``bookie-0`` ..."""
        return self._processes

    # -- faults and changes ------------------------------------------------------------------------

    def kill_bookie(self, index: int) -> None:
        """SIGKILL; returns once it is gone. Fine if it is not running."""
        self._signal_and_wait(self._bookie(index).name, signal.SIGKILL)

    def stop_bookie(self, index: int) -> int:
        """SIGTERM: it drains and withdraws. Returns its exit code."""
        return self._signal_and_wait(self._bookie(index).name, signal.SIGTERM)

    def start_bookie(self, index: int) -> None:
        """Start a stopped or killed bookie on its disk, on its old port if that is free; returns
        once it serves."""
        server = self._bookie(index)
        if self._processes.is_running(server.name):
            raise ConfigurationError(f"{server.name} is running already")
        self._begin_bookie(server)
        self._await_bookies([server])

    def pause_bookie(self, index: int) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        self._processes.signal(self._bookie(index).name, signal.SIGSTOP)

    def resume_bookie(self, index: int) -> None:
        """SIGCONT."""
        self._processes.signal(self._bookie(index).name, signal.SIGCONT)

    def add_bookie(self) -> int:
        """Start one more, empty bookie; its index."""
        self._processes.states()  # raises if the cluster is stopped, before a directory is made
        server = self._new_bookie()
        self._begin_bookie(server)
        self._await_bookies([server])
        return len(self._bookies) - 1

    def kill_zookeeper(self) -> None:
        """SIGKILL; returns once it is gone. Its data stay."""
        self._signal_and_wait(ZOOKEEPER, signal.SIGKILL)

    def start_zookeeper(self) -> None:
        """Start it again on its data and its port, which the URI names; returns once it serves."""
        if self._processes.is_running(ZOOKEEPER):
            raise ConfigurationError("ZooKeeper is running already")
        self._begin_zookeeper()
        if not self._zookeeper_ready():
            raise self._zookeeper_error()

    def pause_zookeeper(self) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        self._processes.signal(ZOOKEEPER, signal.SIGSTOP)

    def resume_zookeeper(self) -> None:
        """SIGCONT."""
        self._processes.signal(ZOOKEEPER, signal.SIGCONT)

    def stop(self) -> None:
        """End every process, and remove a temporary directory. Idempotent.

        With a directory of its own the cluster drains first; a temporary one is simply killed.
        """
        self._processes.stop(graceful=self._durable)
        if not self._durable:  # the supervisor does it too, unless it was killed
            shutil.rmtree(self.directory, ignore_errors=True)

    def detach(self, state_file: Path) -> None:
        """Leave the cluster running when this process ends (``spark_ledger.local.up``). Nobody can
        start its bookies then, so its supervisor does, as that of a machine of its own would."""
        for server in self._bookies:
            if server.name not in self.refused:
                self._processes.keep(
                    server.name,
                    notice=_notice(server),
                    sayings={},
                    unless=bookie.STAYS_ENDED,
                )
        self._processes.detach(state_file)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"LocalCluster(uri={self.uri!r}, bookies={len(self._bookies)})"

    # -- starting ----------------------------------------------------------------------------------

    def _start_all(self, bookies: int) -> None:
        """ZooKeeper and the bookies at the same time; the bookies wait for it by themselves."""
        for _ in range(bookies):
            self._new_bookie()
        self._zookeeper.port = zookeeper.read_port(self._zookeeper.directory) or free_port()
        for _ in range(PORT_ATTEMPTS):
            self._begin_zookeeper()
            for server in self._bookies:
                self._begin_bookie(server)
            if self._zookeeper_ready():
                break
            if is_free(self._zookeeper.port):  # then the port is not why it ended
                raise self._zookeeper_error()
            self._zookeeper.port = free_port()
            for server in self._bookies:
                self._signal_and_wait(server.name, signal.SIGKILL)
        else:
            raise self._zookeeper_error()
        self._await_bookies(self._bookies)

    def _begin_zookeeper(self) -> None:
        server = self._zookeeper
        config = zookeeper.write_config(server.directory, server.port)
        argv = zookeeper.command(config, durable=self._durable, heap_bytes=self._heap_bytes)
        self._processes.spawn(server.name, argv, log=server.log, env=zookeeper.ENVIRONMENT)

    def _zookeeper_ready(self) -> bool:
        """Wait until it serves, and have it kept from then on; False if it ended instead."""
        server, deadline = self._zookeeper, time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if zookeeper.answers(server.directory, server.port):
                self._processes.keep(
                    server.name,
                    notice=notice_path(server.port),
                    sayings={zookeeper.OUT_OF_MEMORY: self._heap_is_full()},
                )
                return True
            if not self._processes.is_running(server.name):
                return False
            time.sleep(POLL_S)
        raise MetadataUnavailableError(
            f"the local ZooKeeper does not serve after {START_TIMEOUT_S:g} s; the end of its log "
            f"{server.log}:\n{log_tail(server.log)}"
        )

    def _heap_is_full(self) -> str:
        return (
            f"the local ZooKeeper ended: its heap of {self._heap_bytes // MIB} MiB is full. Give "
            "it more: ledger local down, then ledger local up --zookeeper-heap "
            f"{2 * self._heap_bytes // MIB}m (or zookeeper_heap_bytes of LocalCluster)"
        )

    def _zookeeper_error(self) -> MetadataUnavailableError:
        server = self._zookeeper
        if self._processes.states()[server.name].exit_code == zookeeper.OUT_OF_MEMORY:
            return MetadataUnavailableError(self._heap_is_full())
        busy = "" if is_free(server.port) else f" (port {server.port} is in use)"
        return MetadataUnavailableError(
            f"the local ZooKeeper ended while starting{busy}; the end of its log {server.log}:\n"
            f"{log_tail(server.log)}"
        )

    def _new_bookie(self) -> _Server:
        name = bookie.name_of(len(self._bookies))
        server = _Server(name, self.directory / name)
        server.directory.mkdir(exist_ok=True)
        self._bookies.append(server)
        return server

    def _rack(self, server: _Server) -> str:
        if self._racks:
            return f"/rack-{self._bookies.index(server) % self._racks}"
        return bookie.read_rack(server.directory)

    def _begin_bookie(self, server: _Server, *, on_new_ports: bool = False) -> None:
        before = bookie.Ports() if on_new_ports else bookie.read_ports(server.directory)
        ports = bookie.Ports(
            before.port if before.port and is_free(before.port) else free_port(),
            before.admin_port if before.admin_port and is_free(before.admin_port) else free_port(),
        )
        server.port = ports.port
        config = bookie.write_config(
            server.directory,
            server.name,
            self.uri,
            ports,
            keeper=self._keeper,
            lost_bookie_delay_s=self._lost_bookie_delay_s,
            open_ledger_grace_s=self._open_ledger_grace_s,
            rack=self._rack(server),
            collection_interval_s=self._collection_interval_s,
        )
        bookie.ready_file(server.directory).unlink(missing_ok=True)
        argv, env = bookie.command(sys.executable, server.directory, config)
        self._processes.spawn(server.name, argv, log=server.log, env=env)

    def _await_bookies(self, servers: Sequence[_Server]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        attempts = dict.fromkeys((server.name for server in servers), 1)
        waiting = list(servers)
        while waiting:
            states = self._processes.states()
            for server in list(waiting):
                exit_code = states[server.name].exit_code
                if bookie.ready_file(server.directory).exists():
                    waiting.remove(server)
                elif exit_code is not None:
                    # Whoever took the port may be gone again, so its own last words decide.
                    lost_a_port = _CANNOT_LISTEN in log_tail(server.log).rpartition("\n")[2]
                    if not lost_a_port or attempts[server.name] == PORT_ATTEMPTS:
                        if not self._goes_on:
                            raise _bookie_error(server, f"ended with exit code {exit_code}")
                        self._try_later(server, exit_code)
                        waiting.remove(server)
                        continue
                    attempts[server.name] += 1
                    self._begin_bookie(server, on_new_ports=True)
                elif time.monotonic() > deadline:
                    raise _bookie_error(server, f"does not serve after {START_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def _try_later(self, server: _Server, exit_code: int) -> None:
        """Go on without a bookie, and have it started again now and then."""
        last = log_tail(server.log).rpartition("\n")[2]
        said = _LOG_PREFIX.sub("", last) or f"exit code {exit_code}"
        self.refused[server.name] = f"did not start: {said}"
        self._processes.keep(
            server.name,
            notice=_notice(server),
            sayings={exit_code: self.refused[server.name]},
            pause_s=REFUSED_PAUSE_S,
        )

    def _bookie(self, index: int) -> _Server:
        if not isinstance(index, int) or not 0 <= index < len(self._bookies):
            raise ConfigurationError(
                f"there is no bookie {index!r}: this cluster has {len(self._bookies)}, from 0"
            )
        return self._bookies[index]

    def _signal_and_wait(self, name: str, signal_number: signal.Signals) -> int:
        self._processes.signal(name, signal_number)
        if signal_number is not signal.SIGKILL:
            self._processes.signal(name, signal.SIGCONT)  # a paused one would sleep through it
        return self._processes.wait_exit(name)


def _notice(server: _Server) -> Path:
    """Where the supervisor says why a bookie ended."""
    return server.directory / "ended"


def _checked_heap(given: int | None) -> int:
    if given is None:
        return zookeeper.default_heap_bytes()
    if not isinstance(given, int) or given < zookeeper.HEAP_BYTES_MIN:
        raise ConfigurationError(
            f"zookeeper_heap_bytes is {given!r}: it must be a number from "
            f"{zookeeper.HEAP_BYTES_MIN} on"
        )
    return given


def _prepared(directory: str | Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="spark-ledger-")).resolve()
    if not isinstance(directory, str | Path):
        raise ConfigurationError(f"directory is a path, not {directory!r}")
    path = absolute(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"directory {path} cannot be made: {error}") from error
    return path


def _bookie_error(server: _Server, what: str) -> BookieUnavailableError:
    return BookieUnavailableError(
        f"{server.name} {what} while starting; the end of its log {server.log}:\n"
        f"{log_tail(server.log)}"
    )
