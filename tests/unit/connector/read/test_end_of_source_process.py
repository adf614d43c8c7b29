"""The end of the process beside Spark's driver in which a query's source lives."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from connector import sessions
from connector.read.readers import LedgerStreamReader
from connector.read.several_source import SeveralSource
from tests.unit.connector.read.test_several import Query as SeveralQuery
from tests.unit.connector.world import ROWS, Cluster, cluster, table, to_read

__all__ = ["cluster"]


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """That of the test runner comes back."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_leaves_the_source_process_by_an_exit_that_closes_it(cluster: Cluster) -> None:
    """Spark ends it so: without an exit its session would hold ephemeral nodes until it expires."""
    cluster.create(1)
    reader = LedgerStreamReader(to_read(), ROWS)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "nothing is opened yet"
    reader.initialOffset()
    with pytest.raises(SystemExit) as left:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert left.value.code == 128 + signal.SIGTERM
    reader.stop()
    assert cluster.connections[-1]._closed


def test_handler_of_somebody_else_is_kept(cluster: Cluster) -> None:
    seen: list[int] = []

    def theirs(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    signal.signal(signal.SIGTERM, theirs)
    cluster.create(1)
    LedgerStreamReader(to_read(), ROWS).initialOffset()
    assert signal.getsignal(signal.SIGTERM) is theirs


def test_query_that_is_stopped_twice_takes_no_connection_from_the_next(cluster: Cluster) -> None:
    cluster.create(1)
    first, second = (LedgerStreamReader(to_read(), ROWS) for _ in range(2))
    first.initialOffset()
    first.stop()
    second.initialOffset()
    first.stop()
    assert not cluster.connections[-1]._closed
    assert sessions.connection(to_read().connection) is cluster.connections[-1]


def test_query_of_several_streams_keeps_no_commit_that_it_has_passed(cluster: Cluster) -> None:
    streams = [cluster.create(*range(5), name=name) for name in "ab"]
    query = SeveralQuery(maxRowsPerTrigger="4")
    source = query.reader._source
    assert isinstance(source, SeveralSource)
    for row in range(5, 8):
        for stream in streams:
            stream.append(table(row))
        assert query.trigger()
    assert query.rest()
    assert [each._commits.memory_bytes for each in source._sources.values()] == [0, 0]
