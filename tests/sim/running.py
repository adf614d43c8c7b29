"""Runs many schedules in several processes, and adds up what happened."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tests.sim.options import Options, draw_options
from tests.sim.schedule import Outcome, quiet, run_schedule

ROOT: Final = Path(__file__).resolve().parents[2]
_SEEDS_PER_TASK: Final = 20
TRACE_LINES_KEPT: Final = 200
"""Steps of a failing schedule that are kept."""


class Failure(NamedTuple):
    """A schedule that broke a promise."""

    seed: int
    violations: list[str]
    trace: list[str]
    options: dict[str, Any]


@dataclass(slots=True)
class Totals:
    """What happened in all schedules together."""

    schedules: int = 0
    steps: int = 0
    callbacks: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add one schedule."""
        statistics = outcome.statistics
        self.schedules += 1
        self.steps += statistics.steps
        self.callbacks += statistics.callbacks
        self.virtual_s += statistics.virtual_s
        self.faults.update(statistics.faults)
        self.counts.update(statistics.counts)
        if outcome.violations:
            self.failures.append(failure_of(outcome))

    def merge(self, other: Totals) -> None:
        """Add the totals of another process."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.callbacks += other.callbacks
        self.virtual_s += other.virtual_s
        self.faults.update(other.faults)
        self.counts.update(other.counts)
        self.failures.extend(other.failures)

    @property
    def all_faults(self) -> int:
        """The number of faults of all kinds."""
        return self.faults.total()


def failure_of(outcome: Outcome) -> Failure:
    """What is kept of a failing schedule."""
    return Failure(
        outcome.seed,
        [str(violation) for violation in outcome.violations],
        outcome.trace(TRACE_LINES_KEPT),
        msgspec.to_builtins(outcome.options),
    )


def run_seeds(seeds: Iterable[int]) -> Totals:
    """Run schedules one after the other in this process."""
    totals = Totals()
    with quiet():
        for seed in seeds:
            try:
                totals.add(run_schedule(seed))
            except Exception as error:  # noqa: BLE001 - of our code or of the simulation's
                totals.schedules += 1
                totals.failures.append(_broken_off(seed, error))
    return totals


def _broken_off(seed: int, error: Exception) -> Failure:
    """What is kept of a schedule that an error ended which nobody caught."""
    trace = traceback.format_exception(error)
    options = msgspec.to_builtins(draw_options(seed))
    return Failure(seed, [f"{type(error).__name__}: {error}"], trace, options)


def run_many(
    first: int,
    count: int,
    *,
    jobs: int,
    only: str = "",
    progress: Callable[[Totals], None] | None = None,
) -> Totals:
    """Run ``count`` schedules from seed ``first`` on, in ``jobs`` processes. ``only`` leaves out
    the seeds that do not draw this option."""
    totals = Totals()
    seeds = list(itertools.islice(seeds_with(only, first), count))
    tasks = [seeds[at : at + _SEEDS_PER_TASK] for at in range(0, count, _SEEDS_PER_TASK)]
    for part in _parts(tasks, jobs):
        totals.merge(part)
        if progress is not None:
            progress(totals)
    totals.failures.sort()
    return totals


def seeds_with(option: str, first: int) -> Iterator[int]:
    """The seeds from ``first`` on that draw an option, or several, as in ``restores+stream``.
    Raises ValueError if there is none of the name."""
    names = option.split("+") if option else []
    for name in names:
        if name not in Options.__struct_fields__:
            raise ValueError(
                f"{name!r} is no option of a schedule: {', '.join(Options.__struct_fields__)}"
            )

    def is_drawn(seed: int) -> bool:
        drawn = draw_options(seed) if names else None
        return all(getattr(drawn, name) for name in names)

    return filter(is_drawn, itertools.count(first))


def _parts(tasks: list[list[int]], jobs: int) -> Iterator[Totals]:
    if jobs <= 1:
        yield from map(run_seeds, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _allow_a_sudden_end) as pool:
        yield from pool.imap_unordered(run_seeds, tasks)


def _allow_a_sudden_end() -> None:
    """Ignore warnings about tasks that never began: a schedule ends in the middle of things."""
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def trace_hashes(first: int, count: int) -> list[str]:
    """The hashes of the traces of these seeds."""
    return [run_schedule(seed).trace_hash() for seed in range(first, first + count)]


def differing_seeds(first: int, count: int) -> list[int]:
    """Seeds whose trace differs in a process with another hash seed."""
    code = (
        "from tests.sim.running import trace_hashes\n"
        f"print(*trace_hashes({first}, {count}), sep='\\n')"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        here = trace_hashes(first, count)
        there = (other.communicate()[0]).split()
    assert len(there) == count, "the other process ran all schedules"
    return [first + i for i, pair in enumerate(zip(here, there, strict=True)) if len({*pair}) > 1]


def git_commit() -> str:
    """The commit under test, or "unknown"."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
