"""A few seconds of the worst hostile clients; the proofs have each kind for longer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests import effort
from tests.hostile.attacks import ATTACKS
from tests.hostile.run import run, table

pytestmark = pytest.mark.processes


def attack(kinds: Sequence[str], seconds: float) -> None:
    report = run(kinds, seconds)
    print(table(report))
    assert not report.problems


def test_bookie_under_attack_keeps_its_memory_and_its_neighbour() -> None:
    attack(effort.HOSTILE_KINDS, effort.HOSTILE_SECONDS.test)


@pytest.mark.proof
def test_bookie_under_every_attack_keeps_its_memory_and_its_neighbour() -> None:
    attack(list(ATTACKS), effort.HOSTILE_SECONDS.proof)
