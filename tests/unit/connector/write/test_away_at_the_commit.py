"""A store that is away while a running query opens what its tasks wrote to, or prepares a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from connector import sessions
from connector.options import write_options
from connector.write import routed, writers
from connector.write.prepare import prepare_stream
from connector.write.routed import RoutedStreamWriter
from connector.write.writers import LedgerStreamWriter
from spark_ledger.errors import LedgerError, MetadataUnavailableError, NoSuchStreamError
from spark_ledger.limits.connector import RETRY_AT_START_S, RETRY_PAUSES_S, RETRY_S
from tests.unit.connector.world import ROWS, Cluster, Task, cluster, copied, table, to_write

__all__ = ["cluster"]

ROUTED = StructType([StructField("topic", StringType()), *ROWS.fields])
Commit = Callable[[], None]


def one_stream(monkeypatch: pytest.MonkeyPatch) -> Commit:
    """A micro-batch of one row that is written; what commits it."""
    writer = LedgerStreamWriter(to_write(True, stream="x"), ROWS, overwrite=False)
    monkeypatch.setattr(writers, "TaskContext", Task())
    message = copied(writer).write(iter(table(1).to_batches()))
    return lambda: copied(writer).commit(copied([message]), 0)


def several_streams(monkeypatch: pytest.MonkeyPatch, *names: str) -> Commit:
    """The same with a row for each of some streams."""
    options = write_options({"metadata": "zk://h/l", "routeColumn": "topic"}, streaming=True)
    writer = RoutedStreamWriter(options, ROUTED, overwrite=False)
    monkeypatch.setattr(routed, "TaskContext", Task())
    rows = pa.table({"topic": pa.array(names, pa.string()), "a": pa.array([1] * len(names))})
    message = copied(writer).write(iter(rows.to_batches() if names else []))
    return lambda: copied(writer).commit(copied([message]), 0)


class Away:
    """Stands in for ``sessions.stream``: raises an error for each stream for so long."""

    def __init__(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: LedgerError, **for_s: float
    ) -> None:
        self._open, self._error, self._for_s = sessions.stream, error, for_s
        self._clock = cluster.clock
        self._since: dict[str, float] = {}
        monkeypatch.setattr(sessions, "stream", self)

    def __call__(self, options: Any, name: str, stream_id: str) -> Any:
        since = self._since.setdefault(name, self._clock.now)
        if self._clock.now - since < self._for_s.get(name, 0.0):
            raise self._error
        return self._open(options, name, stream_id)


AWAY = MetadataUnavailableError("no ZooKeeper answered")


@pytest.mark.parametrize(
    ("error", "for_s"), [(AWAY, 0.05), (AWAY, 110.0), (NoSuchStreamError("it lags"), 0.5)]
)
def test_micro_batch_is_committed_once_its_stream_can_be_opened(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: LedgerError, for_s: float
) -> None:
    commit = one_stream(monkeypatch)
    Away(cluster, monkeypatch, error, x=for_s)
    commit()
    assert cluster.rows("x") == [1]
    assert cluster.stream("x").head().next_commit == 1


@pytest.mark.parametrize(("x", "y"), [(0.05, 0.0), (0.0, 110.0), (50.0, 50.0)])
def test_routed_micro_batch_is_committed_once_all_of_its_streams_can_be_opened(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, x: float, y: float
) -> None:
    commit = several_streams(monkeypatch, "x", "y")
    Away(cluster, monkeypatch, AWAY, x=x, y=y)
    commit()
    assert [cluster.rows(name) for name in "xy"] == [[1], [1]]


@pytest.mark.parametrize(("x", "y"), [(1e9, 0.0), (70.0, 70.0)])
def test_streams_of_one_commit_share_the_wait_for_a_store_that_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, x: float, y: float
) -> None:
    commit = several_streams(monkeypatch, "x", "y")
    Away(cluster, monkeypatch, AWAY, x=x, y=y)
    began = cluster.clock.now
    with pytest.raises(MetadataUnavailableError):
        commit()
    assert RETRY_S - RETRY_PAUSES_S[-1] < cluster.clock.now - began <= RETRY_S
    assert [cluster.rows(name) for name in "xy"] == [[], []]


def test_connection_for_a_routed_micro_batch_without_rows_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stream was opened before it, so it is the first thing that a new process asks for."""
    commit, connection, failures = several_streams(monkeypatch), sessions.connection, [AWAY]

    def connect(options: Any) -> Any:
        if failures:
            raise failures.pop()
        return connection(options)

    monkeypatch.setattr(sessions, "connection", connect)
    commit()
    assert cluster.clock.pauses == [RETRY_PAUSES_S[0]]


@pytest.mark.parametrize(("is_known", "budget_s"), [(False, RETRY_AT_START_S), (True, RETRY_S)])
def test_process_that_has_reached_the_cluster_waits_longer_to_prepare_a_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_known: bool, budget_s: float
) -> None:
    """It prepares each micro-batch of a running query, which is dear to end; another one has a
    wrong URI more likely."""
    if is_known:
        prepare_stream(to_write(), ROWS)

    def away(*_given: object) -> Any:
        raise AWAY

    monkeypatch.setattr(sessions, "fresh_stream", away)
    began = cluster.clock.now
    with pytest.raises(MetadataUnavailableError):
        prepare_stream(to_write(), ROWS)
    assert budget_s - RETRY_PAUSES_S[-1] < cluster.clock.now - began <= budget_s
