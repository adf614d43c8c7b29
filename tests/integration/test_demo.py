"""The demonstration in small, with faults and a comparison of every row; and that comparison."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from examples.demo.compare import compare
from tests.style.sources import ROOT


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_demo_in_small() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--rows", "2400"],
        cwd=ROOT,
        env=os.environ
        | {
            "COLUMNS": "120",
            "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # to start quickly
        },
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Every row arrived exactly once, unchanged and in order." in done.stdout
    assert "killed after micro-batch 5" in done.stdout
    assert "driver killed after micro-batch" in done.stdout


def table(numbers: list[int], values: list[str | None]) -> pa.Table:
    return pa.table({"row_number": pa.array(numbers, pa.int64()), "value": pa.array(values)})


WRITTEN = table([0, 1, 2], ["a", None, "c"])


def test_equal_tables_compare_as_exact() -> None:
    assert compare(WRITTEN, WRITTEN).is_exact


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (table([0, 2], ["a", "c"]), "lost"),
        (table([0, 1, 1, 2], ["a", None, None, "c"]), "doubled"),
        (table([0, 2, 1], ["a", "c", None]), "reordered"),
        (table([0, 1, 2], ["a", "b", "c"]), "changed"),
        (table([0, 1, 2], ["a", None, "d"]), "changed"),
        (table([0, 1, 2], [None, None, "c"]), "changed"),
    ],
)
def test_every_kind_of_difference_is_seen(found: pa.Table, fault: str) -> None:
    comparison = compare(WRITTEN, found)
    assert getattr(comparison, fault) == 1
    assert not comparison.is_exact
