"""Stage: the cluster, the relays and the client processes of one run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from unittest import mock

from spark_ledger.errors import BookieUnavailableError, LedgerError
from spark_ledger.local import LocalCluster
from spark_ledger.local import bookie as local_bookie
from spark_ledger.local.ports import HOST
from spark_ledger.local.processes import log_tail
from tests.chaos import volatile, wall_clock
from tests.chaos.relay import Relays
from tests.history.model import History

ROLES = (
    ("write", "commit", "shared", "read-stream", "recover"),
    ("write", "write", "shared", "follow", "read"),
    ("read", "read", "recover", "delete", "commit"),
)
"""What each client process does."""

CLIENTS = len(ROLES)
DIRECTORIES = ("journal", "ledgers")
"""Of a bookie: all that it keeps."""
STOP_TIMEOUT_S = 30.0
ZOOKEEPER_OF_BOOKIES = "bookies>zookeeper"


class RelayedCluster(LocalCluster):
    """A local cluster whose bookies reach ZooKeeper through a relay, and lose all unsynced data
    when they are killed."""

    def __init__(self, bookies: int, relays: Relays) -> None:
        port = relays.add(ZOOKEEPER_OF_BOOKIES, lambda: self.zookeeper_port)
        self._relayed_uri = f"zk://{HOST}:{port}/ledgers"
        super().__init__(bookies)

    @property
    def uri(self) -> str:
        """The URI that bookies use, through the relay."""
        return self._relayed_uri

    @property
    def direct_uri(self) -> str:
        """The URI of ZooKeeper itself."""
        return super().uri


@dataclass(eq=False)
class ClientProcess:
    """One position among the clients, and the process that has it now."""

    index: int
    generation: int = 0
    paused: bool = False
    ended_on_purpose: bool = False

    @property
    def name(self) -> str:
        """The process's name in histories; a new one after each death."""
        return f"c{self.index}g{self.generation}"

    @property
    def process(self) -> str:
        """The name under which the supervisor knows it."""
        return f"client-{self.name}"


