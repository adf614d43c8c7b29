"""No change makes an entry dearer unnoticed: Python calls for each, against those that are held."""

from __future__ import annotations

import json

import pytest

from benchmarks.calls import LIMITS, SLACK, count


@pytest.mark.leaves_open("BookieRegistry._keep", reason="the process of a bookie goes on")
def test_entry_runs_through_as_many_python_calls_as_before() -> None:
    """More: profile the change, or say in its message why it is worth that. Fewer: hold that.
    Either way ``python -m benchmarks.calls --write`` writes the counts down."""
    held = json.loads(LIMITS.read_text(encoding="utf-8"))
    counts = count()
    assert counts.keys() == held.keys()
    changed = [
        f"{name}, {side}: {counts[name][side]} calls, {before} before"
        for name, sides in held.items()
        for side, before in sides.items()
        if abs(counts[name][side] - before) > max(SLACK * before, 1.0)
    ]
    assert not changed, changed
