"""Runs of chaos: processes that die and stall, a network that fails, disks that are full or hang.

A longer run: ``python -m tests.chaos --minutes 20``.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.faults import MIXES
from tests.chaos.report import table
from tests.chaos.run import Chaos, run
from tests.effort import CHAOS_SECONDS

SECONDS = float(CHAOS_SECONDS.test)
APPENDS_PER_S = 100.0

STALL_BOUND_S = 30.0
"""Appends succeed within ten seconds of healing; a machine that runs tests may be busy
meanwhile."""


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mix", ["kill", "partition", "disk"])
def test_run_with_faults_breaks_no_promise(mix: str, capsys: pytest.CaptureFixture[str]) -> None:
    seed = random.SystemRandom().randrange(10**6)
    chaos = Chaos(SECONDS, seed, mix=mix, appends_per_s=APPENDS_PER_S, stall_bound_s=STALL_BOUND_S)
    report = run(chaos)
    text = table(report)
    with capsys.disabled():
        print(
            f"\nchaos, mix {mix}, seed {seed}: longest stall after healing "
            f"{report.stall_after_heal_s:.2f} s (bound {STALL_BOUND_S:g} s)"
        )
    assert not report.violations, text
    assert report.acknowledged > SECONDS, text
    assert report.values_read > SECONDS, text
    assert report.commits > 1, text
    assert len(report.faults) > len(MIXES[mix]) / 3, text


def test_help_names_the_options() -> None:
    root = Path(__file__).parent.parent.parent
    argv = [sys.executable, "-m", "tests.chaos", "--help"]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True)
    assert "--minutes" in done.stdout
