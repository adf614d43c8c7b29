"""Long reads: partitions that name commits, of which the driver reads none, and tasks that do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from pyspark.sql.datasource import InputPartition

from connector.read import commit_cache
from connector.read.commit_cache import CommitCache
from connector.read.partitions import StreamPartition, StreamSpan
from connector.read.readers import LedgerBatchReader
from connector.read.task import read_partition
from spark_ledger.errors import (
    BookieUnavailableError,
    ConfigurationError,
    DataLossError,
    NotFoundError,
)
from spark_ledger.limits import MIB
from spark_ledger.limits.connector import PARTITION_BYTES_MIN
from spark_ledger.stream.blocking import Stream
from spark_ledger.stream.commit import committer, sealer
from spark_ledger.stream.model import CommitMark
from spark_ledger.stream.plan import read_plan
from spark_ledger.stream.plan.partitions import PlanLimits, Span, plan_spans
from spark_ledger.types import Dlsn
from tests.unit.connector.fakes import FakeStream
from tests.unit.connector.world import ROWS, Cluster, cluster, copied, table, to_read, values
from tests.unit.spark_ledger.stream.world import small_manifests


def mark(number: int, size_bytes: int) -> CommitMark:
    return CommitMark(number, 2 * number, number, size_bytes)


def test_spans_follow_one_another_and_are_of_about_equal_size() -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(200):
        sizes = [0]
        for _ in range(rng.randrange(1, 40)):
            sizes.append(sizes[-1] + rng.choice([0, 1, 5, 100]) * MIB)
        marks = [mark(100 * n, size) for n, size in enumerate(sizes)]
        limits = PlanLimits(max_bytes_per_partition=rng.choice([None, MIB, 100 * MIB]))
        bounds, inner = (marks[0], marks[-1]), marks[1:-1]
        positions = (Dlsn(0, 3, 1), Dlsn(marks[-1].first_segment, 2, 2))
        spans = plan_spans(bounds, inner, positions, limits)
        if spans is None:
            continue
        assert spans == plan_spans(bounds, inner, positions, limits)
        assert spans[0].start == positions[0] and spans[-1].end == positions[1], f"seed {seed}"
        for n, span in enumerate(spans):
            assert span.replica_hint == n and span.commits
            following = spans[n + 1] if n + 1 < len(spans) else None
            if following is not None:
                assert (span.commits.stop, span.end) == (following.commits.start, following.start)
                assert span.end == Dlsn(2 * span.commits.stop), f"seed {seed}"
        assert (spans[0].commits.start, spans[-1].commits.stop) == (0, marks[-1].number)


def test_spans_are_refused_where_marks_lie_too_close_for_as_many_as_were_asked_for() -> None:
    positions = Dlsn(0), Dlsn(600)
    bounds = mark(0, 0), mark(300, 3 * PARTITION_BYTES_MIN)
    for small, count in ((1, None), (PARTITION_BYTES_MIN, 3)):
        marks = [mark(100, small), mark(200, 2 * small)]
        spans = plan_spans(bounds, marks, positions, PlanLimits(min_partitions=3))
        assert (spans and len(spans)) == count


def test_spans_are_refused_where_marks_are_too_few() -> None:
    bounds, positions = (mark(0, 0), mark(300, 1000 * MIB)), (Dlsn(0), Dlsn(600))
    marks = [mark(100, 300 * MIB), mark(200, 600 * MIB)]
    large = PlanLimits(max_bytes_per_partition=600 * MIB)
    assert plan_spans(bounds, marks, positions, large) == [
        Span(range(200), Dlsn(0), Dlsn(400), 0),
        Span(range(200, 300), Dlsn(400), Dlsn(600), 1),
    ]
    uneven = PlanLimits(max_bytes_per_partition=500 * MIB)
    assert plan_spans(bounds, marks, positions, uneven) is None, "one would have 600 MiB"
    assert plan_spans(bounds, marks, positions, PlanLimits(max_bytes_per_partition=MIB)) is None
    assert plan_spans(bounds, marks, positions, PlanLimits(min_partitions=4)) is None
    assert (
        len(plan_spans(bounds, [], positions, PlanLimits(max_bytes_per_partition=2**40)) or ()) == 1
    )


__all__ = ["cluster"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are soon long, and leaves small."""
    small_manifests(monkeypatch, leaf=4, fan_out=3)
    monkeypatch.setattr(read_plan, "SEGMENTS_PLANNED_MAX", 10)


def planned(**options: str) -> list[StreamSpan]:
    found = LedgerBatchReader(to_read(False, **options), ROWS).partitions()
    assert all(isinstance(partition, StreamSpan) for partition in found), found
    return [partition for partition in found if isinstance(partition, StreamSpan)]


