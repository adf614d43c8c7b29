"""The public names of ``spark_ledger``, and that importing it is light."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import spark_ledger
from tests.style.sources import ROOT

HEAVY = ("grpc", "kazoo", "pyspark", "pyarrow", "google.protobuf", "click", "rich", "pandas")
PUBLIC_NAMES = {"Dlsn", "__version__", "aio", "connect", "errors", "local", "spark"}
TYPING_NAMES = {"TYPE_CHECKING", "Any", "annotations"}
IMPORT_TIME_MS_MAX = 100.0

# Times the import in a fresh interpreter, and beside it a fixed piece of work that a machine of
# this age does in about 10 ms, so that a loaded machine is not mistaken for a slow import.
PROBE = """
import json, sys, time
start = time.process_time()
import spark_ledger
took = time.process_time() - start
start = time.process_time()
sum(range(400_000)); sorted(str(n) for n in range(10_000))
yardstick = time.process_time() - start
print(json.dumps({"took": took, "yardstick": yardstick, "modules": sorted(sys.modules)}))
"""


def probe() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, check=True, capture_output=True, text=True
    )
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def test_all_is_sorted_and_every_name_exists() -> None:
    names = spark_ledger.__all__
    assert list(names) == sorted(names)
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(spark_ledger, name) is not None


def test_nothing_public_is_unlisted() -> None:
    public = {
        name
        for name, value in vars(spark_ledger).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    unlisted = public - set(spark_ledger.__all__) - TYPING_NAMES
    assert not unlisted


def test_public_names_are_these() -> None:
    """Programs elsewhere use them: adding one is a decision, removing one breaks its users."""
    assert set(spark_ledger.__all__) == PUBLIC_NAMES


def test_import_loads_nothing_heavy() -> None:
    modules = probe()["modules"]
    assert isinstance(modules, list)
    loaded = [name for name in HEAVY if name in modules]
    assert not loaded, f"import spark_ledger loads {loaded}"


def test_import_is_quick() -> None:
    """Best of five in processor time; a slow machine may take as much longer as its yardstick."""
    best_ms, allowed_ms = float("inf"), IMPORT_TIME_MS_MAX
    for _ in range(5):
        result = probe()
        took, yardstick = result["took"], result["yardstick"]
        assert isinstance(took, float) and isinstance(yardstick, float)
        best_ms = min(best_ms, took * 1e3)
        allowed_ms = max(allowed_ms, IMPORT_TIME_MS_MAX * yardstick / 0.010)
        if best_ms < IMPORT_TIME_MS_MAX:
            break
    assert best_ms < allowed_ms, f"import spark_ledger takes {best_ms:.0f} ms"
