"""Searches all states of small scopes: ``python -m tests.exhaustive [--scope NAME]``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.exhaustive.scopes import LONG, QUICK, Scope, named
from tests.exhaustive.search import Found, Search


@click.command()
@click.option("--scope", "names", multiple=True, help="only these scopes, by name")
@click.option("--quick", is_flag=True, help="only the scopes that every test run searches")
@click.option("--states", "states_max", default=2_000_000, show_default=True, help="most per scope")
@click.option("--json", "path", type=click.Path(path_type=Path), help="write the results here")
def main(names: tuple[str, ...], quick: bool, states_max: int, path: Path | None) -> None:
    """Search scopes, print a table; exit 1 if a promise is broken in any."""
    try:
        scopes = [named(name) for name in names] or [*QUICK, *(() if quick else LONG)]
    except KeyError as error:
        known = ", ".join(scope.name for scope in (*QUICK, *LONG))
        raise click.UsageError(f"there is no scope {error}; there are {known}") from None
    console = Console(width=None if sys.stdout.isatty() else 140)
    results = [(scope, _search(scope, states_max, console)) for scope in scopes]
    console.print(_table(results))
    for _, found in results:
        if found.violation:
            console.print(f"{found.scope}: {found.violation}", markup=False)
            console.print("\n".join(found.trace), markup=False, highlight=False)
    if path is not None:
        path.write_text(json.dumps([asdict(found) for _, found in results], indent=1) + "\n")
    if any(found.violation for _, found in results):
        raise SystemExit(1)


def _search(scope: Scope, states_max: int, console: Console) -> Found:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(scope.name, total=states_max)
        return Search(scope).run(
            states_max, lambda found: progress.update(task, completed=found.states)
        )


def _table(results: list[tuple[Scope, Found]]) -> Table:
    table = Table("scope", "what may happen")
    for name in ("states", "transitions", "depth", "ends", "states/s"):
        table.add_column(name, justify="right")
    table.add_column("seen")
    table.add_column("violation")
    for scope, found in results:
        table.add_row(
            scope.name,
            str(scope),
            f"{found.states:,}",
            f"{found.transitions:,}",
            str(found.depth),
            f"{found.ends:,}",
            f"{found.states / max(found.seconds, 0.001):,.0f}",
            "all" if found.complete else "in part",
            found.violation or "none",
        )
    total = sum(found.states for _, found in results)
    table.caption = f"{total:,} distinct states"
    return table


if __name__ == "__main__":
    main()
