"""The decision about a commit: applied, applied already, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ledger.errors import ConflictError
from spark_ledger.limits.stream import COMMIT_CLOCK_AHEAD_MS_MAX, COMMIT_TIME_RESETS_MAX
from spark_ledger.stream.commit.commit_rules import AlreadyApplied, Apply, Proposal, decide
from spark_ledger.stream.model import UNPLACED, Head, SinkRecord
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.test_model import segment

HEAD = Head("id", next_commit=7, next_segment=20, rows=100, size_bytes=900, time_ms=5000)
SINK = SinkRecord("query", 41, 6, "run-1")


def proposal(transaction_id: int, **changes: object) -> Proposal:
    parts = (segment(UNPLACED, (2, 1)), segment(UNPLACED, (4,)))
    made = Proposal(parts, "query", transaction_id, "run-2")
    return replace(made, **changes)  # type: ignore[arg-type]


def test_decide_numbers_segments_from_the_head_and_adds_totals() -> None:
    decision = decide(HEAD, SINK, proposal(42), now_ms=6000, stream_name="s")
    assert isinstance(decision, Apply)
    assert [part.number for part in decision.commit.segments] == [20, 21]
    commit, head = decision.commit, decision.head
    assert (commit.number, commit.first_segment, commit.end_segment) == (7, 20, 22)
    assert (commit.rows, commit.rows_before, commit.bytes_before) == (7, 100, 900)
    assert (head.next_commit, head.next_segment, head.rows, head.size_bytes) == (8, 22, 107, 1200)
    assert (commit.time_ms, head.time_ms) == (6000, 6000)
    assert (commit.sink_id, commit.transaction_id, commit.run_id) == ("query", 42, "run-2")
    assert commit.applied
    assert head.stream_id == "id"
    assert decision.sink == SinkRecord("query", 42, 7, "run-2")
    assert head.earliest == Dlsn(0, 0, 0)


def test_decide_time_never_goes_back() -> None:
    decision = decide(HEAD, None, proposal(0), now_ms=1, stream_name="s")
    assert isinstance(decision, Apply)
    assert decision.commit.time_ms == decision.head.time_ms == 5000


@pytest.mark.parametrize("ahead_ms", [1, COMMIT_CLOCK_AHEAD_MS_MAX])
def test_decide_takes_the_later_time_of_a_clock_that_is_a_little_ahead(ahead_ms: int) -> None:
    head = replace(HEAD, time_ms=10**12 + ahead_ms)
    decision = decide(head, None, proposal(0), now_ms=10**12, stream_name="s")
    assert isinstance(decision, Apply)
    assert decision.commit.time_ms == decision.head.time_ms == head.time_ms
    assert decision.head.time_resets == ()


def test_decide_goes_back_behind_a_clock_that_was_far_ahead_and_remembers_where() -> None:
    head = replace(HEAD, time_ms=10**12 + COMMIT_CLOCK_AHEAD_MS_MAX + 1)
    decision = decide(head, None, proposal(0), now_ms=10**12, stream_name="s")
    assert isinstance(decision, Apply)
    assert decision.commit.time_ms == decision.head.time_ms == 10**12
    assert decision.head.time_resets == (7,)
    overwriting = decide(head, None, proposal(0, overwrites=True), now_ms=10**12, stream_name="s")
    assert isinstance(overwriting, Apply)
    assert overwriting.head.time_resets == (), "nothing before it is searched any more"


def test_decide_goes_back_only_so_often() -> None:
    resets = tuple(range(COMMIT_TIME_RESETS_MAX))
    head = replace(HEAD, next_commit=1000, time_ms=10**12, time_resets=resets)
    decision = decide(head, None, proposal(0), now_ms=0, stream_name="s")
    assert isinstance(decision, Apply)
    assert decision.commit.time_ms == 10**12
    assert decision.head.time_resets == resets


def test_the_same_transaction_again_changes_nothing() -> None:
    assert decide(HEAD, SINK, proposal(41), now_ms=1, stream_name="s") == AlreadyApplied(6)


def test_an_older_transaction_is_refused_with_what_it_means() -> None:
    with pytest.raises(ConflictError) as caught:
        decide(HEAD, SINK, proposal(40), now_ms=1, stream_name="flights")
    for word in ("flights", "query", "40", "41", "checkpoint", "sinkId", "run-1"):
        assert word in str(caught.value)


def test_overwrite_moves_the_truncation_point_to_its_own_rows() -> None:
    decision = decide(HEAD, None, proposal(1, overwrites=True), now_ms=1, stream_name="s")
    assert isinstance(decision, Apply)
    assert (decision.head.earliest, decision.head.earliest_commit) == (Dlsn(20, 0, 0), 7)
    nothing = decide(
        HEAD, None, proposal(1, overwrites=True, segments=()), now_ms=1, stream_name="s"
    )
    assert isinstance(nothing, Apply)
    assert nothing.head.earliest == nothing.head.end


def test_decide_append_without_sink_id_leaves_no_record() -> None:
    decision = decide(HEAD, None, proposal(0, is_remembered=False), now_ms=1, stream_name="s")
    assert isinstance(decision, Apply)
    assert decision.sink is None
