"""Micro-batches that are repeated, and those that only look like it."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest

from connector.write import repeated
from connector.write.repeated import MicroBatch, is_first_of_run
from spark_ledger.errors import ConflictError
from spark_ledger.stream.commit import committer
from tests.unit.connector import world
from tests.unit.connector.world import Cluster, cluster, table
from tests.unit.connector.write.test_routed import micro_batch

__all__ = ["cluster"]


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


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("lenient", [False, True])
def test_micro_batch_that_is_repeated_for_some_of_its_streams_is_no_repetition(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    lenient: bool,
) -> None:
    """An older copy of the checkpoint, and a lower limit: the rest would come with the next one."""
    micro_batch(monkeypatch, 5, [("x", 1), ("y", 2)])
    part = [(name, {"x": 1, "y": 2}[name])]
    told = rf"'{name}': micro-batch 5 .*with 2 rows in 2 streams; now it has 1 rows in 1 streams"
    with pytest.raises(ConflictError, match=told) if not lenient else nullcontext():
        micro_batch(monkeypatch, 5, part, run="again", failOnDataLoss=str(not lenient).lower())
    assert not lenient or re.search(told, caplog.text)
    assert [cluster.rows(name) for name in "xy"] == [[1], [2]]
    cluster.restart()
    micro_batch(monkeypatch, 5, [("x", 1), ("y", 2)], run="third")
    assert [cluster.rows(name) for name in "xy"] == [[1], [2]]


def test_micro_batch_of_an_older_program_is_repeated_as_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits do not say what else was committed with them."""
    with monkeypatch.context() as older:
        older.setattr(repeated.MicroBatch, "noted_run", repeated.MicroBatch.run)
        micro_batch(monkeypatch, 5, [("x", 1), ("y", 2)])
    assert cluster.stream("x").commit(0).run_id == "q/r"
    micro_batch(monkeypatch, 5, [("x", 1), ("y", 2)], run="again")
    micro_batch(monkeypatch, 6, [("x", 3)], run="again")
    assert [cluster.rows(name) for name in "xy"] == [[1, 3], [2]]


@pytest.mark.parametrize("rows", [[], [3, 4]])
def test_micro_batch_whose_commit_was_dropped_is_repeated_also_once_its_segment_list_is_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    """The newest of the dropped commits keep their nodes, which name that list: the query ended at
    each restart."""
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 50)
    world.micro_batch(monkeypatch, 0, 1, 2)
    world.micro_batch(monkeypatch, 1, 3, 4)
    cluster.stream().append(table(9))
    cluster.stream().retention.truncate("latest")
    cluster.give_back()
    cluster.restart()
    world.micro_batch(monkeypatch, 1, *rows, run="r2")
    world.micro_batch(monkeypatch, 2, 5, run="r2")
    assert cluster.rows() == [5]
