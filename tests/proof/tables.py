"""Markdown tables of the generated pages, and the figures that they are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tests.proof.steps import Step

Figures = Any
"""What a tool wrote, as JSON."""


def figures_of(step: Step) -> Figures:
    """The figures of the last run. Raises FileNotFoundError if there was none."""
    return json.loads(step.figures.read_text(encoding="utf-8"))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """One table, with a line end behind it."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")
