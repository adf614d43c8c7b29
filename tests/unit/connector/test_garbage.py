"""What Spark's collections look at after each call."""

from __future__ import annotations

import gc

import pytest

from connector import garbage
from connector.read.readers import LedgerBatchReader
from tests.unit.connector.world import ROWS, Cluster, cluster, copied, to_read, values

__all__ = ["cluster"]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, in place of the process's own garbage collector."""
    done: list[str] = []
    monkeypatch.setattr(garbage, "_SET_ASIDE", set())
    monkeypatch.setattr(gc, "collect", lambda: done.append("collected"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))
    return done


def test_kept_process_sets_its_objects_aside_once_in_each_role(
    cluster: Cluster, frozen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    cluster.create(1, 2)
    reader = LedgerBatchReader(to_read(False), ROWS)
    (partition,) = reader.partitions()
    assert frozen == ["collected", "frozen"], "so that no garbage is kept"
    for _ in range(3):
        assert values(copied(reader).read(copied(partition))) == [1, 2]
        reader.partitions()
    assert frozen == ["collected", "frozen"] * 2


def test_process_that_spark_does_not_keep_is_left_alone(
    cluster: Cluster, frozen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    cluster.create(1)
    LedgerBatchReader(to_read(False), ROWS).partitions()
    assert frozen == []
