"""Command: ``python -m tests.proof`` runs every proof and writes PROOF.md from what they found.

``--only NAME`` runs one of them again; ``--page`` writes the page from the figures that are there.
A run that fails ends the command, and the page stays as it was.
"""

from __future__ import annotations

import subprocess
import sys

import click

from tests.proof.page import PAGE, page
from tests.proof.steps import FIGURES, STEPS


@click.command()
@click.option("--only", type=click.Choice([step.name for step in STEPS]), help="run this one only")
@click.option("--page", "page_only", is_flag=True, help="run nothing, write the page")
def main(only: str | None, page_only: bool) -> None:
    """Run, then write PROOF.md; exit 1 when a run has found something."""
    FIGURES.mkdir(exist_ok=True)
    for step in () if page_only else STEPS:
        if only in (None, step.name):
            click.echo(f"$ {step.command}")
            command = [sys.executable, "-m", step.module, *step.arguments]
            ended = subprocess.run([*command, "--json", str(step.figures)], check=False)
            if ended.returncode:
                raise click.ClickException(f"{step.name} found something: see above")
    PAGE.write_text(page(), encoding="utf-8")
    click.echo(f"{PAGE.name} is written")


if __name__ == "__main__":
    main()
