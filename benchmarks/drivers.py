"""Runs driver programs under a cluster's supervisor, and parses what they print."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.paths import ROOT
from benchmarks.rows import Round, System
from spark_ledger.errors import LedgerError
from spark_ledger.local.processes import Processes, log_tail

_POLL_S = 0.05


class Writing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A driver's sign that its load is running, and the servers that store it."""

    writing: list[str]


class CpuTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU seconds by component during one round of an operation."""

    cpu_of: str
    cpu_seconds: dict[str, float]


class Profiled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One round of a case of the profile: so many rows, or micro-batches, and what they took."""

    profiled: str
    system: System
    amount: int
    seconds: float
    cpu_seconds: dict[str, float]
    phases_ms: dict[str, float] = {}
    """Of a micro-batch, by Spark's names."""
    calls_ms: dict[str, float] = {}
    """Of a micro-batch: the calls of a Python source or sink, and what these wait for."""


Line = Round | Writing | CpuTime | Profiled
_KINDS: dict[bytes, type[Line]] = {
    b'{"writing"': Writing,
    b'{"cpu_of"': CpuTime,
    b'{"op"': Round,
    b'{"profiled"': Profiled,
}


def run_driver(
    processes: Processes,
    name: str,
    argv: Sequence[str],
    *,
    timeout_s: float,
    on_writing: Callable[[list[str]], None] | None = None,
) -> list[Round]:
    """Run a driver to its end. Returns its rounds.

    ``on_writing`` is called once, while the load runs. Raises LedgerError, with the end of the
    driver's output, if the driver fails or takes too long.
    """
    lines = run_driver_lines(processes, name, argv, timeout_s=timeout_s, on_writing=on_writing)
    return [line for line in lines if isinstance(line, Round)]


def run_driver_lines(
    processes: Processes,
    name: str,
    argv: Sequence[str],
    *,
    timeout_s: float,
    on_writing: Callable[[list[str]], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Line]:
    """The same, with every kind of line."""
    log = processes.directory / f"{name}.log"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    log.unlink(missing_ok=True)
    env = {"PYTHONPATH": path, **(environment or {})}
    processes.spawn(name, argv, log=log, env=env)
    deadline = time.monotonic() + timeout_s
    while True:
        exit_code = processes.states()[name].exit_code
        lines = parse_lines(log)
        signs = [line for line in lines if isinstance(line, Writing)]
        if signs and on_writing is not None:
            on_writing(signs[0].writing)
            on_writing = None
        if exit_code is not None:
            break
        if time.monotonic() > deadline:
            raise LedgerError(f"{name} did not end within {timeout_s:g} s:\n{log_tail(log)}")
        time.sleep(_POLL_S)
    if exit_code != 0:
        raise LedgerError(f"{name} ended with exit code {exit_code}:\n{log_tail(log)}")
    if not any(isinstance(line, Round | Profiled) for line in lines):
        raise LedgerError(f"{name} measured nothing:\n{log_tail(log)}")
    return lines


def parse_lines(log: Path) -> list[Line]:
    """The results in a driver's output; all other lines are its log."""
    if not log.exists():
        return []
    found: list[Line] = []
    for line in log.read_bytes().splitlines(keepends=True):
        if not (line.startswith(b'{"') and line.endswith(b"\n")):
            continue
        kind = _KINDS.get(line.partition(b":")[0])
        if kind is not None:
            found.append(msgspec.json.decode(line, type=kind))
    return found


def rounds_of(rounds: Sequence[Round], op: str) -> list[Round]:
    """The rounds of one operation."""
    return [found for found in rounds if found.op == op]
