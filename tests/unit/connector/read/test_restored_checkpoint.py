"""A checkpoint of before a restored ZooKeeper, whose new commits have passed its position."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import le
from typing import Any

import pytest

from connector.option_parsers import PositionJson, parse_position
from connector.read import several_source
from connector.read.last_read import LastRead
from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    DataLossError,
    LedgerError,
    MetadataRestoredError,
)
from spark_ledger.metadata.memory import Fault
from spark_ledger.stream.model import Commit, Segment
from tests.unit.connector.fakes import FakeStream
from tests.unit.connector.read.test_several import Query, batch, read, soon
from tests.unit.connector.read.test_stream_source import offset, source
from tests.unit.connector.world import Cluster, cluster, table
from tests.unit.spark_ledger.stream.world import Backup

__all__ = ["cluster", "soon"]

OTHERS = "are not those that this query has read: the metadata store was restored.*new checkpoint"
ONE = {"stream": "s"}
KINDS = [ONE, {"streams": "s,t"}, {**ONE, "maxRowsPerTrigger": "1"}]


def back_up(cluster: Cluster) -> Backup:
    return Backup(cluster.outside._client)  # type: ignore[arg-type]


def without_last(offset: Any) -> Any:
    """As a version wrote it that did not name the segment."""
    if "streams" in offset:
        return {"streams": {name: without_last(each) for name, each in offset["streams"].items()}}
    return {key: value for key, value in offset.items() if key != "last"}


def passed(cluster: Cluster, given: dict[str, str], *rows: int) -> tuple[Any, Any]:
    """Where the last micro-batch of a query begins and ends that has read what a restore has lost;
    the rows after are committed since."""
    cluster.create(1, name="t")
    stream = cluster.create(1, 2)
    backup = back_up(cluster)
    stream.append(table(3, 4))
    query = Query(**given)
    before = query.at
    while (end := json.loads(json.dumps(query.reader.latestOffset(query.at, query.limit)))) != (
        query.at
    ):
        before, query.at = query.at, end
    cluster.restart()
    backup.restore()
    for row in rows:
        cluster.stream().append(table(row))
    return before, query.at


LOOKS: list[Callable[[Query, Any], object]] = [
    lambda query, before: query.trigger(),
    lambda query, before: query.planned(before, query.at),  # its last micro-batch is repeated
]


@pytest.mark.parametrize("given", KINDS)
@pytest.mark.parametrize("look", LOOKS)
def test_query_does_not_go_on_where_other_rows_are_before_its_checkpoint(
    cluster: Cluster, given: dict[str, str], look: Callable[[Query, Any], object]
) -> None:
    before, at = passed(cluster, given, 13, 14, 15, 16)
    with pytest.raises(ConfigurationError, match=OTHERS):
        look(Query(at, **given), before)
    lenient = Query(at, **given, failOnDataLoss="false")
    with pytest.raises(ConfigurationError, match=OTHERS):
        look(lenient, before)


def test_query_whose_checkpoint_ends_within_a_segment_is_refused_as_well(cluster: Cluster) -> None:
    stream = cluster.create()
    backup = back_up(cluster)
    stream.append(table(1, 2, 3))
    query = Query(**ONE, startingPosition='{"segment": 0, "slot": 1}')
    at: Any = query.at
    assert at["slot"] == 1 and at["last"]["commit"] == 0
    cluster.restart()
    assert Query(query.at, **ONE).trigger() == {"s": [2, 3]}
    cluster.restart()
    backup.restore()
    cluster.stream().append(table(11, 12, 13))
    with pytest.raises(ConfigurationError, match=OTHERS):
        Query(query.at, **ONE).trigger()


def test_query_is_refused_where_the_new_commits_are_fewer_and_larger(cluster: Cluster) -> None:
    stream = cluster.create()
    backup = back_up(cluster)
    for row in (1, 2, 3):
        stream.append(table(row))
    query = Query(**ONE)
    query.trigger()
    cluster.restart()
    backup.restore()
    stream = cluster.stream()
    writer, segments = stream.writer(), []
    for row in range(11, 15):
        writer.write(table(row))
        segments += writer.finish()
    stream.commit_segments(segments)
    with pytest.raises(ConfigurationError, match=OTHERS):
        Query(query.at, **ONE).trigger()


def test_query_is_refused_where_other_rows_of_the_same_ledger_are_before_it(
    cluster: Cluster,
) -> None:
    """An executor knows nothing of the restore, and keeps its ledger open over it."""
    stream = cluster.create()
    writer = stream.writer()

    def add(row: int) -> Segment:
        writer.write(table(row))
        (segment,) = writer.finish()
        cluster.stream().commit_segments([segment])
        return segment

    first = add(1)
    backup = back_up(cluster)
    lost = add(2)
    query = Query(**ONE)
    assert query.trigger() == {"s": [1, 2]}
    cluster.restart()
    backup.restore()
    other = add(12)
    add(13)
    assert first.ledger_id == lost.ledger_id == other.ledger_id
    with pytest.raises(ConfigurationError, match=OTHERS):
        Query(query.at, **ONE).trigger()


def test_query_that_waits_at_the_end_is_refused_behind_the_restore(cluster: Cluster) -> None:
    """It began with latest, and has read nothing yet."""
    stream = cluster.create(1)
    backup = back_up(cluster)
    stream.append(table(2))
    query = Query(**ONE, startingPosition="latest")
    at: Any = query.at
    assert at["segment"] == 2
    cluster.restart()
    backup.restore()
    for row in (12, 13):
        cluster.stream().append(table(row))
    with pytest.raises(ConfigurationError, match=OTHERS):
        Query(query.at, **ONE).trigger()


def test_query_that_runs_fails_behind_its_new_connection(cluster: Cluster) -> None:
    stream = cluster.create(1)
    backup = back_up(cluster)
    stream.append(table(2))
    query = Query(**ONE)
    assert query.trigger() == {"s": [1, 2]}
    (connection,) = cluster.connections
    backup.restore(connection._client)  # type: ignore[arg-type]
    for row in (12, 13):
        cluster.stream().append(table(row))
    with pytest.raises(MetadataRestoredError, match="is not the one that this process has seen"):
        query.trigger()


# -- what is no reason to refuse it ----------------------------------------------------------------


@pytest.mark.parametrize("given", KINDS)
def test_offset_that_names_no_segment_is_believed(cluster: Cluster, given: dict[str, str]) -> None:
    _, at = passed(cluster, given, 13, 14, 15)
    old = Query(without_last(at), **given)
    assert old.trigger() == {"s": [14]} if given.get("maxRowsPerTrigger") else {"s": [14, 15]}


@pytest.mark.parametrize("given", KINDS)
def test_old_offset_of_a_stream_without_news_stays_as_it_is(
    cluster: Cluster, given: dict[str, str]
) -> None:
    """Spark compares texts: another spelling is a micro-batch without rows."""
    cluster.create(1, name="t")
    stream = cluster.create(1, 2)
    query = Query(**given)
    query.rest()
    cluster.restart()
    old = Query(without_last(query.at), **given)
    assert old.trigger() is None
    assert old.at == without_last(query.at)
    stream.append(table(3))
    assert old.trigger() == {"s": [3]}
    at: Any = old.at
    newest = at["streams"]["s"] if "streams" in at else at
    assert newest["last"]["commit"] == 2


@pytest.mark.parametrize("given", KINDS)
def test_restart_goes_on_beside_all_that_is_no_restore(
    cluster: Cluster, given: dict[str, str]
) -> None:
    cluster.create(1, name="t")
    stream = cluster.create(1, 2)
    query = Query(**given)
    query.rest()
    backup = back_up(cluster)
    stream.commit_segments([])  # which has no rows
    stream.append(table(3))
    backup.restore()  # it has all that the query has read
    cluster.restart()
    stream = cluster.stream()
    stream.append(table(13))
    again = Query(query.at, **given)
    assert again.rest() == {"s": [13]}
    cluster.restart()
    stream.retention.truncate((2,))
    assert Query(query.at, **given).rest() == {"s": [13]}
    cluster.restart()
    stream.retention.truncate("latest")
    cluster.give_back()
    assert Query(again.at, **given).trigger() is None
    cluster.restart()
    with pytest.raises(DataLossError, match="lies before the first row kept"):
        Query(query.at, **given).trigger()
    cluster.create(21, 22, 23, 24)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        Query(again.at, **given).trigger()


@pytest.mark.parametrize("error", [DataLossError("truncated"), CorruptionError("damaged")])
def test_commit_that_cannot_be_read_any_more_is_no_reason_to_refuse(error: LedgerError) -> None:
    """It is truncated between the look at the head and this one, say."""
    made = FakeStream()
    made.grow((1,))
    made.grow((1,))
    asked: list[int] = []

    def commit(number: int) -> Commit:
        asked.append(number)
        raise error

    made.commit = commit  # type: ignore[method-assign]
    start = {**offset(1), "last": {"commit": 0, "entry": 0, "ledger": 1}}
    reader = source(made, maxRowsPerTrigger="1")
    assert reader.latest_offset(start, unlimited=False) == offset(2)
    assert asked == [0]


@pytest.mark.parametrize("given", KINDS)
def test_restart_costs_the_read_of_one_commit_and_a_micro_batch_none(
    cluster: Cluster, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_source, "STREAMS_LISTED_S", 1e9)
    reads: list[str] = []

    def interpose(name: str, path: str) -> Fault:
        reads.append(path)
        return Fault()

    def costs() -> list[int]:
        cluster.create(1, name="t")
        stream = cluster.create(1, 2)
        query = Query(**given)
        query.rest()
        found = []
        for row in range(0, 30, 3):
            for each in range(row, row + 1 + row % 2):
                stream.append(table(each))
            reads.clear()
            end = json.loads(json.dumps(query.reader.latestOffset(query.at, query.limit)))
            assert query.reader.partitions(query.at, end)  # Spark asks the same reader
            found.append(len(reads))
            query.at = end
            query.rest()
        return found

    monkeypatch.setattr(cluster, "_interpose", interpose)
    named = costs()
    with monkeypatch.context() as patch:
        patch.setattr(LastRead, "before", lambda *_: None)
        assert all(map(le, named, costs()))
    cluster.create(1, name="t")
    cluster.create(1, 2)
    query = Query(**given)
    query.rest()
    for at, commits in ((without_last(query.at), 0), (query.at, 1)):
        cluster.restart()
        again = Query(at, **given)
        reads.clear()
        assert again.trigger() is None
        expected = commits * len(given.get("streams", "s").split(","))
        assert sum("/commits/" in path for path in reads) == expected


def test_batch_read_in_a_process_that_has_seen_what_is_lost_reads_what_is_there(
    cluster: Cluster,
) -> None:
    """It holds no position of before. Spark uses its Python processes again."""
    stream = cluster.create(1)
    backup = back_up(cluster)
    stream.append(table(2))
    assert batch(**ONE) == {"s": [1, 2]}
    (connection,) = cluster.connections
    backup.restore(connection._client)  # type: ignore[arg-type]
    for row in (12, 13):
        cluster.stream().append(table(row))
    assert batch(**ONE) == {"s": [1, 12, 13]}


def test_task_in_a_process_that_has_seen_what_is_lost_fails_and_the_next_one_does_not(
    cluster: Cluster,
) -> None:
    """Its rows are gone, and may be left out: so it looks where the stream begins now."""
    cluster.create()
    backup = back_up(cluster)
    cluster.stream().append(table(1))
    query = Query(**ONE, failOnDataLoss="false")
    end = query.reader.latestOffset(query.at, query.limit)
    planned = query.reader.partitions(query.at, end)
    (connection,) = cluster.connections
    cluster._ledgers.ledgers.clear()
    backup.restore(connection._client)  # type: ignore[arg-type]
    for row in (12, 13):
        cluster.stream().append(table(row))
    for expected in (MetadataRestoredError, DataLossError, DataLossError):
        with pytest.raises(CorruptionError) as raised:
            read(query.reader, planned)
        assert raised.type is expected


def test_position_that_is_pasted_from_a_checkpoint_is_taken(cluster: Cluster) -> None:
    cluster.create(1, 2, 3)
    query = Query(**ONE)
    query.trigger()
    given = parse_position(json.dumps(query.at))
    assert isinstance(given, PositionJson) and given.segment == 3
    cluster.stream().append(table(4))
    assert Query(**ONE, startingPosition=json.dumps(query.at)).trigger() == {"s": [4]}
