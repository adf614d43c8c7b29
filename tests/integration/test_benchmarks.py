"""The raw benchmark at a tiny scale with real processes: its rows, and how it ends."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import raw_ledger
from benchmarks.bare import rows as bare
from benchmarks.cases import KIB, Case
from benchmarks.paths import CACHE, ROOT, scratch
from benchmarks.rows import OURS

pytestmark = pytest.mark.processes


def _case(**changes: object) -> Case:
    values = {"entry_bytes": KIB, "in_flight": 20, "warmup_s": 0.1, "round_s": 0.3, "rounds": 1}
    return Case(**{**values, **changes})  # type: ignore[arg-type]


def test_a_case_gives_an_append_row_and_two_rows_of_reads() -> None:
    with scratch() as directory:
        rows = list(raw_ledger.throughput_rows(_case(round_bytes_max=400 * KIB)))
    assert not directory.exists()
    assert [row.op for row in rows] == ["append", "read", "read batches"]
    append, *reads = rows
    for row in rows:
        assert (row.bench, row.system, row.entry_bytes) == ("raw", OURS, KIB)
        assert row.ensemble == (3, 3, 2)
        assert row.per_second and row.mb_per_second and row.per_second > 0
        assert math.isclose(row.mb_per_second, row.per_second * KIB / 1e6, rel_tol=0.01)
        assert row.longest_gap_ms is None
    assert append.in_flight == 20
    assert append.p50_ms and append.p99_ms and 0 < append.p50_ms <= append.p99_ms
    assert all(row.p50_ms is None and row.in_flight is None for row in reads)


@pytest.mark.proof
def test_bare_grpc_gives_the_append_row_of_a_case() -> None:
    with scratch():
        (row,) = bare.throughput_rows(_case())
    assert (row.system, row.op, row.ensemble) == ("bare gRPC", "append", (3, 3, 2))
    assert row.per_second and row.p50_ms and row.per_second > 0


def test_failover_measures_a_gap_and_nothing_else() -> None:
    with scratch():
        row = raw_ledger.failover_row(_case(failover=True, round_s=2.0))
    assert row.op == "failover"
    assert row.longest_gap_ms and row.longest_gap_ms > 0
    assert row.per_second is None


def test_a_stop_in_the_middle_leaves_nothing_behind() -> None:
    before = set(CACHE.glob("run-*"))
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "raw", "--quick"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(family) < 5:  # supervisor, ZooKeeper, bookies
        time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
    directories = set(CACHE.glob("run-*")) - before
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert len(family) >= 5, errors
    assert process.returncode == 1
    assert "stopped" in errors and "Traceback" not in errors
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert directories and not any(path.exists() for path in directories)


def test_json_of_a_stopped_run_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    environment = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "raw", "--peers", "--json", str(target)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "java is missing" in done.stderr and "without --peers" in done.stderr
    assert not target.exists()
