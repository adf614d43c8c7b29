"""Command: ``python -m tests.sim --schedules 1000`` runs schedules, ``--seed 7`` replays one."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.sim.options import Options
from tests.sim.regressions import options_saved, save
from tests.sim.running import Failure, Totals, differing_seeds, git_commit, run_many
from tests.sim.schedule import Outcome, run_schedule
from tests.sim.shrink import shrink

console: Final = Console(highlight=False)

FAILURES_SHOWN_MAX: Final = 3
LINES_EVERY: Final = 1000
"""How often progress is printed where no bar can be drawn, in schedules."""


def main() -> int:
    """Do what the command line says. Returns the exit code: 0, or 1 if a promise was broken."""
    arguments = parse()
    options = json.loads(arguments.options) if arguments.options else None
    if arguments.determinism:
        return check_determinism(arguments.seed or 0, arguments.determinism)
    if arguments.seed is not None and arguments.schedules is None:
        return replay(arguments.seed, options, shrinks=arguments.shrink)
    return run(arguments)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--schedules", type=int, help="how many to run")
    parser.add_argument("--seed", type=int, help="the first seed; alone: replay this one")
    parser.add_argument(
        "--only",
        metavar="OPTION",
        default="",
        choices=["", *Options.__struct_fields__, "restores+stream", "restores+together"],
        help="only schedules that draw this option, or both, as restores or restores+together",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--json", type=Path, help="write the totals to this file")
    parser.add_argument("--options", help="JSON object: options instead of those of the seed")
    parser.add_argument("--shrink", action="store_true", help="replay: look for a shorter failure")
    parser.add_argument("--determinism", type=int, metavar="N", help="run N seeds twice, compare")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> int:
    """Run many schedules and show the totals."""
    count, first = arguments.schedules or 1000, arguments.seed or 0
    commit, began = git_commit(), time.monotonic()
    with Progress(
        TextColumn("schedules"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=count, note="")

        def show(totals: Totals) -> None:
            note = f"{totals.all_faults:,} faults, {len(totals.failures)} failures"
            bar.update(task, completed=totals.schedules, note=note)
            if not console.is_terminal and totals.schedules % LINES_EVERY == 0:
                console.print(f"{totals.schedules:,} of {count:,}: {note}")

        totals = run_many(first, count, jobs=arguments.jobs, only=arguments.only, progress=show)
    elapsed_s = time.monotonic() - began
    console.print(table_of(totals, first, elapsed_s))
    if arguments.json is not None:
        summary = {"first_seed": first, "commit": commit, **summary_of(totals, elapsed_s)}
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n")
    for failure in totals.failures[:FAILURES_SHOWN_MAX]:
        show_failure(failure)
    return 1 if totals.failures else 0


def table_of(totals: Totals, first: int, elapsed_s: float) -> Table:
    """The totals as a table."""
    table = Table(title=f"simulated schedules from seed {first} on", title_justify="left")
    table.add_column("what")
    table.add_column("number", justify="right")
    rate = totals.schedules / max(elapsed_s, 0.001)
    table.add_row("schedules", f"{totals.schedules:,}")
    table.add_row("  per second", f"{rate:,.1f}")
    table.add_row("  virtual time", f"{totals.virtual_s / 3600:,.1f} h")
    table.add_row("steps", f"{totals.steps:,}")
    table.add_row("faults", f"{totals.all_faults:,}")
    for kind, number in totals.faults.most_common():
        table.add_row(f"  {kind}", f"{number:,}")
    for name, number in sorted(totals.counts.items()):
        table.add_row(name, f"{number:,}")
    table.add_row("schedules with a violation", f"{len(totals.failures):,}")
    return table


def summary_of(totals: Totals, elapsed_s: float) -> dict[str, Any]:
    """The totals as JSON values."""
    return {
        "elapsed_s": round(elapsed_s, 1),
        "schedules": totals.schedules,
        "virtual_s": round(totals.virtual_s),
        "steps": totals.steps,
        "faults": totals.all_faults,
        "faults_by_kind": dict(totals.faults.most_common()),
        "counts": dict(sorted(totals.counts.items())),
        "failures": [failure.seed for failure in totals.failures],
    }


def show_failure(failure: Failure) -> None:
    """Print the shortest trace that breaks the same promise, and save the schedule under
    tests/regressions, from where the test and ``--seed`` replay it."""
    console.rule(f"seed {failure.seed}")
    if run_schedule(failure.seed, failure.options).violations:
        options, outcome = shrink(failure.seed, failure.options)
        violations = [str(violation) for violation in outcome.violations]
        failure = Failure(failure.seed, violations, outcome.trace(), options)
    else:
        console.print("it breaks nothing when it is run again: the simulation is at fault")
    for line in failure.trace:
        console.print(line, markup=False, soft_wrap=True)
    for violation in failure.violations:
        console.print(violation, style="bold red", markup=False, soft_wrap=True)
    path = save(failure)
    console.print(f"options: {json.dumps(failure.options)}", markup=False, soft_wrap=True)
    console.print(
        f"commit {git_commit()}; replay: make sim SEED={failure.seed}; saved as {path}",
        markup=False,
        soft_wrap=True,
    )


def replay(seed: int, options: dict[str, Any] | None, *, shrinks: bool) -> int:
    """Run one schedule and print its whole trace. A saved one keeps the options it failed with."""
    options = options or options_saved(seed)
    outcome: Outcome = run_schedule(seed, options)
    if shrinks and outcome.violations:
        best, _ = shrink(
            seed, options, progress=lambda text: console.print(text, markup=False, soft_wrap=True)
        )
        console.rule("shortest")
        console.print(f"options: {json.dumps(best)}", markup=False, soft_wrap=True)
        outcome = run_schedule(seed, best)
    else:
        console.print(
            f"options: {msgspec.json.encode(outcome.options).decode()}",
            markup=False,
            soft_wrap=True,
        )
    for line in outcome.trace():
        console.print(line, markup=False, soft_wrap=True)
    for violation in outcome.violations:
        console.print(str(violation), style="bold red", markup=False, soft_wrap=True)
    steps = outcome.statistics.steps
    console.print(f"seed {seed}: {steps} steps, {len(outcome.violations)} violations")
    return 1 if outcome.violations else 0


def check_determinism(first: int, count: int) -> int:
    """Run seeds twice, the second time in a process whose hashes differ."""
    different = differing_seeds(first, count)
    console.print(f"{count} seeds twice: {len(different)} differ {different[:10] or ''}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
