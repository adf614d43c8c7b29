"""Command: ``python -m tests.proof`` runs every proof and writes what they found into three pages.

First come the checks that have no figures. ``--only NAME`` runs one proof again; ``--page``
runs nothing and writes PROOF.md, tests/proof/README.md and tests/mutants/README.md from the figures
that are there. A run that fails ends the command, and the pages stay as they were.
"""

from __future__ import annotations

import subprocess
import sys

import click

from tests.proof.details import COUNTS_PAGE, MUTANTS_PAGE, counts_page, mutants_page
from tests.proof.page import PAGE, ROOT, page
from tests.proof.steps import CHECKS, FIGURES, STEPS


@click.command()
@click.option("--only", type=click.Choice([step.name for step in STEPS]), help="run this one only")
@click.option("--page", "page_only", is_flag=True, help="run nothing, write the pages")
def main(only: str | None, page_only: bool) -> None:
    """Run, then write the pages; exit 1 when a run has found something."""
    FIGURES.mkdir(exist_ok=True)
    for check in () if page_only or only else CHECKS:
        _run(check)
    for step in () if page_only else STEPS:
        if only in (None, step.name):
            _run(("-m", step.module, *step.arguments, "--json", str(step.figures)))
    for path, text in (
        (PAGE, page()),
        (COUNTS_PAGE, counts_page()),
        (MUTANTS_PAGE, mutants_page()),
    ):
        path.write_text(text, encoding="utf-8")
        click.echo(f"{path.relative_to(ROOT)} is written")


def _run(arguments: tuple[str, ...]) -> None:
    """Run Python in a process of its own. Raises ClickException if it fails."""
    shown = f"python {' '.join(arguments)}"
    click.echo(f"$ {shown}")
    if subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False).returncode:
        raise click.ClickException(f"found something, see above: {shown}")


if __name__ == "__main__":
    main()
