"""First micro-batches of query runs: remembered for the runs that came last."""

from __future__ import annotations

import pytest

from connector.write import repeated
from connector.write.repeated import MicroBatch, is_first_of_run


def batch(run: int, batch_id: int) -> MicroBatch:
    return MicroBatch("sink", "query", f"run-{run}", batch_id, ())


def test_runs_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "RUNS_REMEMBERED_MAX", 3)
    monkeypatch.setattr(repeated, "_FIRST_BATCH_OF_RUN", {})
    for run in range(10):
        assert is_first_of_run(batch(run, 5))
        assert not is_first_of_run(batch(run, 6))
    assert len(repeated._FIRST_BATCH_OF_RUN) == 3
    assert is_first_of_run(batch(9, 5)) and not is_first_of_run(batch(9, 6))