def planned_any(**options: str) -> Sequence[InputPartition]:
    return LedgerBatchReader(to_read(False, **options), ROWS).partitions()


def rows_of(partitions: Sequence[InputPartition], **options: str) -> list[int]:
    return [
        row
        for partition in copied(list(partitions))
        for row in values(read_partition(to_read(False, **options), ROWS, partition))
    ]


SMALL = {"minPartitions": "5"}


def test_long_read_is_planned_by_marks_and_read_whole(cluster: Cluster) -> None:
    cluster.create(*range(60))
    partitions = planned(**SMALL)
    assert len(partitions) == 5
    assert rows_of(partitions) == list(range(60))
    part = planned(**SMALL, startingPosition='{"segment": 7}', endingPosition='{"segment": 49}')
    assert rows_of(part) == list(range(7, 49))
    few = LedgerBatchReader(
        to_read(False, startingPosition='{"segment": 40}', endingPosition='{"segment": 50}'), ROWS
    ).partitions()
    assert all(isinstance(partition, StreamPartition) for partition in few), "a short read"


def test_long_read_asks_the_bookies_of_the_first_commit_of_each_partition(cluster: Cluster) -> None:
    cluster.create(*range(60))
    partitions = planned(**SMALL)
    orders = [partition.span.reads.order for partition in partitions]
    assert all(order[0] == "b0" for order in orders), "it has all ledgers of this cluster"
    assert all(set(order) == {"b0", "b1", "b2"} for order in orders), "the rest may lie anywhere"
    asked = sum(sum(each.span.reads.bytes_by_bookie.values()) for each in partitions)
    assert asked == cluster.stream().head().size_bytes
    part = planned(**SMALL, startingPosition='{"segment": 7}', endingPosition='{"segment": 49}')
    assert rows_of(part) == list(range(7, 49))


def test_long_read_of_very_many_partitions_looks_at_no_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(*range(60))
    monkeypatch.setattr(read_plan, "SPANS_LOCATED_MAX", 4)
    monkeypatch.setattr(Stream, "commit", None)
    partitions = planned(**SMALL)
    assert not any(partition.span.reads.order for partition in partitions)
    assert rows_of(partitions) == list(range(60))


def test_plan_of_a_long_read_is_the_same_before_and_after_its_commits_are_sealed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1000)
    made = cluster.create(*range(40))
    bounded = {"endingPosition": '{"segment": 39}', **SMALL}
    before = planned(**bounded)
    monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1)
    for row in range(40, 60):
        made.append(table(row))
    after = planned(**bounded)
    assert [partition.span for partition in after] == [partition.span for partition in before]
    assert rows_of(before) == rows_of(after) == list(range(39))


def test_span_goes_on_behind_the_last_row_after_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(*range(60))
    partitions = planned(**SMALL)
    read = Stream.read_commits
    calls: list[Dlsn] = []

    def breaking(self: Stream, commits: range, start: Dlsn, end: Dlsn, **options: object):  # type: ignore[no-untyped-def]
        calls.append(start)
        for number, batch in enumerate(read(self, commits, start, end, **options)):  # type: ignore[arg-type]
            if number == 2:
                raise BookieUnavailableError("for a moment")
            yield batch

    monkeypatch.setattr(Stream, "read_commits", breaking)
    assert rows_of(partitions) == list(range(60))
    assert len(calls) > 2 * len(partitions)


