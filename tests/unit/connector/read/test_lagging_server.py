"""A metadata server that lags: a stream that it does not know yet is no deleted one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from connector import sessions
from connector.options import ReadOptions
from connector.read import readers
from connector.read.readers import LedgerBatchReader, LedgerStreamReader
from connector.read.source import stored_schema
from connector.read.task import read_partition
from connector.write.prepare import prepare_stream
from spark_ledger.errors import DataLossError, NoSuchStreamError
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.stream.blocking import Stream, StreamConnection
from spark_ledger.types import Versioned
from tests.unit.connector.read.test_several import Query, options, soon
from tests.unit.connector.world import (
    ROWS,
    WIDER,
    Cluster,
    cluster,
    copied,
    table,
    to_read,
    to_write,
    values,
)
from tests.unit.connector.write.test_beside_deletions import delete_in_part

__all__ = ["cluster", "soon"]


def nodes_of_now(tree: MemoryTree) -> MemoryTree:
    known = MemoryTree()
    known._nodes = dict(tree._nodes)
    known._children = {path: set(names) for path, names in tree._children.items()}
    return known


class Lag:
    """Processes of Spark that begin now connect to a server that knows the nodes of some earlier
    time, until it is asked for the latest."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cluster = cluster
        self._monkeypatch = monkeypatch
        self.asked: list[str] = []
        self._behind: list[list[MemoryMetadataStore]] = []

    def keep(self) -> None:
        """This is what the server will know."""
        self._known = nodes_of_now(self._cluster._tree)

    def begin(self) -> None:
        self._cluster.restart()
        self._monkeypatch.setattr(StreamConnection, "connect", self._connect)

    def fall_behind(self) -> None:
        """The server of a process that goes on hears of no more changes from now on."""
        self.keep()
        for behind in self._behind:
            behind[:] = [MemoryMetadataStore(self._known)]

    def _connect(self, uri: str, **settings: object) -> StreamConnection:
        made = self._cluster.connect(uri, **settings)
        store = made._client.store
        assert isinstance(store, MemoryMetadataStore)
        behind = [MemoryMetadataStore(nodes_of_now(self._known))]
        self._behind.append(behind)

        def lagging(name: str) -> Callable[[str], Awaitable[Any]]:
            newest = getattr(store, name)

            async def read(path: str) -> Any:
                return await (getattr(behind[0], name) if behind else newest)(path)

            return read

        async def get_latest(path: str) -> Versioned[bytes]:
            self.asked.append(path)
            behind.clear()
            return await MemoryMetadataStore.get_latest(store, path)

        for name in ("get", "children", "listing"):
            setattr(store, name, lagging(name))
        store.get_latest = get_latest  # type: ignore[method-assign]
        return made


