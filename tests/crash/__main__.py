"""The command: crash points, failing operations and rot, as many as you like.

python -m tests.crash --points 500000 --seed 7        crash points
python -m tests.crash --failures 3 --seed 7           every operation of 3 workloads, in every way
python -m tests.crash --rot 0 --seed 7                every byte, block and length of a store
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from pathlib import Path

from tests.crash.failures import every_failure
from tests.crash.index_rot import DIED, WRONG, rot_index
from tests.crash.points import CrashLoop
from tests.crash.rot import rot


def main() -> None:
    """Do what was asked for, print the figures and write them; AssertionError tells what failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--points", type=int, help="crash points, at least")
    parser.add_argument("--failures", type=int, help="workloads whose every operation fails")
    parser.add_argument("--rot", type=int, help="damages to a store; 0 is all there can be")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.points is arguments.failures is arguments.rot is None:
        arguments.points = 5000
    logging.disable()  # thousands of bookies say why they end
    seed: int = arguments.seed
    print(f"seed {seed}")
    figures: dict[str, object] = {}
    if arguments.points is not None:
        figures["points"] = CrashLoop(seed).run(arguments.points).as_json()
    if arguments.failures is not None:
        figures["failures"] = [
            every_failure(seed + number).as_json() for number in range(arguments.failures)
        ]
    if arguments.rot is not None:
        figures["rot"] = rot(seed, samples=arguments.rot).as_json()
        with tempfile.TemporaryDirectory() as directory:
            outcomes = rot_index(Path(directory), seed, samples=arguments.rot)
        assert not outcomes[WRONG] and not outcomes[DIED], outcomes
        figures["rot_of_the_index"] = dict(outcomes)
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