@pytest.mark.parametrize("behind", range(1, 7))
def test_span_goes_on_within_a_commit_of_several_segments(
    behind: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error behind any row, with rows of the same commit left to read, or none."""
    made, writers = cluster.create(), [cluster.stream().writer() for _ in range(3)]
    for first in range(0, 36, 3):
        segments = []
        for number, writer in enumerate(writers):
            writer.write(table(first + number))
            segments += writer.finish()
        made.commit_segments(segments)
    read = Stream.read_commits

    def breaking(self: Stream, commits: range, start: Dlsn, end: Dlsn, **options: object):  # type: ignore[no-untyped-def]
        for number, batch in enumerate(read(self, commits, start, end, **options)):  # type: ignore[arg-type]
            if number == behind:
                raise BookieUnavailableError("for a moment")
            yield batch

    monkeypatch.setattr(Stream, "read_commits", breaking)
    assert rows_of(planned()) == list(range(36))


def test_span_of_rows_that_were_overwritten_since_is_read_as_long_as_they_are_there(
    cluster: Cluster,
) -> None:
    made = cluster.create(*range(60))
    partitions = planned(**SMALL)
    made.append(table(99), overwrite=True)
    assert rows_of(partitions) == list(range(60))


def test_span_whose_rows_are_gone_fails_or_goes_on_behind_them(cluster: Cluster) -> None:
    made = cluster.create(*range(60))
    lost = made.commit(30).segments[0].ledger_id
    partitions = planned(**SMALL)
    ledger = cluster._ledgers.ledgers.pop(lost)
    with pytest.raises(DataLossError):
        rows_of(partitions)
    with pytest.raises(DataLossError):
        rows_of(partitions, failOnDataLoss="false")  # nothing was truncated: it is real loss
    made.append(table(99), overwrite=True)
    assert ledger is not None
    assert rows_of(partitions, failOnDataLoss="false") == []


def test_span_goes_on_behind_a_truncation_and_then_ends_at_real_loss(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = Stream.read_commits, list[Dlsn]()

    def counted(self: Stream, commits: range, start: Dlsn, end: Dlsn, **options: object):  # type: ignore[no-untyped-def]
        calls.append(start)
        assert len(calls) < 20, "what is lost is asked for again and again"
        return read(self, commits, start, end, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Stream, "read_commits", counted)
    made = cluster.create()
    lost = []
    for row in range(60):
        if row in (3, 20):  # each in a ledger of its own
            lost.append(cluster.stream().append(table(row)).segments[0].ledger_id)
        else:
            made.append(table(row))
    partitions = planned(startingPosition="earliest")
    for ledger_id in lost:
        cluster._ledgers.ledgers.pop(ledger_id)
    made.retention.truncate(Dlsn(20))
    with pytest.raises(DataLossError, match="segment 20"):
        rows_of(partitions, failOnDataLoss="false")
    made.retention.truncate(Dlsn(21))
    left = [0, 1, 2, *range(21, 60)]  # what was truncated is read as long as it is there
    assert rows_of(partitions, failOnDataLoss="false") == left


def test_span_goes_on_behind_commits_whose_nodes_outlive_their_segment_lists(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of those that were dropped keep their nodes; the ledgers that these name go."""
    monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 1000)
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 50)
    made = cluster.create(*range(60))
    partitions = planned(**SMALL)
    made.retention.truncate(Dlsn(20))
    cluster.give_back()
    with pytest.raises(NotFoundError, match="does not exist"):
        rows_of(partitions)
    cluster.restart()
    assert rows_of(partitions, failOnDataLoss="false") == list(range(20, 60))
    made.commit(40)
    pointer = made._stream._log._cache[40].pointer
    assert pointer is not None
    cluster._ledgers.ledgers.pop(pointer.ledger_id)
    cluster.restart()
    with pytest.raises(NotFoundError, match="does not exist"):  # nobody has dropped this one
        rows_of(partitions, failOnDataLoss="false")


def test_memory_for_commits_that_the_driver_keeps_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = FakeStream()
    for _ in range(30):
        made.grow((1,))
    one = made.commits_between(0, 1)[0].memory_bytes
    monkeypatch.setattr(commit_cache, "COMMITS_CACHED_BYTES_MAX", 5 * one)
    cache = CommitCache(made)  # type: ignore[arg-type]
    assert [c.number for c in cache.between(0, 20)] == list(range(20))
    assert len(cache._commits) == 5
    assert [c.number for c in cache.between(16, 22)] == list(range(16, 22))
    assert len(cache._commits) == 5
    assert cache.memory_bytes == 5 * one
    assert [c.number for c in cache.between(2, 4)] == [2, 3], "read again"
    cache.forget_before(3)
    assert cache.memory_bytes == one == len(cache._commits) * one
    monkeypatch.setattr(commit_cache, "COMMITS_CACHED_BYTES_MAX", one // 2)
    fetches = len(made.fetches)
    for _ in range(3):
        assert [c.number for c in cache.between(3, 4)] == [3]
    assert len(made.fetches) == fetches, "one that is larger than the bound stays"


def test_read_starts_at_a_transaction_of_a_sink(cluster: Cluster) -> None:
    made = cluster.create(*range(3))
    for number in range(10, 40, 2):
        made.append(table(number), sink_id="q", transaction_id=number)
        made.append(table(-number))

    def first(transaction: int) -> list[int]:
        options = {"startingTransaction": f'{{"sink": "q", "transaction": {transaction}}}'}
        return rows_of(planned_any(**options), **options)[:1]

    assert [first(n) for n in (-5, 10, 11, 12, 37, 38, 39)] == [
        [10], [10], [12], [12], [38], [38], [],
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="sink 'p' has made no transaction"):
        planned_any(startingTransaction='{"sink": "p", "transaction": 1}')
