"""Kafka on loopback: three brokers (KRaft), replication 3, acks=all, under the benchmark's load."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.drivers import rounds_of, run_driver
from benchmarks.peers.jars import KAFKA, fetched
from benchmarks.peers.java import compiled
from benchmarks.rows import Row, row_of_rounds
from spark_ledger.errors import LedgerError
from spark_ledger.local.ports import HOST, free_port, is_free
from spark_ledger.local.processes import Processes, log_tail

BROKERS = 3
START_TIMEOUT_S = 60.0
_POLL_S = 0.2

_SETTINGS = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}
num.partitions={partitions}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
message.max.bytes=4194304
replica.fetch.max.bytes=4194304
file.delete.delay.ms=1000
"""


class Kafka:
    """Brokers in one directory. They flush to disk when the kernel does, which is Kafka's
    default."""

    def __init__(self, processes: Processes, *, partitions: int) -> None:
        self._jars = fetched(KAFKA)
        self.processes = processes
        self.directory = processes.directory
        nodes = range(1, BROKERS + 1)
        self._ports = {node: free_port() for node in nodes}
        controllers = {node: free_port() for node in nodes}
        self.brokers = ",".join(f"{HOST}:{port}" for port in self._ports.values())
        voters = ",".join(f"{node}@{HOST}:{port}" for node, port in controllers.items())
        cluster_id = self._tool("random-uuid").strip().splitlines()[-1]
        for node in nodes:
            self._config(node).write_text(
                _SETTINGS.format(
                    node=node,
                    voters=voters,
                    host=HOST,
                    partitions=partitions,
                    port=self._ports[node],
                    controller_port=controllers[node],
                    directory=self.directory / f"log-{node}",
                )
            )
            self._tool("format", "-t", cluster_id, "-c", str(self._config(node)))
        for node in nodes:
            self._spawn(node)
        for node in nodes:
            self._await(node)

    def _config(self, node: int) -> Path:
        return self.directory / f"broker-{node}.properties"

    def _log(self, node: int) -> Path:
        return self.directory / f"broker-{node}.out"

    def _tool(self, *arguments: str) -> str:
        done = subprocess.run(
            ["java", "-cp", f"{self._jars}/*", "kafka.tools.StorageTool", *arguments],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise LedgerError(f"Kafka's storage tool failed:\n{done.stderr[-2000:]}")
        return done.stdout

    def _spawn(self, node: int) -> None:
        self._log(node).unlink(missing_ok=True)
        argv = ["java", "-Xms1g", "-Xmx1g", "-cp", f"{self._jars}/*", "kafka.Kafka"]
        argv.append(str(self._config(node)))
        self.processes.spawn(f"kafka-{node}", argv, log=self._log(node))

    def _await(self, node: int) -> None:
        """Wait until the broker listens; the driver waits until the cluster is complete."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while is_free(self._ports[node]):
            if not self.processes.is_running(f"kafka-{node}") or time.monotonic() > deadline:
                raise LedgerError(f"Kafka's broker does not start:\n{log_tail(self._log(node))}")
            time.sleep(_POLL_S)

    def kill(self, node: int) -> None:
        """Kill a broker, and wait until it is gone."""
        self.processes.signal(f"kafka-{node}", signal.SIGKILL)
        self.processes.wait_exit(f"kafka-{node}")

    def driver(self, case: Case) -> list[str]:
        """The command line of its driver."""
        classpath = compiled("KafkaDriver", self._jars)
        return ["java", "-Xmx1g", "-cp", classpath, "KafkaDriver", self.brokers, *case.arguments()]


@contextmanager
def running(*, partitions: int = 1) -> Iterator[Kafka]:
    """Three brokers, removed with their data at the end, whatever fails. ``partitions`` applies to
    topics that are created by their first use."""
    processes = Processes(Path(tempfile.mkdtemp(prefix="kafka-")).resolve(), remove=True)
    try:
        yield Kafka(processes, partitions=partitions)
    finally:
        processes.stop(graceful=False)


def throughput_rows(case: Case) -> Iterator[Row]:
    """The append row and the read row of a case; acks=all, with at least two in-sync replicas."""
    with running() as peer:
        rounds = run_driver(peer.processes, "driver", peer.driver(case), timeout_s=case.timeout_s())
    for op in case.ops:
        yield row_of_rounds(
            rounds_of(rounds, op),
            bench="raw",
            system="kafka",
            entry_bytes=case.entry_bytes,
            in_flight=case.in_flight if op == "append" else None,
            ensemble=case.ensemble,
        )


def failover_row(case: Case) -> Row:
    """The longest gap while the leader of a partition is killed. Measured once, because it lasts
    seconds."""
    with running() as peer:
        rounds = run_driver(
            peer.processes,
            "driver",
            peer.driver(case),
            timeout_s=case.timeout_s(),
            on_writing=lambda leaders: peer.kill(int(leaders[0])),
        )
    return row_of_rounds(
        rounds,
        bench="raw",
        system="kafka",
        entry_bytes=case.entry_bytes,
        in_flight=case.in_flight,
        ensemble=case.ensemble,
    )
