"""``ledger local``: what is handed to the cluster module, and what is printed of its answers."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from spark_ledger import local
from spark_ledger.local import ClusterStatus, ProcessStatus
from tests.unit.spark_ledger.cli.conftest import Run

RUNNING = ClusterStatus(
    directory="/somewhere",
    running=True,
    uri="zk://127.0.0.1:4444/ledgers",
    supervisor_pid=9,
    zookeeper=ProcessStatus("zookeeper", "127.0.0.1:4444", 10),
    bookies=(ProcessStatus("bookie-0", "127.0.0.1:5555", 11, "127.0.0.1:6666"),),
)
REFUSED = msgspec.structs.replace(
    RUNNING.bookies[0], running=False, note="did not start: run `ledger cluster restored`"
)


def test_up_prints_what_to_export(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, int, int | None]] = []
    delays: list[float] = []
    racks_asked: list[int] = []

    def up(
        directory: Path,
        bookies: int,
        *,
        zookeeper_heap_bytes: int | None,
        lost_bookie_delay_s: float,
        racks: int,
    ) -> ClusterStatus:
        delays.append(lost_bookie_delay_s)
        racks_asked.append(racks)
        asked.append((directory, bookies, zookeeper_heap_bytes))
        return RUNNING

    monkeypatch.setattr(local, "up", up)
    outcome = run("local", "up", "--bookies", "5", "--directory", "/somewhere")
    assert outcome.status == 0
    assert asked == [(Path("/somewhere"), 5, None)]
    assert outcome.out.splitlines()[-1] == f"export SPARK_LEDGER_METADATA={RUNNING.uri}"
    assert "running" in outcome.out and "127.0.0.1:6666" in outcome.out
    assert json.loads(run("local", "up", "--json").out)["uri"] == RUNNING.uri
    assert run("local", "up", "--zookeeper-heap", "512m").status == 0
    assert asked[-1][2] == 512 * 2**20
    assert run("local", "up", "--lost-bookie-delay", "10s").status == 0
    assert delays[0] == 300 and delays[-1] == 10
    assert run("local", "up", "--bookies", "9", "--racks", "3").status == 0
    assert racks_asked[0] == 0 and racks_asked[-1] == 3
    monkeypatch.setenv("SPARK_LEDGER_ZOOKEEPER_HEAP", "1g")
    assert run("local", "up").status == 0 and asked[-1][2] == 2**30
    outcome = run("local", "up", "--zookeeper-heap", "1k")
    assert outcome.status == 2 and "a size such as" in outcome.err


def test_up_that_goes_on_without_a_bookie_says_why_and_exits_1(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    partly = msgspec.structs.replace(RUNNING, bookies=(RUNNING.bookies[0], REFUSED))
    monkeypatch.setattr(local, "up", lambda *_given, **_options: partly)
    outcome = run("local", "up")
    assert outcome.status == 1
    assert "dead" in outcome.out and REFUSED.note in outcome.out
    assert f"export SPARK_LEDGER_METADATA={RUNNING.uri}" in outcome.out
    assert "bookie-0 did not start" in outcome.err and "started again" in outcome.err
    assert run("local", "up", "--json").status == 1


def test_directory_follows_the_state_home(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    asked: list[Path] = []

    def down(directory: Path) -> bool:
        asked.append(directory)
        return True

    monkeypatch.setattr(local, "down", down)
    assert run("local", "down").out == "stopped\n"
    assert asked == [Path("/state/spark-ledger/local")]


def test_status_without_a_cluster_exits_1(run: Run, tmp_path: Path) -> None:
    outcome = run("local", "status", "--directory", str(tmp_path / "never"))
    assert outcome.status == 1
    assert "ledger local up" in outcome.out
    outcome = run("local", "status", "--json", "--directory", str(tmp_path / "never"))
    assert outcome.status == 1 and json.loads(outcome.out)["running"] is False
