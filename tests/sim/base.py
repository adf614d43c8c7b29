"""What every part of the simulation asks of the world: time, chance, the trace, the tally."""

from __future__ import annotations

import random
from collections import Counter

from tests.history.violation import Violation
from tests.sim.loop import SimulatedLoop
from tests.sim.options import Options

Step = tuple[float, str]
"""When something happened, and what. Made into text only when somebody wants to read it."""


class SimBase:
    """Time, chance and the record of one schedule."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed = seed
        self.options = options
        self.loop = SimulatedLoop(  # type: ignore[abstract]
            self.stream("loop"), shuffle=options.shuffle
        )
        self.loop.on_error = self._on_error
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self.steps: list[Step] = []
        self.healing = False
        """Phase B: no new faults."""
        self.over = False
        """The schedule is judged; what its tasks do while they end counts no more."""
        self._delays = self.stream("delays")

    def stream(self, name: str) -> random.Random:
        """Chance for one purpose, so that one draw more there changes nothing elsewhere."""
        return random.Random(f"{name} {self.seed}")

    @property
    def is_beyond_tolerance(self) -> bool:
        """More copies may be damaged than the quorums allow: what is gone must be noticed, and
        need not be there."""
        return self.options.rot == "everywhere"

    def say(self, line: str) -> None:
        """One step into the trace."""
        if self.over:
            return
        self.steps.append((self.loop.now, line))

    def fault(self, kind: str, detail: str) -> None:
        """Something was made to go wrong."""
        if self.over:
            return
        self.faults[kind] += 1
        self.say(f"** {kind}: {detail}")

    def violate(self, invariant: str, name: str, text: str) -> None:
        """A promise is broken."""
        if not self.over and len(self.violations) < 20:
            self.say(f"!! {invariant} {name}: {text}")
            self.violations.append(Violation(invariant, name, text))

    def delay(self) -> float:
        """How long a message takes: mostly short, in some schedules now and then very long."""
        options, draw = self.options, self._delays
        base = options.delay_s * (0.2 + draw.random())
        if options.delay == "heavy" and not self.healing:
            base *= min(draw.paretovariate(1.1), 300.0)
        return base

    def _on_error(self, error: BaseException | None, text: str) -> None:
        if self.over:
            return
        self.violate("bug", "unhandled", f"{text}: {error!r}")
