"""``python -m tests.chaos --minutes N``: chaos runs one after the other, and a table at the end.

Exit code 1 if any promise was broken. The same seed gives the same faults; what they cause depends
on the machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.chaos.faults import MIXES
from tests.chaos.report import Report, add, table, write_json
from tests.chaos.run import STALL_BOUND_S, Chaos, run

RUN_SECONDS_MAX = 120.0


def main() -> int:
    """Run until the time is up."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=2.0, help="time under load, in all")
    parser.add_argument("--seed", type=int, default=None, help="of the first run; then counted up")
    parser.add_argument("--mix", choices=sorted(MIXES), default="all")
    parser.add_argument("--bookies", type=int, default=4)
    parser.add_argument("--appends-per-s", type=float, default=150.0, help="of each of 3 writers")
    parser.add_argument("--stall-bound", type=float, default=STALL_BOUND_S, help="seconds")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    parser.add_argument("--keep", type=Path, default=None, help="histories after a violation")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    left_s = options.minutes * 60
    total: Report | None = None
    while left_s > 0:
        seconds = min(left_s, RUN_SECONDS_MAX)
        began = time.monotonic()
        report = run(
            Chaos(
                seconds,
                seed,
                mix=options.mix,
                bookies=options.bookies,
                appends_per_s=options.appends_per_s,
                stall_bound_s=options.stall_bound,
                keep=None if options.keep is None else options.keep / str(seed),
            )
        )
        print(
            f"seed {seed}: {report.acknowledged:,} entries, {sum(report.faults.values())} faults, "
            f"{len(report.violations)} violations, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        total = report if total is None else add(total, report)
        if options.json is not None:
            write_json(total, options.json)
        left_s, seed = left_s - seconds, seed + 1
    assert total is not None, "at least one run"
    print(table(total))
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
