"""A few seconds of the worst hostile clients; ``make proof`` has each kind for longer."""

from __future__ import annotations

import pytest

from tests import effort
from tests.hostile.run import run, table

pytestmark = pytest.mark.processes


def test_bookie_under_attack_keeps_its_memory_and_its_neighbour() -> None:
    report = run(effort.HOSTILE_KINDS, effort.HOSTILE_SECONDS.test)
    print(table(report))
    assert not report.problems
