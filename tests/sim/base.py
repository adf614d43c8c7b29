"""What every part of the simulation needs from the world: time, randomness, the trace, counts."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from spark_ledger.lab.simulation.loop import SimulatedLoop
from spark_ledger.types import LedgerId
from tests.history.violation import Violation
from tests.sim.options import Options

if TYPE_CHECKING:
    from tests.sim.misbehaving import Misbehaviour

Step = tuple[float, str]
"""Virtual time and what happened. Formatted only when somebody reads the trace."""


class SimBase:
    """Time, randomness and the record of one schedule."""

    misbehaviour: Misbehaviour
    """What bookies answer that they should not, or do not. Made by the world."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed = seed
        self.options = options
        self.loop = SimulatedLoop(  # type: ignore[abstract]
            self.random_for("loop"), shuffle=options.shuffle
        )
        self.loop.on_error = self._on_error
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.given_back: set[LedgerId] = set()
        """Ledgers of which a bookie has begun to give its copy back."""
        self.violations: list[Violation] = []
        self.steps: list[Step] = []
        self.healing = False
        """The second phase has begun: no new faults."""
        self.over = False
        """The schedule has been judged. What its tasks do while they end is not recorded."""
        self._delays = self.random_for("delays")

    def random_for(self, name: str) -> random.Random:
        """A random generator for one purpose: one more draw from it changes no other one."""
        return random.Random(f"{name} {self.seed}")

    @property
    def is_beyond_tolerance(self) -> bool:
        """Whether more copies may be damaged than the quorums allow. Then a lost entry must be
        reported as an error, but need not be readable."""
        return self.options.rot == "everywhere"

    def say(self, line: str) -> None:
        """Add one step to the trace."""
        if self.over:
            return
        self.steps.append((self.loop.now, line))

    def fault(self, kind: str, detail: str) -> None:
        """Record that a fault was injected."""
        if self.over:
            return
        self.faults[kind] += 1
        self.say(f"** {kind}: {detail}")

    def violate(self, invariant: str, name: str, text: str) -> None:
        """Record that a promise is broken."""
        if not self.over and len(self.violations) < 20:
            self.say(f"!! {invariant} {name}: {text}")
            self.violations.append(Violation(invariant, name, text))

    def delay(self) -> float:
        """Seconds that a message takes: mostly short, in some schedules occasionally very long."""
        options, draw = self.options, self._delays
        base = options.delay_s * (0.2 + draw.random())
        if options.delay == "heavy" and not self.healing:
            base *= min(draw.paretovariate(1.1), 300.0)
        return base

    def _on_error(self, error: BaseException | None, text: str) -> None:
        if self.over:
            return
        self.violate("bug", "unhandled", f"{text}: {error!r}")
