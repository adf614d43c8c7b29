"""Command: ``python -m tests.lab`` runs the lab's models with the faults of many seeds.

One setting of each protocol promises to lose nothing; all seeds are run for it. Of every other
setting the first seed that shows its weakness is looked for. Seeds are taken in rounds, and the
figures are written after each, so a run that is ended early says how far it came. Exit 1: a model
broke a promise of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from spark_ledger.lab.exploration import Explored, explore
from spark_ledger.lab.protocols import LOSE_NOTHING, PROTOCOLS, READ_WHAT_IS_THERE
from tests.effort import LAB_SCHEDULES

MODELS: Final = (
    "rocketmq-sync-flush",
    "raft",
    "bookkeeper-3-3-2",
    "kafka-flush",
    "kafka-idempotent-flush",
    "dledger-flush",
)
"""One setting of each protocol, and one of Kafka whose values stand in the log once, in order."""

ROUND: Final = 100
"""Seeds of one task."""


@dataclass(slots=True)
class Model:
    """What came of all schedules of a model so far."""

    schedules: int = 0
    lost: int = 0
    """Schedules in which something that was acknowledged is gone."""
    stale: int = 0
    unacknowledged: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, explored: Explored) -> None:
        """Count one round."""
        self.schedules += explored.schedules
        self.lost += explored.lost_in
        self.stale += explored.stale_in
        self.unacknowledged += explored.unacknowledged
        self.broken += [f"seed {seed}: {what}" for seed, what in explored.broken]

    def holds(self, name: str) -> bool:
        """Whether it kept what it promises, and acknowledged everything in the end."""
        stale = self.stale if name in READ_WHAT_IS_THERE else 0
        return not (self.lost or stale or self.unacknowledged or self.broken)


@dataclass(slots=True)
class Weakness:
    """Of a setting that promises less: the first seed that loses something, or reads stale."""

    schedules: int = 0
    seed: int | None = None
    lost: int = 0
    """Values, at most in one schedule."""
    stale: int = 0


def main() -> None:
    """Run, print, write the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("--schedules", type=int, default=LAB_SCHEDULES.test)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--weak", type=int, default=400, help="seeds that look for a weakness")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    models = {name: Model() for name in MODELS if arguments.only in name}
    weak = {name: Weakness() for name in PROTOCOLS if name not in LOSE_NOTHING}

    def write() -> None:
        figures = {
            "models": {name: asdict(model) for name, model in models.items()},
            "weaknesses": {name: asdict(found) for name, found in weak.items()},
        }
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

    with ProcessPoolExecutor(arguments.processes) as pool:
        for seeds in _rounds(arguments.schedules):
            for name, explored in zip(
                models, pool.map(_explore, models, [seeds] * len(models)), strict=True
            ):
                models[name].add(explored)
            write()
            print(f"{seeds[-1]:,} of {arguments.schedules:,} schedules of each model", flush=True)
        for seeds in _rounds(arguments.weak):
            left = [name for name, found in weak.items() if found.seed is None]
            for name, explored in zip(
                left, pool.map(_explore, left, [seeds] * len(left)), strict=True
            ):
                weak[name].schedules += explored.schedules
                weak[name].seed = explored.first_seed
                weak[name].lost, weak[name].stale = explored.most_lost, explored.stale_in
            write()
            print(f"{seeds[-1]:,} seeds for {len(left)} known weaknesses", flush=True)
    for name, model in models.items():
        says = "holds" if model.holds(name) else f"BROKEN: {model}"
        print(f"{name:24} {model.schedules:8,} schedules: {says}")
    for name, found in weak.items():
        print(f"{name:24} {found}")
    sys.exit(not all(model.holds(name) for name, model in models.items()))


def _rounds(schedules: int) -> Iterator[range]:
    for first in range(1, schedules + 1, ROUND):
        yield range(first, min(first + ROUND, schedules + 1))


def _explore(name: str, seeds: range) -> Explored:
    return explore(name, seeds, lambda: None)


if __name__ == "__main__":
    main()
