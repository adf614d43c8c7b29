"""Thousands of simulated schedules break no promise, and any of them can be repeated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest

from tests.sim.regressions import saved
from tests.sim.running import run_many, trace_hashes
from tests.sim.schedule import run_schedule

SCHEDULES: Final = int(os.environ.get("SPARK_LEDGER_SIM_SCHEDULES", "200"))


def test_schedules_keep_every_promise() -> None:
    """Each seed draws its own cluster, workload and faults; see ``python -m tests.sim``."""
    totals = run_many(0, SCHEDULES, jobs=2)
    report = "\n".join(
        f"seed {failure.seed}: {failure.violations[0]}" for failure in totals.failures[:10]
    )
    assert not totals.failures, f"{report}\nreplay: python -m tests.sim --seed SEED"
    assert totals.schedules == SCHEDULES
    assert totals.all_faults >= 10 * SCHEDULES


def test_a_seed_is_a_schedule() -> None:
    """The same trace in this process and in one whose sets and dicts hash differently."""
    assert trace_hashes(0, 20) == trace_hashes(0, 20, hash_seed="1")


@pytest.mark.parametrize("path", saved(), ids=lambda path: path.stem)
def test_what_failed_once(path: Path) -> None:
    saved_schedule = json.loads(path.read_text())
    outcome = run_schedule(saved_schedule["seed"], saved_schedule["options"])
    assert not outcome.violations, [str(violation) for violation in outcome.violations]
