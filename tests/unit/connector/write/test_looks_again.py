"""What a write looks at again: bookies after each pause, and what is known of a query's runs."""

from __future__ import annotations

import pytest

from connector.write import repeated
from connector.write.prepare import prepare_stream
from connector.write.repeated import MicroBatch, check_sink_name, is_first_of_run
from spark_ledger.errors import ConflictError
from spark_ledger.stream.blocking import Stream, StreamConnection
from spark_ledger.stream.model import SinkRecord
from spark_ledger.types import BookieId, BookieInfo, BookieState
from tests.unit.connector.read.test_lagging_server import Lag, lag
from tests.unit.connector.world import ROWS, Cluster, cluster, micro_batch, table, to_write

__all__ = ["cluster", "lag"]


def test_bookies_are_counted_again_after_each_pause(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one they begin to take writes, and the stream is made behind the last."""
    looks: list[int] = []

    def list_bookies(_connection: StreamConnection) -> list[BookieInfo]:
        looks.append(len(looks))
        states = [BookieState.WRITABLE] * looks[-1] + [BookieState.READ_ONLY] * (3 - looks[-1])
        return [BookieInfo(BookieId(f"b{n}"), f"b{n}:1", state) for n, state in enumerate(states)]

    monkeypatch.setattr(StreamConnection, "list_bookies", list_bookies)
    prepare_stream(to_write(), ROWS)
    assert len(cluster.clock.pauses) == 3 and looks == [0, 1, 2, 3]
    assert cluster.outside.list_streams() == ["s"]


def test_last_micro_batch_is_repeated_in_the_process_that_committed_those_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit process outlives a query run, and a run repeats where the one before ended."""
    for number in range(3):
        micro_batch(monkeypatch, number, number, run="first")
    micro_batch(monkeypatch, 2, 2, run="second")
    micro_batch(monkeypatch, 3, 3, run="second")
    assert cluster.rows() == [0, 1, 2, 3]
    with pytest.raises(ConflictError, match="another run"):
        micro_batch(monkeypatch, 3, 3, run="first")


def committed(stream: Stream, sink: str, query: str, number: int) -> None:
    stream.append(table(number), sink_id=sink, transaction_id=number, run_id=f"{query}/run")


@pytest.mark.parametrize("ours", ["a", "m", "z"])
def test_new_sink_name_is_held_against_the_records_of_all_sinks(
    cluster: Cluster, ours: str
) -> None:
    """Whichever of them is read first, and however far other queries have come."""
    stream = cluster.create()
    for sink in "amz":
        query, number = ("q", 4) if sink == ours else (f"of {sink}", 9)
        committed(stream, sink, query, number)
    batch = MicroBatch("new", "q", "again", 4, ())
    with pytest.raises(ConflictError, match=f"committed micro-batch 4 with sinkId='{ours}'"):
        check_sink_name(stream, batch)
    check_sink_name(stream, MicroBatch("new", "q", "again", 5, ()))
    check_sink_name(stream, MicroBatch(ours, "q", "again", 4, ()))


def test_query_that_goes_on_looks_at_other_sinks_only_if_somebody_has_committed_since(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record is read for each sink that there ever was, whenever a query begins."""
    stream, looks, whole = cluster.create(), list[str](), Stream.last_transactions

    def watched(of: Stream) -> list[SinkRecord]:
        looks.append(of.name)
        return whole(of)

    monkeypatch.setattr(Stream, "last_transactions", watched)
    committed(stream, "other", "p", 9)
    committed(stream, "a", "q", 4)
    check_sink_name(stream, MicroBatch("a", "q", "again", 5, ()))
    assert not looks, "nothing came behind its own micro-batch 4"
    committed(stream, "other", "p", 10)
    check_sink_name(stream, MicroBatch("a", "q", "again", 4, ()))
    assert not looks, "its own record says that it is committed"
    check_sink_name(stream, MicroBatch("a", "q", "run", 5, ()))
    assert not looks, "its own record is of this run: a process of its own for each micro-batch"
    check_sink_name(stream, MicroBatch("a", "q", "again", 5, ()))
    assert len(looks) == 1


@pytest.mark.parametrize(("before", "after"), [({"sinkId": "x"}, {}), ({}, {"sinkId": "x"})])
def test_first_micro_batch_of_a_query_is_not_appended_again_under_another_sink_name(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, str],
    after: dict[str, str],
) -> None:
    """It is often the whole backlog, so the one in which drivers die."""
    micro_batch(monkeypatch, 0, 1, 2, **before)
    cluster.restart()
    with pytest.raises(ConflictError, match=r"micro-batch 0 with.*a second time"):
        micro_batch(monkeypatch, 0, 1, 2, run="again", **after)
    micro_batch(monkeypatch, 0, 1, 2, run="again", **before)
    micro_batch(monkeypatch, 1, 3, run="third", **after)
    assert cluster.rows() == [1, 2, 3]


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize(("before", "after"), [({"sinkId": "x"}, {}), ({}, {"sinkId": "x"})])
def test_micro_batch_is_not_appended_again_because_a_server_does_not_know_of_it_yet(
    cluster: Cluster,
    lag: Lag,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    before: dict[str, str],
    after: dict[str, str],
) -> None:
    """The commit itself waits until the server knows all commits, and does not look at names."""
    cluster.create()
    lag.keep()
    micro_batch(monkeypatch, number, 1, 2, **before)
    lag.begin()
    appends: list[str] = []
    monkeypatch.setattr(Stream, "commit_segments", lambda of, *_, **__: appends.append(of.name))
    with pytest.raises(ConflictError, match=rf"micro-batch {number} with.*a second time"):
        micro_batch(monkeypatch, number, 1, 2, run="again", **after)
    assert not appends and lag.asked


def test_query_that_begins_looks_at_other_sinks_unless_nobody_has_committed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, looks, whole = cluster.create(), list[str](), Stream.last_transactions

    def watched(of: Stream) -> list[SinkRecord]:
        looks.append(of.name)
        return whole(of)

    monkeypatch.setattr(Stream, "last_transactions", watched)
    check_sink_name(stream, MicroBatch("q", "q", "run", 0, ()))
    assert not looks
    committed(stream, "other", "p", 9)
    check_sink_name(stream, MicroBatch("q", "q", "run", 0, ()))
    assert len(looks) == 1


def test_record_of_another_sink_that_is_damaged_stops_no_query(cluster: Cluster) -> None:
    stream = cluster.create()
    committed(stream, "a", "q", 4)
    committed(stream, "other", "p", 9)
    nodes = stream._stream._nodes

    async def damage() -> None:
        await nodes.store.put(f"{nodes.sinks_path}/s-other", b"junk", 0)

    stream._call(damage())
    check_sink_name(stream, MicroBatch("a", "q", "again", 5, ()))
    assert [record.sink_id for record in stream.last_transactions()] == ["a"]


def test_first_micro_batch_of_a_run_is_its_own_whatever_other_sinks_and_runs_began_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeated, "_FIRST_BATCH_OF_RUN", {})
    runs = [(sink, run) for sink in "ab" for run in ("one", "two")]
    for number, (sink, run) in enumerate(runs):
        assert is_first_of_run(MicroBatch(sink, "q", run, number, ()))
    for number, (sink, run) in enumerate(runs):
        assert is_first_of_run(MicroBatch(sink, "q", run, number, ()))
        assert not is_first_of_run(MicroBatch(sink, "q", run, 4, ()))
