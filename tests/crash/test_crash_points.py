"""A crash at every operation, openings included: every promise is kept (see ``points``)."""

from __future__ import annotations

import pytest

from tests.crash.disk import POWER_CUTS
from tests.crash.points import DEPTH_MAX, CrashLoop
from tests.effort import CRASH_SEEDS, in_shares

POINTS = 1000
SEEDS = [1000, 2000, 3000, 4000, 5000]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", in_shares(SEEDS, CRASH_SEEDS))
def test_crash_at_every_operation_keeps_every_promise(seed: int) -> None:
    tally = CrashLoop(seed).run(POINTS)
    print(tally.as_json())
    assert tally.points >= POINTS
    assert tally.acknowledged > 80 * tally.workloads, "it stores something"
    assert tally.by_kind.keys() == {"kill", *(cut.name for cut in POWER_CUTS)}
    assert tally.by_depth.keys() == set(range(1, DEPTH_MAX + 1))
    kinds = ["create", "preallocate", "pwritev", "fdatasync", "rename", "sync_directory"]
    # Not every workload has a log that is worth a hole.
    for kind in (*kinds, "punch") if seed == SEEDS[0] else kinds:
        assert tally.by_operation[kind], f"no {kind} was crashed"
