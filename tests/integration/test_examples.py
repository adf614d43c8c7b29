"""Every example runs as its first lines say, and prints the facts that it demonstrates."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_ledger
from spark_ledger.local import LocalCluster
from tests.style.sources import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

TIMEOUT_S = 280

ENVIRONMENT = {
    **os.environ,
    "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # to start quickly
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),
    "SPARK_LOCAL_IP": "127.0.0.1",
}

TESTED = {
    "quickstart", "word_of_the_day", "append_and_tail", "crash_and_recover",
    "ledger_to_delta", "delta_to_ledger", "state_machine",
}  # fmt: skip


SHARED = {"on_delta", "key_value"}
"""No examples: what others need."""


def start(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an example to its end, with changes to its environment."""
    return subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def run(name: str, *arguments: str) -> str:
    """What the example prints if all goes well."""
    done = start(name, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_example_is_tested_and_listed() -> None:
    found = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"__init__"} - SHARED
    assert found == TESTED
    listed = re.findall(r"\]\((\w+)\.py\)", (ROOT / "examples" / "README.md").read_text())
    assert set(listed) == TESTED | SHARED


def test_examples_are_short() -> None:
    """They are read as documentation."""
    lengths = {
        name: (ROOT / "examples" / f"{name}.py").read_text().count("\n") for name in TESTED | SHARED
    }
    assert max(lengths.values()) <= 115, lengths


@pytest.mark.spark
def test_quickstart() -> None:
    check_quickstart(run("quickstart"))


def check_quickstart(printed: str) -> None:
    """Rows, their positions, and the newest of them."""
    lines = printed.splitlines()
    assert lines[0] == "5 rows"
    places = [re.fullmatch(r"(.*) in ledger \d+: (\w+) [\d.]+", line) for line in lines[1:6]]
    assert [(place[1], place[2]) for place in places if place] == [
        ("commit 0 segment 0 entry 0 slot 0", "Bergen"),
        ("commit 0 segment 0 entry 0 slot 1", "Lisbon"),
        ("commit 0 segment 0 entry 0 slot 2", "Cairo"),
        ("commit 1 segment 1 entry 0 slot 0", "Bergen"),
        ("commit 1 segment 1 entry 0 slot 1", "Lisbon"),
    ]
    assert lines[6:] == ['2 rows from {"segment": 1} on']


@pytest.mark.spark
def test_word_of_the_day() -> None:
    assert run("word_of_the_day").splitlines() == [
        "Monday: merrily, 4 times",
        "Tuesday: water, 4 times",
    ]


@pytest.mark.spark
def test_ledger_to_delta_has_each_row_once_after_a_crash() -> None:
    assert run("ledger_to_delta").splitlines() == [
        "copied: 1 new, 1 paid, 1 sent, 2 new, 2 paid, 3 new",
        "newest: 1 sent, 2 paid, 3 new",
    ]


@pytest.mark.spark
def test_delta_to_ledger_has_each_row_once_after_a_crash() -> None:
    (line,) = run("delta_to_ledger").splitlines()
    assert line.startswith("30 rows, 30 of them different; readings: ")


def test_examples_without_spark_on_a_running_cluster() -> None:
    with LocalCluster(bookies=3) as cluster:
        seen = run("append_and_tail", "--entries", "20", "--metadata", cluster.uri)
        assert "20 entries appended" in seen
        assert "20 entries seen" in seen
        said = run("crash_and_recover", "--metadata", cluster.uri)
        killed = re.search(r"ledger (\d+): killed after (\d+) ack.*, (\d+) entries", said)
        assert killed, said
        ledger_id, acknowledged, entries = map(int, killed.groups())
        assert acknowledged <= entries <= acknowledged + 1
        assert "then its writer got FencedError: ledger" in said
        with spark_ledger.connect(cluster.uri) as client:
            assert len(client.list_ledgers()) == 3
            recovered = client.open_ledger(ledger_id)
            assert recovered.is_closed
            assert recovered.last_add_confirmed == entries - 1


def test_state_machine_whose_active_dies_or_freezes_has_every_put_that_returned() -> None:
    puts, last_words = run("state_machine").splitlines()
    told = re.fullmatch(r"(\d+) puts returned, 0 lost, in (\d+) epochs", puts)
    assert told, puts
    assert int(told[1]) >= 200, "a hundred before each of the two failures"
    assert int(told[2]) >= 6, "one for each fifty puts, and one for each of three members"
    assert last_words == "the active that was frozen got FencedError when it went on"


def test_missing_java_is_reported_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = start("append_and_tail", PATH=str(tmp_path), JAVA_HOME="", TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 1
    assert "ConfigurationError: Java is missing" in done.stderr
    assert "install Java 17" in done.stderr
    assert not list((tmp_path / "tmp").iterdir()), "nothing is left behind"
