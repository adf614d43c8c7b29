"""Protocol, rules of a bookie, wire and stored formats: every branch is passed by its own tests."""

from __future__ import annotations

import pytest

from tests.coverage import WHOLE, measure, unmeasured


@pytest.mark.timeout(600)  # it runs other tests, below a coverage tracer
def test_every_branch_is_passed() -> None:
    total, table, by_file = measure()
    assert total == 100, table
    assert not unmeasured(by_file)
    assert len(by_file) >= 20, "what is measured has been moved"
    for pattern in WHOLE:
        assert any(name.startswith(pattern.rstrip("*")) for name in by_file), pattern
