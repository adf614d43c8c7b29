"""One experiment: a figure of one run of the lab, and what a claim says of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from spark_ledger.lab.runs import Outcome, run
from spark_ledger.lab.scenarios import SCENARIOS

SEED: Final = 1

_SIGNS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "=": operator.eq,
    ">": operator.gt,
}


class Figure(NamedTuple):
    """One figure of one run, and what the claim says of it.

    ``name``: a field of ``Outcome``, or a kind of its decisions. ``bound``: a number, or a protocol
    whose same figure in the same scenario is the bound.
    """

    scenario: str
    protocol: str
    name: str
    sign: str
    bound: float | str

    @property
    def expected(self) -> str:
        """What the claim says, for people."""
        what = self.bound if isinstance(self.bound, str) else f"{self.bound:g}"
        if what == "inf":
            what = "never"
        return f"{self.name} {self.sign} {what}"

    def measure(self) -> float:
        """The figure of the run; infinite, if what it tells the time of never came."""
        return _figure(self.scenario, self.protocol, self.name)

    @property
    def shown(self) -> str:
        """The figure, for people."""
        figure = self.measure()
        return "never" if math.isinf(figure) else f"{figure:g}"

    def holds(self) -> bool:
        """Whether it is what the claim says."""
        bound = self.bound
        if isinstance(bound, str):
            bound = _figure(self.scenario, bound, self.name)
        return _SIGNS[self.sign](self.measure(), bound)


class Claim(NamedTuple):
    """``source``: where it is said, by title and author."""

    statement: str
    source: str
    figures: tuple[Figure, ...]

    def holds(self) -> bool:
        """Whether every figure is as the claim says."""
        return all(figure.holds() for figure in self.figures)


@cache
def outcome(scenario: str, protocol: str) -> Outcome:
    """What came of a run with ``SEED``. A run repeats itself, so one is enough."""
    return run(SCENARIOS[scenario], protocol, SEED)[0]


def _figure(scenario: str, protocol: str, name: str) -> float:
    result = outcome(scenario, protocol)
    if name in Outcome._fields:
        figure = getattr(result, name)
        return math.inf if figure is None else float(figure)
    return float(result.decisions.get(name, 0))