@dataclass(eq=False)
class Stage:
    """All processes of a run. Leaving it ends every process and removes every file."""

    seed: int
    bookies: int = 4
    appends_per_s: float = 150.0
    relays: Relays = field(default_factory=Relays)
    clients: list[ClientProcess] = field(default_factory=list)
    down: set[int] = field(default_factory=set)
    """Bookies that were killed or stopped, and not started again."""
    histories: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._patch = mock.patch.object(local_bookie, "command", volatile.command)

    def __enter__(self) -> Stage:
        self._patch.start()
        try:
            self.cluster = RelayedCluster(self.bookies, self.relays)
            for client in range(CLIENTS):
                self.relays.add(f"c{client}>zookeeper", lambda: self.cluster.zookeeper_port)
                for bookie in range(self.bookies):
                    self.relays.add(link(client, bookie), self._port_of(bookie))
        except BaseException:
            self._patch.stop()
            self.relays.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._patch.stop()
        self.cluster.stop()
        self.relays.close()

    def _port_of(self, bookie: int) -> Callable[[], int]:
        return lambda: int(self.cluster.bookie_address(bookie).rpartition(":")[2])

    def cut_power(self, bookies: Iterable[int]) -> None:
        """Kill all bookies at the same moment, so that none can sync what it has answered."""
        hit = list(bookies)
        states = self.cluster.processes.states()
        running = [states[self.cluster.bookie_ids[bookie]] for bookie in hit]
        # One by one through the supervisor would leave the last of them time to sync.
        for state in running:
            if state.exit_code is None:
                os.kill(state.pid, signal.SIGKILL)
        for bookie in hit:
            self.cluster.kill_bookie(bookie)

    def start_bookies(self, bookies: Sequence[int]) -> None:
        """Start the bookies that do not run, in parallel. Returns once all serve."""
        stopped = [b for b in bookies if not self.cluster.is_bookie_running(b)]
        with ThreadPoolExecutor(max_workers=max(1, len(stopped))) as pool:
            list(pool.map(self.cluster.start_bookie, stopped))
        self.down.difference_update(bookies)

    def copy_directories(self, bookie: int) -> Path:
        """Copy what a bookie has on its disk, as an operator does while it is stopped. It runs
        again when this returns."""
        self.cut_power([bookie])
        copy = self.cluster.bookie_directory(bookie) / "copy"
        for name in DIRECTORIES:
            shutil.copytree(copy.parent / name, copy / name)
        self.start_bookies([bookie])
        return copy

    def try_copy(self, bookie: int, copy: Path) -> None:
        """Start a bookie with an older copy in place of its files; then again with its own.

        Raises AssertionError if the copy is not refused as one.
        """
        self.down.add(bookie)
        self.cut_power([bookie])
        own = copy.with_name("own")
        for name in DIRECTORIES:
            _move_files(copy.parent / name, own / name)
            _move_files(copy / name, copy.parent / name)
        said = "it serves"
        try:
            self.cluster.start_bookie(bookie)
        except BookieUnavailableError as error:
            said = str(error)
        self.cluster.kill_bookie(bookie)
        for name in DIRECTORIES:
            _move_files(copy.parent / name, copy / name)
            _move_files(own / name, copy.parent / name)
        assert "is an older copy" in said, f"an older copy of bookie {bookie} started: {said}"
        shutil.rmtree(copy)
        shutil.rmtree(own)
        self.start_bookies([bookie])

    # -- clients -----------------------------------------------------------------------------------

    def start_clients(self) -> None:
        """Start all of them."""
        for index in range(CLIENTS):
            self.clients.append(ClientProcess(index))
            self._spawn(self.clients[-1])

    def kill_client(self, index: int) -> None:
        """Kill a client, and wait until it is gone."""
        client = self.clients[index]
        client.ended_on_purpose = True
        self.cluster.processes.signal(client.process, signal.SIGKILL)
        self.cluster.processes.wait_exit(client.process)

    def restart_client(self, index: int) -> None:
        """Start a new process with the same roles and a new name."""
        self.clients[index] = ClientProcess(index, self.clients[index].generation + 1)
        self._spawn(self.clients[index])

    def signal_client(self, index: int, number: signal.Signals) -> None:
        """Send a signal to a client (see ``client``): control it, pause it, or let it go on. Waits
        until a new process has its handlers, because it would die of the signal before."""
        client = self.clients[index]
        steers = number in (signal.SIGUSR1, signal.SIGUSR2)
        if steers and not self._history_of(client).exists():
            return
        if number in (signal.SIGSTOP, signal.SIGCONT):
            client.paused = number is signal.SIGSTOP
        self.cluster.processes.signal(client.process, number)

    def _history_of(self, client: ClientProcess) -> Path:
        return self.cluster.directory / f"history-{client.name}.jsonl"

    def _spawn(self, client: ClientProcess) -> None:
        directory = self.cluster.directory
        history = self._history_of(client)
        self.histories.append(history)
        bookies = {
            bookie_id: f"{HOST}:{self.relays.links[link(client.index, bookie)].port}"
            for bookie, bookie_id in enumerate(self.cluster.bookie_ids)
        }
        metadata_port = self.relays.links[f"c{client.index}>zookeeper"].port
        argv = [sys.executable, "-m", "tests.chaos.client", "--name", client.name]
        argv += [
            "--number",
            str(len(self.histories)),
            "--seed",
            str(self.seed * 1000 + client.index),
        ]
        argv += ["--metadata", f"zk://{HOST}:{metadata_port}/ledgers"]
        argv += ["--bookies", json.dumps(bookies), "--history", str(history)]
        argv += ["--appends-per-s", str(self.appends_per_s)]
        for role in ROLES[client.index]:
            argv += ["--role", role]
        root = str(Path(__file__).parent.parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        log = directory / f"{client.process}.log"
        env = {"PYTHONPATH": path, **wall_clock.environment(self._clock_of(client))}
        self.cluster.processes.spawn(client.process, argv, log=log, env=env)

    def set_clocks(self, bookies: Iterable[int], clients: Iterable[int], seconds: float) -> None:
        """Set the wall clock of these processes ahead or back."""
        for bookie in bookies:
            wall_clock.jump(self.cluster.bookie_directory(bookie), seconds)
        for client in clients:
            wall_clock.jump(self._clock_of(self.clients[client]), seconds)

    def _clock_of(self, client: ClientProcess) -> Path:
        directory = self.cluster.directory / f"clock-{client.name}"
        directory.mkdir(exist_ok=True)
        return directory

    def heal(self) -> None:
        """End every fault. Returns once all servers serve."""
        self.relays.heal(self.relays.links)
        if not self.cluster.processes.is_running("zookeeper"):
            self.cluster.start_zookeeper()
        self.cluster.resume_zookeeper()
        for bookie in range(self.bookies):
            self.cluster.resume_bookie(bookie)
        self.start_bookies(sorted(self.down))
        for index, client in enumerate(self.clients):
            self.signal_client(index, signal.SIGCONT)
            if client.ended_on_purpose:
                self.restart_client(index)

    def stop_clients(self) -> list[str]:
        """Ask all clients to finish, and wait. Returns what is wrong with those that did not."""
        for client in self.clients:
            self.cluster.processes.signal(client.process, signal.SIGTERM)
        faults = []
        for client in self.clients:
            try:
                code = self.cluster.processes.wait_exit(client.process, STOP_TIMEOUT_S)
            except LedgerError as error:
                faults.append(f"{client.name} does not stop: {error}")
                self.cluster.processes.signal(client.process, signal.SIGKILL)
                self.cluster.processes.wait_exit(client.process)
                continue
            still_starting = not self._history_of(client).exists()
            if code != 0 and not (still_starting and code == -signal.SIGTERM):
                log = self.cluster.directory / f"{client.process}.log"
                faults.append(f"{client.name} ended with exit code {code}: {log_tail(log)}")
        return faults

    def bookie_deaths(self) -> list[str]:
        """Bookies that are gone although nobody ended them."""
        return [
            f"{bookie_id} died by itself; the end of its log: "
            f"{log_tail(self.cluster.bookie_log(index))}"
            for index, bookie_id in enumerate(self.cluster.bookie_ids)
            if index not in self.down and not self.cluster.is_bookie_running(index)
        ]

    def client_deaths(self) -> list[str]:
        """Clients that are gone although nobody ended them."""
        return [
            f"{client.name}: {log_tail(self.cluster.directory / f'{client.process}.log')}"
            for client in self.clients
            if not client.ended_on_purpose and not self.cluster.processes.is_running(client.process)
        ]

    def bookie_addresses(self) -> dict[str, str]:
        """Addresses of the bookies themselves, without relays."""
        return {
            bookie_id: self.cluster.bookie_address(index)
            for index, bookie_id in enumerate(self.cluster.bookie_ids)
        }

    def keep(self, directory: Path) -> None:
        """Copy histories and logs out of the temporary directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for path in [*self.histories, *self.cluster.directory.glob("client-*.log")]:
            if path.exists():
                shutil.copy(path, directory / path.name)
        for index, bookie_id in enumerate(self.cluster.bookie_ids):
            shutil.copy(self.cluster.bookie_log(index), directory / f"{bookie_id}.log")

    def history(self) -> History:
        """The records of all clients, merged in order of time."""
        return History.load(*(path for path in self.histories if path.exists()))


def _move_files(source: Path, target: Path) -> None:
    """Move what is in a directory into another one, which stays the same directory."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        path.rename(target / path.name)


def link(client: int, bookie: int) -> str:
    """The name of the link from a client to a bookie."""
    return f"c{client}>bookie{bookie}"
