"""Decides what a proposed commit does to a stream. Pure.

The decision is made from one reading of the head and the sink's record. It takes effect only if
neither has changed since, because one metadata transaction checks and writes both (rule T2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from spark_ledger.errors import ConflictError
from spark_ledger.limits.stream import (
    COMMIT_CLOCK_AHEAD_MS_MAX,
    COMMIT_TIME_RESETS_MAX,
    KEY_FILTERS_BYTES_MAX,
)
from spark_ledger.stream.model import (
    UNPLACED,
    Commit,
    Head,
    Segment,
    SinkRecord,
    check_run_id,
    check_sink_id,
    check_transaction_id,
)
from spark_ledger.stream.statistics import fitted
from spark_ledger.types import Dlsn, LedgerId

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an append wants: its segments, who appends them, and how.

    ``overwrites`` drops all rows before it from the stream, in the same commit. ``is_remembered``
    is false for an append without a sink id: the id made for it is known to nobody, so nobody can
    repeat the transaction, and it leaves no sink record. ``new_columns`` are added to the stream if
    it lacks them (rule T19).
    """

    segments: tuple[Segment, ...]
    sink_id: str
    transaction_id: int
    run_id: str = ""
    overwrites: bool = False
    is_remembered: bool = True
    new_columns: pa.Schema | None = None

    def __post_init__(self) -> None:
        check_sink_id(self.sink_id)
        check_transaction_id(self.transaction_id)
        check_run_id(self.run_id)
        assert all(segment.number == UNPLACED for segment in self.segments), "in no commit yet"

    @property
    def may_grow(self) -> bool:
        """Whether its commit may add schema versions to the stream (rule T19)."""
        return self.new_columns is not None or any(
            segment.new_schema is not None for segment in self.segments
        )

    @property
    def incarnations(self) -> set[tuple[LedgerId, bytes]]:
        """Which ledgers have its rows: a restored store may have given their ids again (T2)."""
        return {(segment.ledger_id, segment.incarnation) for segment in self.segments}

    @property
    def has_key_filters(self) -> bool:
        return any(each.statistics and each.statistics.key_filter for each in self.segments)

    def with_segments(
        self, segments: tuple[Segment, ...], filter_bytes: int = KEY_FILTERS_BYTES_MAX
    ) -> Proposal:
        """The same proposal for these segments; numbers that they had are dropped, and their key
        filters made small enough for one commit (rule T28)."""
        known = fitted([segment.statistics for segment in segments], filter_bytes)
        loose = [
            replace(segment, number=UNPLACED, statistics=each)
            for segment, each in zip(segments, known, strict=True)
        ]
        return replace(self, segments=tuple(loose))


class AlreadyApplied(NamedTuple):
    """The pair was applied before, by the commit of this number: there is nothing to do."""

    commit: int


class Apply(NamedTuple):
    """What the metadata become. ``sink`` is None for a proposal that is not remembered."""

    head: Head
    commit: Commit
    sink: SinkRecord | None


def decide(
    head: Head, sink: SinkRecord | None, proposal: Proposal, *, now_ms: int, stream_name: str
) -> AlreadyApplied | Apply:
    """What the proposal does to a stream with this head and sink record (rule T3).

    Raises ConflictError if the sink has applied a newer transaction.
    """
    if sink is not None:
        assert sink.sink_id == proposal.sink_id, "the record is of this sink"
        if sink.transaction_id == proposal.transaction_id:
            return AlreadyApplied(sink.commit)
        if sink.transaction_id > proposal.transaction_id:
            raise _older_transaction(sink, proposal, stream_name)
    first = head.next_segment
    time_ms = commit_time(head, now_ms)
    commit = Commit(
        number=head.next_commit,
        time_ms=time_ms,
        first_segment=first,
        segments=tuple(segment.placed(n) for n, segment in enumerate(proposal.segments, first)),
        sink_id=proposal.sink_id,
        transaction_id=proposal.transaction_id,
        run_id=proposal.run_id,
        rows_before=head.rows,
        bytes_before=head.size_bytes,
    )
    after = replace(
        head,
        next_commit=commit.number + 1,
        next_segment=commit.end_segment,
        rows=head.rows + commit.rows,
        size_bytes=head.size_bytes + commit.size_bytes,
        time_ms=time_ms,
    )
    if time_ms < head.time_ms:
        after = replace(after, time_resets=(*head.time_resets, commit.number))
    if proposal.overwrites:
        after = replace(
            after, earliest=Dlsn(first, 0, 0), earliest_commit=commit.number, time_resets=()
        )
    record = SinkRecord(proposal.sink_id, proposal.transaction_id, commit.number, proposal.run_id)
    return Apply(after, commit, record if proposal.is_remembered else None)


def commit_time(head: Head, now_ms: int) -> int:
    """The time of the commit after ``head``, made by whose clock says ``now_ms`` (rule T10).

    Clocks differ a little, and readers search commits by time: so the time of the commit before is
    taken if it is later. Not if it is much later: one driver whose clock was a year ahead would
    give its time to every commit of the next year.
    """
    ahead_ms = head.time_ms - now_ms
    if ahead_ms > COMMIT_CLOCK_AHEAD_MS_MAX and len(head.time_resets) < COMMIT_TIME_RESETS_MAX:
        return now_ms
    return max(now_ms, head.time_ms)


def _older_transaction(sink: SinkRecord, proposal: Proposal, stream_name: str) -> ConflictError:
    return ConflictError(
        f"stream {stream_name!r}: sink {proposal.sink_id!r} offers transaction "
        f"{proposal.transaction_id}, but it has already committed transaction "
        f"{sink.transaction_id} (commit {sink.commit}, run {sink.run_id or 'unknown'}). Either a "
        "second, slower driver runs on the same checkpoint: stop it; or the checkpoint was "
        "deleted or reset while the sink id stayed the same: use a new sink id (option sinkId)"
    )
