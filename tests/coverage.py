"""Branch coverage of the pure parts, which has to be 100 %: ``python -m tests.coverage``.

Protocol machines, bookie rules, wire formats and stored formats pass every branch in their own
tests. Only those tests are run, because a branch that a test of a whole cluster passes by chance
proves little. Exit code 1, and the lines, if anything is missing.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import coverage

ROOT: Final = Path(__file__).resolve().parents[1]
WHOLE: Final = (
    "spark_ledger/protocol/*",
    "spark_ledger/wire/*",
    "bookie_server/core/*",
    "bookie_server/storage/records.py",
    "bookie_server/storage/blocks.py",
)
"""What is measured,"""
NOT_OURS: Final = ("*_pb2.py", "*_pb2_grpc.py")
"""without generated code."""
TESTS: Final = (
    "tests/unit/spark_ledger/protocol",
    "tests/unit/spark_ledger/wire",
    "tests/unit/bookie_server/core",
    "tests/unit/bookie_server/storage/test_records.py",
    "tests/unit/bookie_server/storage/test_blocks.py",
    "tests/scenarios/test_scenarios.py",
)


def measure() -> tuple[float, str, dict[str, float]]:
    """Percent covered (branches included), a table of what is missing, percent by file."""
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory) / "coveragerc"
        settings.write_text(
            f"[run]\nbranch = True\ndata_file = {directory}/data\n"
            f"include =\n{_indented(WHOLE)}omit =\n{_indented(NOT_OURS)}",
            encoding="utf-8",
        )
        run = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
        subprocess.run(
            [*run, "-q", "-p", "no:cacheprovider", *TESTS],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        )
        data = coverage.Coverage(data_file=f"{directory}/data", config_file=str(settings))
        data.load()
        table = io.StringIO()
        total = data.report(file=table, show_missing=True, skip_covered=True)
        figures = Path(directory) / "figures.json"
        data.json_report(outfile=str(figures))
        found = json.loads(figures.read_text(encoding="utf-8"))["files"]
        by_file = {name: item["summary"]["percent_covered"] for name, item in found.items()}
        return total, table.getvalue(), by_file


def unmeasured(by_file: dict[str, float]) -> list[str]:
    """Files that no test imports: coverage does not know them."""
    wanted = {
        str(path.relative_to(ROOT))
        for pattern in WHOLE
        for path in ROOT.glob(pattern.replace("/*", "/*.py"))
        if not any(path.match(other) for other in NOT_OURS)
        and path.read_text(encoding="utf-8").strip()
    }
    return sorted(wanted - by_file.keys())


def _indented(patterns: tuple[str, ...]) -> str:
    return "".join(f"    {pattern}\n" for pattern in patterns)


def main() -> None:
    """Measure, print, fail below 100 percent."""
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    total, table, by_file = measure()
    missing = unmeasured(by_file)
    print(table)
    print(f"{total:.2f} % of lines and branches in {len(by_file)} files")
    for name in missing:
        print(f"{name}: no test imports it")
    if arguments.json:
        figures = {"percent": total, "files": by_file, "not_imported": missing}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if total < 100 or missing:
        sys.exit(1)


if __name__ == "__main__":
    main()
