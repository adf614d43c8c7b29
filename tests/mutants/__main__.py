"""Command: ``python -m tests.mutants`` puts bugs in and looks for them; each must be found.

Without options it searches afresh, within budgets, and saves in ``kills.json`` what killed each
mutant. ``--replay`` only repeats what killed it before, which takes seconds. With ``--replay``,
``--suite`` or an ``--effort`` below 1, ``kills.json`` stays as it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tests.mutants import suites
from tests.mutants.catalog import (
    ROOT,
    Mutant,
    StaleError,
    SuiteName,
    chosen,
    evenly,
    load,
)
from tests.mutants.running import (
    Judge,
    Verdict,
    hunt,
    hunt_again,
    hunt_with_all,
    run_all,
    without_false_kills,
)
from tests.mutants.suites import KILLS, kills_before

HANGS_AFTER_S: Final = 1800.0
REPLAY_HANGS_AFTER_S: Final = 240.0


@click.command()
@click.option("--only", "names", multiple=True, help="only these mutants, by name")
@click.option("--area", help="only the mutants of one file: protocol, storage, ...")
@click.option("--replay", is_flag=True, help="only where each mutant was killed before")
@click.option("--at-most", type=int, help="only so many mutants, evenly from all files")
@click.option("--suite", "with_suites", multiple=True, help="these suites for every mutant, all")
@click.option("--effort", default=1.0, show_default=True, help="times the usual budget")
@click.option("--jobs", default=2, show_default=True, help="mutants at the same time")
@click.option("--json", "path", type=click.Path(path_type=Path), help="write the verdicts here")
def main(
    names: tuple[str, ...],
    area: str | None,
    replay: bool,
    at_most: int | None,
    with_suites: tuple[SuiteName, ...],
    effort: float,
    jobs: int,
    path: Path | None,
) -> None:
    """Kill every mutant; exit 1 if one survives."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        everything = load()
        mutants = [m for m in chosen(everything, names) if area in (None, m.area)]
        mutants = evenly(mutants, at_most or len(mutants))
    except (KeyError, StaleError, msgspec.ValidationError) as error:
        raise click.UsageError(f"{error}") from None
    kills = kills_before() if KILLS.exists() else {}
    how: Judge = hunt_with_all(with_suites, effort) if with_suites else hunt(effort)
    if replay:
        unknown = [mutant.name for mutant in mutants if mutant.name not in kills]
        if unknown:
            raise click.UsageError(f"never killed before, run without --replay: {unknown}")
        how = hunt_again(kills)
    os.chdir(ROOT)  # paths of tests are relative to it
    suites.warm()
    verdicts = run_all(
        mutants,
        how,
        jobs=jobs,
        seconds_max=REPLAY_HANGS_AFTER_S if replay else HANGS_AFTER_S,
        done=lambda verdict: console.print(_line(verdict), markup=False, highlight=False),
    )
    if not replay and not with_suites:
        verdicts = without_false_kills(verdicts, mutants, jobs=jobs, seconds_max=HANGS_AFTER_S)
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(verdicts)) + b"\n")
    if not replay and not with_suites and effort >= 1:
        _keep(verdicts, everything)
    if not with_suites:
        console.print(_table(everything, verdicts))
        if any(verdict.kill is None for verdict in verdicts):
            raise SystemExit(1)


def _keep(verdicts: list[Verdict], mutants: list[Mutant]) -> None:
    kills = kills_before() if KILLS.exists() else {}
    kills |= {verdict.name: verdict.kill for verdict in verdicts if verdict.kill is not None}
    kept = {mutant.name: kills[mutant.name] for mutant in mutants if mutant.name in kills}
    KILLS.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")


def _line(verdict: Verdict) -> str:
    if verdict.error:
        return f"{verdict.name}: {verdict.error}"
    parts = [
        f"{t.suite} {'after ' + str(t.tried) if t.kill else 'not in ' + str(t.tried)} "
        f"({t.seconds:.1f} s)"
        for t in verdict.tried
    ]
    return f"{verdict.name}: {', '.join(parts)}"


def _table(mutants: list[Mutant], verdicts: list[Verdict]) -> Table:
    by_name = {mutant.name: mutant for mutant in mutants}
    table = Table("mutant", "resembles", "killed by", "at", "found")
    table.add_column("schedules", justify="right")
    table.add_column("seconds", justify="right")
    for verdict in verdicts:
        kill = verdict.kill
        table.add_row(
            verdict.name,
            by_name[verdict.name].resembles,
            kill.suite if kill else "SURVIVES",
            Path(kill.seed).name if kill else "",
            kill.what[:60] if kill else verdict.error,
            str(kill.tried) if kill else "",
            f"{verdict.seconds:.1f}",
        )
    survivors = sum(verdict.kill is None for verdict in verdicts)
    equivalent = sum(bool(mutant.equivalent) for mutant in mutants)
    table.caption = (
        f"{len(verdicts)} mutants, {survivors} survive; {equivalent} more are equivalent"
    )
    return table


if __name__ == "__main__":
    main()
