"""The runs of ``make proof``: what each is called, and what it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tests import effort

FIGURES: Final = Path(__file__).parent / "figures"
"""One JSON file for each run, as its tool wrote it, committed: the pages can be made again."""


class Step(NamedTuple):
    """One run of one tool. ``module`` takes ``arguments`` and ``--json FILE``."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()

    @property
    def figures(self) -> Path:
        """Where its figures are."""
        return FIGURES / f"{self.name}.json"

    @property
    def command(self) -> str:
        """What a reader types to see the same."""
        return " ".join(("python -m", self.module, *self.arguments))


STEPS: Final = (
    Step("sim", "tests.sim", ("--schedules", str(effort.SIMULATED_SCHEDULES.proof))),
    Step("exhaustive", "tests.exhaustive", ("--quick",)),
    Step("mutants", "tests.mutants", ("--replay",)),
    Step(
        "crash",
        "tests.crash",
        ("--points", str(effort.CRASH_POINTS.proof), "--failures", "1", "--rot", "3000"),
    ),
    Step("fuzz", "tests.fuzz", ("--inputs", str(effort.FUZZED_INPUTS.proof))),
    Step("chaos", "tests.chaos", ("--minutes", f"{effort.CHAOS_SECONDS.proof / 60:g}")),
    Step("hostile", "tests.hostile", ("--seconds", str(effort.HOSTILE_SECONDS.proof))),
    Step("lab", "tests.lab", ("--schedules", str(effort.LAB_SCHEDULES.proof))),
    Step("coverage", "tests.coverage"),
)

CHECKS: Final = (
    ("-m", "pytest", "-m", "proof", "-q"),
    ("-m", "tests.sim", "--determinism", str(effort.SIMULATED_TWICE.proof)),
    ("-m", "tests.losses", "--minutes", f"{effort.LOSSES_SECONDS.proof / 60:g}"),
    ("-m", "tests.endurance", "--minutes", f"{effort.ENDURANCE_SECONDS.proof / 60:g}"),
    ("-m", "tests.endurance.many", "--minutes", f"{effort.MANY_QUERIES_SECONDS.proof / 60:g}"),
)
"""What has no figures: the tests that ``make test`` leaves out, seeds that have to give the same
trace twice, bookies that a stranger takes away, what piles up beside a query that loses
workers, and the memory of a driver with ten queries. Arguments of Python."""
