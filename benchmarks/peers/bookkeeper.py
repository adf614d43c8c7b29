"""Apache BookKeeper on loopback: bookies with a synced journal, under the benchmark's load."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.drivers import rounds_of, run_driver
from benchmarks.peers.jars import BOOKKEEPER, fetched
from benchmarks.peers.java import compiled
from benchmarks.rows import Round, Row, row_of_rounds
from spark_ledger.errors import LedgerError
from spark_ledger.local import LocalCluster
from spark_ledger.local.ports import HOST, free_port
from spark_ledger.local.processes import log_tail

START_TIMEOUT_S = 60.0
_POLL_S = 0.2
_READY = re.compile(rb"Started component bookie-server|started bookie", re.IGNORECASE)

_SETTINGS = """\
bookiePort={port}
bookieId={name}
advertisedAddress={host}
allowLoopback=true
metadataServiceUri={uri}
journalDirectories={directory}/journal
ledgerDirectories={directory}/ledgers
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
dbStorage_writeCacheMaxSizeMb=128
dbStorage_readAheadCacheMaxSizeMb=64
dbStorage_rocksDB_blockCacheSize=33554432
journalSyncData=true
journalMaxGroupWaitMSec=1
journalPreAllocSizeMB=64
nettyMaxFrameSizeBytes=20971520
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
httpServerEnabled=false
"""


class BookKeeper:
    """Bookies on the ZooKeeper of a local cluster that has no bookies of its own."""

    def __init__(self, cluster: LocalCluster, bookies: int) -> None:
        self._jars = fetched(BOOKKEEPER)
        self._cluster = cluster
        self.processes = cluster.processes
        self.directory = cluster.directory
        self.uri = f"zk+hierarchical://{HOST}:{cluster.zookeeper_port}/bookkeeper"
        self._configs = {f"bk-{n}": self._configure(f"bk-{n}") for n in range(bookies)}
        self._format(next(iter(self._configs.values())))
        for name in self._configs:
            self._spawn(name)
        for name in self._configs:
            self._await(name)

    def _configure(self, name: str) -> Path:
        home = self.directory / name
        home.mkdir()
        config = home / "bookie.conf"
        config.write_text(
            _SETTINGS.format(port=free_port(), name=name, host=HOST, uri=self.uri, directory=home)
        )
        return config

    def _format(self, config: Path) -> None:
        shell = ["java", "-cp", f"{self._jars}/*", "org.apache.bookkeeper.bookie.BookieShell"]
        done = subprocess.run(
            [*shell, "-conf", str(config), "metaformat", "-nonInteractive", "-force"],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise LedgerError(f"BookKeeper's metadata cannot be formatted:\n{done.stderr[-2000:]}")

    def _log(self, name: str) -> Path:
        return self._configs[name].with_name("log")

    def _spawn(self, name: str) -> None:
        argv = ["java", "-Xmx768m", "-XX:MaxDirectMemorySize=1g", "-cp", f"{self._jars}/*"]
        argv += ["org.apache.bookkeeper.server.Main", "--conf", str(self._configs[name])]
        self._log(name).unlink(missing_ok=True)
        self.processes.spawn(name, argv, log=self._log(name))

    def _await(self, name: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        log = self._log(name)
        while not (log.exists() and _READY.search(log.read_bytes())):
            if not self.processes.is_running(name) or time.monotonic() > deadline:
                raise LedgerError(f"BookKeeper's bookie does not start:\n{log_tail(log)}")
            time.sleep(_POLL_S)

    def kill(self, name: str) -> None:
        """Kill a bookie, and wait until it is gone."""
        self.processes.signal(name, signal.SIGKILL)
        self.processes.wait_exit(name)

    def restart(self, name: str) -> None:
        """Start a killed bookie on its disk."""
        self._spawn(name)
        self._await(name)

    def driver(self, case: Case) -> list[str]:
        """The command line of its driver."""
        classpath = compiled("BookKeeperDriver", self._jars)
        heap = ["-Xmx1g", "-XX:MaxDirectMemorySize=2g"]
        return ["java", *heap, "-cp", classpath, "BookKeeperDriver", self.uri, *case.arguments()]


@contextmanager
def _running(bookies: int) -> Iterator[BookKeeper]:
    with LocalCluster(bookies=0) as cluster:
        yield BookKeeper(cluster, bookies)


def throughput_rows(case: Case) -> Iterator[Row]:
    """The append row and the read row of a case."""
    with _running(case.ensemble[0]) as peer:
        rounds = run_driver(peer.processes, "driver", peer.driver(case), timeout_s=case.timeout_s())
    for op in case.ops:
        yield row_of_rounds(
            rounds_of(rounds, op),
            bench="raw",
            system="bookkeeper",
            entry_bytes=case.entry_bytes,
            in_flight=case.in_flight if op == "append" else None,
            ensemble=case.ensemble,
        )


def failover_row(case: Case) -> Row:
    """The longest gap while a bookie of the ensemble is killed. There is one spare bookie."""
    rounds: list[Round] = []
    with _running(case.ensemble[0] + 1) as peer:
        for number in range(case.rounds):
            killed: list[str] = []

            def kill(bookies: list[str], killed: list[str] = killed) -> None:
                killed.append(bookies[0])
                peer.kill(bookies[0])

            rounds += run_driver(
                peer.processes,
                f"driver-{number}",
                peer.driver(case),
                timeout_s=case.timeout_s(),
                on_writing=kill,
            )
            for name in killed:
                peer.restart(name)
    return row_of_rounds(
        rounds,
        bench="raw",
        system="bookkeeper",
        entry_bytes=case.entry_bytes,
        in_flight=case.in_flight,
        ensemble=case.ensemble,
    )
