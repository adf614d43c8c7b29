"""The connector's tests against every version of Spark that it promises: ``make matrix``.

Each version gets an environment of its own in ``.matrix``, made once, with what Spark Connect
needs as well. The tests are those in which a version could matter: each kind of reading and
writing, errors, spark-submit, Spark Connect.

    python -m tests.spark.matrix [--only VERSION] [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENTS: Final = ROOT / ".matrix"
VERSIONS: Final = ("4.2.0", "4.3.0")
"""The first and the last of the range in setup.py."""

TESTS: Final = (
    "tests/unit/connector",
    "tests/spark/test_batch.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_option_errors.py",
    "tests/spark/test_progress.py",
    "tests/spark/test_raw_ledger.py",
    "tests/spark/test_streaming_read.py",
    "tests/spark/test_streaming_write.py",
    "tests/spark/test_types.py",
)


def environment(version: str) -> Path:
    """The interpreter of the environment with a version of Spark, which is made if it is not there.

    The other requirements have the versions of constraints.txt.
    """
    directory = ENVIRONMENTS / version
    python, ready = directory / "bin" / "python", directory / "ready"
    if ready.exists():
        return python
    print(f"making {directory.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
            if not line.startswith(("pyspark==", "delta-spark==")):
                print(line, file=constraints)
        constraints.flush()
        wanted = ["-e", f"{ROOT}[bookie,spark,test]", f"pyspark[connect]=={version}", "pandas<3"]
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", constraints.name, *wanted], check=True)
    ready.touch()
    return python


def run(version: str, arguments: list[str]) -> int:
    """The exit code of the tests with a version of Spark."""
    python = environment(version)
    given = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    given |= {
        "PATH": os.pathsep.join([str(python.parent), given.get("PATH", "")]),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    print(f"pyspark {version}", flush=True)
    every = ["-m", "proof or not proof", *TESTS]
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-q", *(arguments or every)]
    return subprocess.run(command, cwd=ROOT, env=given, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=VERSIONS, help="this version alone")
    chosen, arguments = parser.parse_known_args()
    versions = VERSIONS if chosen.only is None else (chosen.only,)
    failed = [version for version in versions if run(version, arguments)]
    print(f"failed: {', '.join(failed)}" if failed else f"passed: {', '.join(versions)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
