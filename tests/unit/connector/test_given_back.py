"""Queries beside retention: what they meet was dropped, and its ledgers and commits are deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from connector.read.readers import LedgerBatchReader
from connector.read.task import read_partition
from spark_ledger.errors import DataLossError
from spark_ledger.stream.plan import read_plan
from tests.unit.connector.world import (
    ROWS,
    Cluster,
    cluster,
    copied,
    micro_batch,
    table,
    to_read,
    values,
)
from tests.unit.connector.write.test_routed import micro_batch as routed_micro_batch
from tests.unit.spark_ledger.stream.world import small_manifests

__all__ = ["cluster"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dropped lies in manifests soon, so that its commits go as well."""
    small_manifests(monkeypatch, leaf=2, fan_out=3)


def drop_all(cluster: Cluster, name: str = "s") -> None:
    """Drop what the stream has, give it back, and go on with other rows."""
    made = cluster.stream(name)
    for row in range(100, 108):
        made.append(table(row))
    made.retention.truncate("latest")
    for row in range(108, 112):
        made.append(table(row))
    made.close()
    cluster.give_back(name)
    with pytest.raises(DataLossError):
        cluster.restart()
        cluster.stream(name).commit(0)


@pytest.mark.parametrize("long_from", [10, 1000], ids=["spans", "ranges"])
def test_read_goes_on_behind_what_was_given_back_under_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, long_from: int
) -> None:
    monkeypatch.setattr(read_plan, "SEGMENTS_PLANNED_MAX", long_from)
    cluster.create()
    for first in (0, 30):  # in two ledgers
        made = cluster.stream()
        for row in range(first, first + 30):
            made.append(table(row))
        made.close()
    options = to_read(False, failOnDataLoss="false", minPartitions="3")
    partitions = copied(list(LedgerBatchReader(options, ROWS).partitions()))
    cluster.stream().retention.truncate((30,))
    cluster.give_back()
    cluster.restart()
    read = [row for each in partitions for row in values(read_partition(options, ROWS, each))]
    assert read == list(range(30, 60))
    with pytest.raises(DataLossError):
        values(read_partition(to_read(False), ROWS, partitions[0]))


def one_stream(
    monkeypatch: pytest.MonkeyPatch, number: int, *rows: int, run: str, **given: str
) -> None:
    assert not given
    micro_batch(monkeypatch, number, *rows, run=run)


def routed(
    monkeypatch: pytest.MonkeyPatch, number: int, *rows: int, run: str, **given: str
) -> None:
    routed_micro_batch(monkeypatch, number, [("s", row) for row in rows], run=run, **given)


@pytest.mark.parametrize("write", [one_stream, routed])
def test_micro_batch_whose_commit_was_given_back_is_repeated_after_a_restart(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    """A query that was down for longer than rows are kept begins with its last micro-batch."""
    cluster.create()
    write(monkeypatch, 0, 1, 2, run="before")
    drop_all(cluster)
    write(monkeypatch, 0, 1, 2, run="after")
    assert cluster.rows() == [108, 109, 110, 111], "it was committed once, and dropped"
    write(monkeypatch, 1, 3, run="after")
    assert cluster.rows() == [108, 109, 110, 111, 3]
