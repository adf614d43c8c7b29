"""The append rows of bare gRPC: three servers and a driver, without a ledger in between."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.drivers import run_driver
from benchmarks.paths import ROOT
from benchmarks.rows import Row, row_of_rounds
from spark_ledger.errors import LedgerError
from spark_ledger.local.processes import Processes, log_tail

START_TIMEOUT_S = 60.0
_POLL_S = 0.05
_PORT = re.compile(rb"^(\d+)\n", re.MULTILINE)


def throughput_rows(case: Case) -> Iterator[Row]:
    """The append row of a case. Nothing can be read back from these servers."""
    directory = Path(tempfile.mkdtemp(prefix="bare-"))
    processes = Processes(directory, remove=True)
    try:
        ports = spawn_servers(processes, case.ensemble[1])
        argv = [sys.executable, "-m", "benchmarks.bare.driver", ports, *case.arguments()]
        rounds = run_driver(processes, "driver", argv, timeout_s=case.timeout_s())
    finally:
        processes.stop(graceful=False)
    yield row_of_rounds(
        rounds,
        bench="raw",
        system="bare gRPC",
        entry_bytes=case.entry_bytes,
        in_flight=case.in_flight,
        ensemble=case.ensemble,
    )


def spawn_servers(processes: Processes, count: int) -> str:
    """Start so many servers; their ports."""
    names, directory = [f"server-{n}" for n in range(count)], processes.directory
    for name in names:
        argv = [sys.executable, "-m", "benchmarks.bare.server", str(directory)]
        environment = {"PYTHONPATH": str(ROOT)}
        processes.spawn(name, argv, log=directory / f"{name}.log", env=environment)
    return ",".join(_port(processes, name) for name in names)


def _port(processes: Processes, name: str) -> str:
    log, deadline = processes.directory / f"{name}.log", time.monotonic() + START_TIMEOUT_S
    while not (found := _PORT.search(log.read_bytes() if log.exists() else b"")):
        if not processes.is_running(name) or time.monotonic() > deadline:
            raise LedgerError(f"{name} does not start:\n{log_tail(log)}")
        time.sleep(_POLL_S)
    return found[1].decode()