@pytest.fixture
def lag(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Lag:
    return Lag(cluster, monkeypatch)


def nothing(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
    assert not cluster.outside.list_streams()


def former(cluster: Cluster, _: pytest.MonkeyPatch) -> None:
    cluster.create(9)


def former_that_goes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create(9)
    delete_in_part(cluster, monkeypatch)


def created(cluster: Cluster, *rows: int) -> Stream:
    """The stream, made again if there was one."""
    with suppress(NoSuchStreamError):
        cluster.outside.delete_stream("s")
    return cluster.create(*rows)


KNOWN = pytest.mark.parametrize("known", [nothing, former, former_that_goes])
"""What the server knows of the name."""


@KNOWN
@pytest.mark.parametrize("loss", ["true", "false"])
def test_task_reads_the_rows_of_a_stream_that_its_server_does_not_know_yet(
    cluster: Cluster,
    lag: Lag,
    monkeypatch: pytest.MonkeyPatch,
    known: Callable[[Cluster, pytest.MonkeyPatch], None],
    loss: str,
) -> None:
    """Its micro-batch would be committed without them, or the query be told to start anew."""
    known(cluster, monkeypatch)
    lag.keep()
    created(cluster, 1, 2, 3)
    options = to_read(failOnDataLoss=loss)
    reader = LedgerStreamReader(options, ROWS)
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    lag.begin()
    found = [read_partition(options, ROWS, part) for part in copied(partitions)]
    assert [row for batches in found for row in values(batches)] == [1, 2, 3]
    assert len(lag.asked) == 1


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("how", ["on", "with its first micro-batch", "to its end"])
def test_driver_that_starts_again_at_a_server_that_knows_the_former_stream_goes_on(
    cluster: Cluster, lag: Lag, monkeypatch: pytest.MonkeyPatch, how: str, loss: str
) -> None:
    """Its micro-batch would be planned without rows, and the checkpoint go on behind them; or the
    query end and ask for a new checkpoint, though no row is lost."""
    monkeypatch.setattr(readers, "_exit_on_sigterm", lambda: None)
    cluster.create(9)
    lag.keep()
    created(cluster, 1, 2, 3)
    options = to_read(failOnDataLoss=loss)
    reader = LedgerStreamReader(options, ROWS)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    lag.begin()
    again = LedgerStreamReader(options, ROWS)
    if how == "to its end":
        again.prepareForTriggerAvailableNow()
        assert again.latestOffset(start, limit) == end
        cluster.stream().append(table(4))
        assert again.latestOffset(end, limit) == end
        return
    if how == "with its first micro-batch":  # Spark asks anew where it starts
        assert again.initialOffset() == start
    partitions = again.partitions(start, end)
    found = [read_partition(options, ROWS, part) for part in copied(partitions)]
    assert [row for batches in found for row in values(batches)] == [1, 2, 3]
    cluster.stream().append(table(4))
    lag.begin()
    third = LedgerStreamReader(options, ROWS)
    partitions = third.partitions(end, third.latestOffset(end, limit))
    found = [read_partition(options, ROWS, part) for part in copied(partitions)]
    assert [row for batches in found for row in values(batches)] == [4]


def batch_read(options: ReadOptions) -> list[int]:
    """The rows of a read as Spark makes it: its schema is found first."""
    reader = LedgerBatchReader(options, stored_schema(options))
    found = [copied(reader).read(part) for part in copied(reader.partitions())]
    return sorted(row for batches in found for row in values(batches))


@KNOWN
@pytest.mark.parametrize("several", [{}, {"streams": "s,t"}, {"streamPattern": "[st]"}])
def test_batch_read_has_all_rows_that_were_acknowledged_before(
    cluster: Cluster,
    lag: Lag,
    monkeypatch: pytest.MonkeyPatch,
    known: Callable[[Cluster, pytest.MonkeyPatch], None],
    several: dict[str, str],
) -> None:
    """Its planner may ask another server than the process that has committed them."""
    known(cluster, monkeypatch)
    cluster.create(7, name="t")
    lag.keep()
    created(cluster, 1, 2, 3)
    cluster.stream("t").append(table(8))
    lag.begin()
    assert batch_read(to_read(False, **several)) == [1, 2, 3, *([7, 8] if several else [])]


def test_batch_read_up_to_a_time_has_all_rows_of_before(cluster: Cluster, lag: Lag) -> None:
    """The next one begins there, so nobody would ever read what this one leaves out."""
    cluster.create(1)
    lag.keep()
    ends = cluster.stream().append(table(2)).time_ms + 1
    while cluster.stream().append(table(3)).time_ms < ends:
        pass
    rows = cluster.rows()
    lag.begin()
    hours = [
        to_read(False, endingTimestamp=str(ends)),
        to_read(False, startingTimestamp=str(ends)),
    ]
    assert [row for options in hours for row in batch_read(options)] == rows


def test_batch_read_has_the_columns_of_all_commits_of_before(cluster: Cluster, lag: Lag) -> None:
    stream = cluster.create(1)
    lag.keep()
    stream.append(table(2).append_column("b", pa.array([5])), merge_schema=True)
    lag.begin()
    options = to_read(False)
    assert stored_schema(options).names == ["a", "b"]
    lag.begin()
    assert LedgerBatchReader(options, WIDER).partitions()


@pytest.mark.parametrize("several", [{}, {"streams": "s,t"}])
def test_run_to_the_end_of_now_reads_all_rows_that_were_acknowledged_before(
    cluster: Cluster, lag: Lag, monkeypatch: pytest.MonkeyPatch, several: dict[str, str]
) -> None:
    """Who uses the copy once the run has ended would miss them."""
    monkeypatch.setattr(readers, "_exit_on_sigterm", lambda: None)
    cluster.create(1)
    cluster.create(name="t")
    options = to_read(**several)
    lag.keep()
    lag.begin()
    reader = LedgerStreamReader(options, ROWS)
    start = reader.initialOffset()
    lag.fall_behind()
    cluster.stream().append(table(2))
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found = [copied(reader).read(part) for part in copied(reader.partitions(start, end))]
    assert [row for batches in found for row in values(batches)] == [1, 2]


@pytest.mark.parametrize("loss", ["true", "false"])
def test_driver_whose_checkpoint_is_of_a_former_stream_is_told_so_also_by_a_server_that_lags(
    cluster: Cluster, lag: Lag, loss: str
) -> None:
    cluster.create(8)
    options = to_read(failOnDataLoss=loss)
    reader = LedgerStreamReader(options, ROWS)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    created(cluster, 9)
    lag.keep()
    created(cluster, 1, 2, 3)
    lag.begin()
    again = LedgerStreamReader(options, ROWS)
    if loss == "true":
        with pytest.raises(DataLossError, match="was deleted and created again"):
            again.latestOffset(end, limit)
        return
    partitions = again.partitions(end, again.latestOffset(end, limit))
    found = [read_partition(options, ROWS, part) for part in copied(partitions)]
    assert [row for batches in found for row in values(batches)] == [1, 2, 3]


@KNOWN
def test_task_writes_to_a_stream_that_its_server_does_not_know_yet(
    cluster: Cluster,
    lag: Lag,
    monkeypatch: pytest.MonkeyPatch,
    known: Callable[[Cluster, pytest.MonkeyPatch], None],
) -> None:
    known(cluster, monkeypatch)
    lag.keep()
    stream = created(cluster)
    lag.begin()
    options, stream_id = to_write(), stream.config.stream_id
    writer = sessions.segment_writer(
        options.connection, "s", stream_id, compression=None, entry_bytes=None
    )
    writer.write(table(1))
    stream.commit_segments(writer.finish())
    assert cluster.rows() == [1]


@pytest.mark.parametrize("again", [True, False])
def test_task_is_told_of_a_deletion_by_the_newest(cluster: Cluster, lag: Lag, again: bool) -> None:
    """The server knows the stream that is gone, and its rows are read as long as it does."""
    stream_id = cluster.create(1).config.stream_id
    lag.keep()
    cluster.outside.delete_stream("s")
    if again:
        cluster.create(2)
    lag.begin()
    options = to_read().connection
    assert sessions.present_stream(options, "s", stream_id).config.stream_id == stream_id
    assert not lag.asked
    with pytest.raises(NoSuchStreamError):
        sessions.present_stream(options, "s", "another")
    with pytest.raises(NoSuchStreamError):
        sessions.present_stream(options, "s", stream_id)


def test_write_does_not_make_a_stream_that_its_server_does_not_know_yet(
    cluster: Cluster, lag: Lag
) -> None:
    lag.keep()
    stream_id = cluster.create(1).config.stream_id
    lag.begin()
    assert prepare_stream(to_write(createStream="false"), ROWS) == stream_id


@pytest.mark.parametrize("how", [{}, {"streamPattern": "[ab]"}])
@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("is_again", [True, False])
def test_query_of_several_is_planned_and_goes_on_beside_a_server_that_lags(
    cluster: Cluster, lag: Lag, loss: str, how: dict[str, str], is_again: bool
) -> None:
    """Else its micro-batch lacks the rows of a stream, or the stream joins once more, and all of
    its rows come twice."""
    cluster.create(1, name="a")
    if is_again:
        cluster.create(8, 9, name="b")
    lag.keep()
    cluster.create(10, name="b")
    query = Query(failOnDataLoss=loss, **how)
    start, rows = query.at, {"a": [1], "b": [10]}
    assert query.trigger() == rows
    lag.begin()
    assert query.planned(start, query.at) == rows
    cluster.stream("b").append(table(20))
    lag.begin()
    assert Query(query.at, failOnDataLoss=loss, **how).rest() == {"b": [20]}


def test_stream_of_several_that_is_being_deleted_as_a_query_starts_is_left_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is marked, and its nodes stay for minutes; the query ended with it."""
    for name, row in (("s", 1), ("t", 2), ("u", 3)):
        cluster.create(row, name=name)
    given = options(streamPattern="[stu]", failOnDataLoss="false")
    source = LedgerStreamReader(given, ROWS)._source  # it has opened all three
    delete_in_part(cluster, monkeypatch)
    offset: Any = source.initial_offset()
    assert set(offset["streams"]) == {"t", "u"}
