"""Command: ``python -m tests.fuzz --inputs N --seed S [--only NAME] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.fuzz.loop import fuzz
from tests.fuzz.targets import all_targets


def main() -> None:
    """Fuzz, print a table, write the figures. Raises AssertionError with the input that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    targets = [target for target in all_targets() if arguments.only in target.name]
    print(f"seed {arguments.seed}, {len(targets)} parsers")
    outcomes = fuzz(targets, inputs=arguments.inputs, seed=arguments.seed)
    for each in outcomes:
        speed = each.inputs / each.seconds if each.seconds else 0.0
        print(
            f"{each.name:28} {each.inputs:9,} inputs {each.accepted:9,} valid "
            f"{each.refused:9,} refused {speed:11,.0f}/s"
        )
    total = sum(each.inputs for each in outcomes)
    seconds = sum(each.seconds for each in outcomes)
    print(f"{total:,} inputs in {seconds:.1f} s of one core: no crash, no hang")
    if arguments.json:
        figures = {
            "seed": arguments.seed,
            "inputs": total,
            "seconds": round(seconds, 1),
            "parsers": {
                each.name: {"inputs": each.inputs, "valid": each.accepted, "refused": each.refused}
                for each in outcomes
            },
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
