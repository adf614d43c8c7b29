"""The plan of a read: partitions of a stream, each with the bookies that it asks first.

Spark's source and ``ledger streams plan`` make theirs here, so the command shows what a query does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_ledger.limits.connector import SEGMENTS_PLANNED_MAX, SPANS_LOCATED_MAX
from spark_ledger.stream.model import Commit, CommitMark
from spark_ledger.stream.plan.balance import Balance, ledgers_of, units_of, weights_of
from spark_ledger.stream.plan.partitions import (
    Plan,
    PlanLimits,
    Span,
    plan_partitions,
    plan_spans,
)
from spark_ledger.stream.ranges import ranges_between, size_between
from spark_ledger.stream.row_filter import RowFilter
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream

CommitsBetween = Callable[[int, int], Sequence[Commit]]


def plan_read(
    stream: Stream,
    first: Dlsn,
    last: Dlsn,
    limits: PlanLimits,
    commits_between: CommitsBetween | None = None,
    rows: RowFilter | None = None,
) -> list[Plan] | list[Span]:
    """Partitions for the rows from ``first`` (inclusive) to ``last`` (exclusive).

    Their rows depend on commits only (rule T5). A read of more than ``SEGMENTS_PLANNED_MAX``
    segments becomes spans, for which the tasks look the commits up. Segments that can have none of
    ``rows`` are in no partition (rule T29). Raises as ``Stream.commits_between``.
    """
    if first >= last:
        return []
    # A plan that ends at the start of a segment needs no commit of that segment, which may not
    # exist yet.
    ends_within_segment = last > Dlsn(last.segment)
    end_segment = last.segment + ends_within_segment
    if end_segment - first.segment > SEGMENTS_PLANNED_MAX:
        spans = _spans(stream, first, last, end_segment, limits)
        if spans is not None:
            return spans_with_bookies(stream, spans)
    commits = (commits_between or stream.commits_between)(first.segment, end_segment)
    ranges = ranges_between(commits, first, last)
    if rows is not None:
        ranges = [part for part in ranges if rows.may_match(part.segment)]
    return with_bookies(stream, plan_partitions(ranges, limits))


def with_bookies(stream: Stream, plans: Sequence[Plan]) -> list[Plan]:
    """The same partitions, each with the bookies that it asks first (rule T20)."""
    if not plans:
        return []
    packs = stream.retention.packs()
    located = stream.locate(ledgers_of((part for plan in plans for part in plan.ranges), packs))
    balance = Balance(weights_of(located.bookies), turn=plans[0].ranges[0].segment.number)
    return [
        replace(plan, reads=balance.first_reads(units_of(plan.ranges, located.ledgers, packs)))
        for plan in plans
    ]


def spans_with_bookies(stream: Stream, spans: Sequence[Span]) -> list[Span]:
    """The same for a long read, of which the first commit of each partition is looked at: where its
    entries lie, most of those of the partition lie too. Of very many partitions none is."""
    if len(spans) > SPANS_LOCATED_MAX:
        return list(spans)
    commits = [stream.commit(span.commits.start) for span in spans]
    samples = [ranges_between([each], Dlsn(0), Dlsn(each.end_segment)) for each in commits]
    packs = stream.retention.packs()
    located = stream.locate(ledgers_of((part for each in samples for part in each), packs))
    balance = Balance(weights_of(located.bookies), turn=commits[0].first_segment)
    behind = [*commits[1:], stream.commit(spans[-1].commits[-1])]
    return [
        span._replace(
            reads=balance.expected_reads(
                units_of(sample, located.ledgers, packs),
                size_between(first, last, span.start, span.end)[1],
            )
        )
        for span, sample, first, last in zip(spans, samples, commits, behind, strict=True)
    ]


def _spans(
    stream: Stream, first: Dlsn, last: Dlsn, end_segment: int, limits: PlanLimits
) -> list[Span] | None:
    """Partitions of a long read, for which the tasks look the commits up; or None."""
    begin, final = stream.commit_at(first.segment), stream.commit_at(end_segment - 1)
    behind = CommitMark(
        final.number + 1,
        final.end_segment,
        final.rows_before + final.rows,
        final.bytes_before + final.size_bytes,
    )
    marks = stream.marks(begin.number, behind.number)
    start = CommitMark(begin.number, begin.first_segment, begin.rows_before, begin.bytes_before)
    return plan_spans((start, behind), marks, (first, last), limits)
