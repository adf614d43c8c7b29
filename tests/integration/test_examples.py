"""Every example runs as its first lines say, and says by its exit status that it went well."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.style.sources import ROOT

ENVIRONMENT = {
    **os.environ,
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),
    "SPARK_LOCAL_IP": "127.0.0.1",
}

EXAMPLES = {
    "append_and_tail": ("--entries", "20"),
    "flights_pipeline": ("--rows", "3000"),
}


def test_every_example_is_tested() -> None:
    found = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"__init__"}
    assert found == set(EXAMPLES)


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *EXAMPLES[name]],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
