"""The byte budget counts exactly."""

from __future__ import annotations

import pytest

from bookie_server.core.admission import ByteBudget


def test_a_budget() -> None:
    budget = ByteBudget(10)
    budget.take(9)
    assert not budget.is_exhausted
    budget.take(5)
    assert budget.is_exhausted and budget.used == 14
    budget.give_back(4)
    assert budget.is_exhausted
    budget.give_back(10)
    assert not budget.is_exhausted and budget.used == 0
    with pytest.raises(AssertionError, match="more was given back"):
        budget.give_back(1)
