"""The runs that PROOF.md reports: what each is called, and what it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

FIGURES: Final = Path(__file__).parent / "figures"
"""One JSON file for each run, as its tool wrote it, committed: the page can be made again."""


class Step(NamedTuple):
    """One run of one tool. ``module`` takes ``arguments`` and ``--json FILE``."""

    name: str
    module: str
    arguments: tuple[str, ...]

    @property
    def figures(self) -> Path:
        """Where its figures are."""
        return FIGURES / f"{self.name}.json"

    @property
    def command(self) -> str:
        """What a reader types to see the same."""
        return " ".join(("python -m", self.module, *self.arguments))


STEPS: Final = (
    Step("sim", "tests.sim", ("--schedules", "50000")),
    Step("exhaustive", "tests.exhaustive", ("--quick",)),
    Step("mutants", "tests.mutants", ("--replay",)),
    Step("crash", "tests.crash", ("--points", "10000", "--failures", "1", "--rot", "3000")),
    Step("fuzz", "tests.fuzz", ("--inputs", "2000000")),
    Step("chaos", "tests.chaos", ("--minutes", "2")),
    Step("coverage", "tests.coverage", ()),
)
