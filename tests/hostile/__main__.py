"""``python -m tests.hostile``: each kind of hostile client against a real bookie, and a table.

Beside them a steady appender must not notice much: all its entries are there in the end, none waits
for long, and the bookie stays within its memory and is never restarted. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from tests.hostile.attacks import ATTACKS
from tests.hostile.run import run, table


def main() -> int:
    """Attack."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=sorted(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    options = parser.parse_args()
    # It warns at each write to a connection that the bookie has ended, which is what attacks do.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    report = run(options.kinds, options.seconds)
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    print(table(report))
    for problem in report.problems:
        print(f"PROBLEM: {problem}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
