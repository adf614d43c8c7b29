"""Many runs with drawn faults: does a protocol lose what it promises to keep?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from spark_ledger.lab.protocols import LOSE_NOTHING, ONCE_IN_ORDER
from spark_ledger.lab.runs import run
from spark_ledger.lab.scenarios import DRAWN


class Explored(NamedTuple):
    """What came of the runs of one protocol."""

    protocol: str
    schedules: int
    lost_in: int
    """In how many schedules something that was acknowledged is gone."""
    most_lost: int
    stale_in: int
    """In how many schedules a read lacked what was acknowledged before it began."""
    first_seed: int | None
    """The first of all these: ``ledger lab explain drawn`` tells it."""
    unacknowledged: int
    """Values that were never acknowledged, though all faults ended long before the end."""
    broken: tuple[tuple[int, str], ...]
    """Seeds in which a promise of the protocol itself did not hold, and which."""

    @property
    def holds(self) -> bool:
        """Whether all was as the protocol promises."""
        return not self.broken and not (self.lost_in and self.protocol in LOSE_NOTHING)


def explore(protocol: str, seeds: Iterable[int], advance: Callable[[], None]) -> Explored:
    """Run a protocol once with the faults of each seed; ``advance`` is called after each run."""
    count, lost_in, most_lost, stale_in, unacknowledged = 0, 0, 0, 0, 0
    first_seed: int | None = None
    broken: list[tuple[int, str]] = []
    for seed in seeds:
        count += 1
        try:
            outcome, _world = run(DRAWN, protocol, seed, counts_copies=False)
        except AssertionError as error:
            broken.append((seed, str(error)))
        else:
            unacknowledged += outcome.sent - outcome.acknowledged
            lost_in, most_lost = lost_in + (outcome.lost > 0), max(most_lost, outcome.lost)
            stale_in += outcome.stale > 0
            if protocol in ONCE_IN_ORDER and (outcome.doubled or outcome.reordered):
                broken.append((seed, "A value is doubled or reordered."))
            if (outcome.lost or outcome.stale) and first_seed is None:
                first_seed = seed
        advance()
    found = lost_in, most_lost, stale_in, first_seed, unacknowledged
    return Explored(protocol, count, *found, tuple(broken))
