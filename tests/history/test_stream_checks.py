"""Streams: anomalies that are reported, and legal histories with repeated commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.history.build import Builder, row
from tests.history.checkers import check_all
from tests.history.final import Final, FinalCommit, FinalStream
from tests.history.model import Phase

Case = Callable[[Builder], FinalStream]

A, B, C, D = ((row(n), row(n + 1)) for n in (0, 10, 20, 30))


def stream(*commits: tuple[int, Sequence[str]], values: Sequence[str] | None = None) -> FinalStream:
    """A stream of commits by one sink: (transaction, values)."""
    made = tuple(FinalCommit(n, "sink", t, tuple(v)) for n, (t, v) in enumerate(commits))
    read = tuple(v for commit in made for v in commit.values) if values is None else tuple(values)
    return FinalStream("rows", made, read)


def names(b: Builder, final: FinalStream) -> set[str]:
    return {v.name for v in check_all(b.history, Final.of(final), exact=True)}


def two(b: Builder) -> None:
    b.commit(0, A, 0)
    b.commit(1, B, 1)


def lost_last(b: Builder) -> FinalStream:
    two(b)
    return stream((0, A))


def lost_first(b: Builder) -> FinalStream:
    two(b)
    return stream((1, B))


def lost_values(b: Builder) -> FinalStream:
    two(b)
    return stream((0, A), (1, B[:1]))


def lost_and_acknowledged_as_a_repetition(b: Builder) -> FinalStream:
    b.commit(0, A, 0)
    b.commit(1, B, 1, applied=False)
    return stream((0, A))


def twice_committed(b: Builder) -> FinalStream:
    two(b)
    return stream((0, A), (1, B), (1, B))


def twice_with_other_values(b: Builder) -> FinalStream:
    two(b)
    b.commit(1, C, 1, process="s2", phase=Phase.UNKNOWN)
    return stream((0, A), (1, B), (1, C))


def twice_told_to_have_applied(b: Builder) -> FinalStream:
    b.commit(0, A, 0)
    b.commit(0, A, 0, process="s2")
    return stream((0, A))


def value_in_two_commits(b: Builder) -> FinalStream:
    b.commit(0, A, 0)
    b.commit(1, A, 1)
    return stream((0, A), (1, A))


def phantom_commit(b: Builder) -> FinalStream:
    two(b)
    return stream((0, A), (1, B), (2, C))


def phantom_values(b: Builder) -> FinalStream:
    b.commit(0, A, 0, phase=Phase.UNKNOWN)
    return stream((0, C))


def phantom_that_failed(b: Builder) -> FinalStream:
    two(b)
    b.commit(-1, C, 2, phase=Phase.FAIL)
    return stream((0, A), (1, B), (2, C))


def phantom_damaged(b: Builder) -> FinalStream:
    b.commit(0, A, 0, phase=Phase.UNKNOWN)
    return stream((0, (A[0], A[1] + "x")))


def order_of_transactions(b: Builder) -> FinalStream:
    b.commit(0, B, 1)
    b.commit(1, A, 0)
    return stream((1, B), (0, A))


def order_against_time(b: Builder) -> FinalStream:
    b.commit(1, A, 0)
    b.commit(0, B, 0, sink_id="other")
    made = (FinalCommit(0, "other", 0, B), FinalCommit(1, "sink", 0, A))
    return FinalStream("rows", made, (*B, *A))


def order_of_numbers(b: Builder) -> FinalStream:
    b.commit(0, A, 0)
    b.commit(2, B, 1)
    made = (FinalCommit(0, "sink", 0, A), FinalCommit(2, "sink", 1, B))
    return FinalStream("rows", made, (*A, *B))


def order_of_times(b: Builder) -> FinalStream:
    two(b)
    made = (FinalCommit(0, "sink", 0, A, 2000), FinalCommit(1, "sink", 1, B, 1999))
    return FinalStream("rows", made, (*A, *B))


def order_of_what_is_read(b: Builder) -> FinalStream:
    two(b)
    return stream((0, A), (1, B), values=(*B, *A))


def order_with_a_row_missing(b: Builder) -> FinalStream:
    two(b)
    return stream((0, A), (1, B), values=(*A, *B[:1]))


def read_of_something_else(b: Builder) -> FinalStream:
    two(b)
    b.stream_read((*A, *C))
    return stream((0, A), (1, B))


def read_of_what_is_not_there_any_more(b: Builder) -> FinalStream:
    b.commit(0, A, 0)
    b.commit(1, B, 1, phase=Phase.UNKNOWN)
    b.stream_read((*A, *B))
    return stream((0, A))


def read_with_a_hole(b: Builder) -> FinalStream:
    two(b)
    b.stream_read((A[0], *B), process="r")
    return stream((0, A), (1, B))


def stale_read_of_the_own_commit(b: Builder) -> FinalStream:
    two(b)
    b.stream_read(A)
    return stream((0, A), (1, B))


def stale_read_of_nothing(b: Builder) -> FinalStream:
    two(b)
    b.stream_read(())
    return stream((0, A), (1, B))


def stale_read_from_the_middle(b: Builder) -> FinalStream:
    two(b)
    b.stream_read(A[1:], first=1)
    return stream((0, A), (1, B))


def unreadable(b: Builder) -> FinalStream:
    two(b)
    return FinalStream("rows", unreadable="NoSuchEntryError")


CASES = [
    ("lost-commit", lost_last),
    ("lost-commit", lost_first),
    ("lost-commit", lost_values),
    ("lost-commit", lost_and_acknowledged_as_a_repetition),
    ("duplicate-commit", twice_committed),
    ("duplicate-commit", twice_with_other_values),
    ("duplicate-commit", twice_told_to_have_applied),
    ("duplicate-commit", value_in_two_commits),
    ("phantom", phantom_commit),
    ("phantom", phantom_values),
    ("phantom", phantom_that_failed),
    ("phantom", phantom_damaged),
    ("stream-order", order_of_transactions),
    ("stream-order", order_against_time),
    ("stream-order", order_of_numbers),
    ("stream-order", order_of_times),
    ("stream-order", order_of_what_is_read),
    ("stream-order", order_with_a_row_missing),
    ("divergence", read_of_something_else),
    ("divergence", read_of_what_is_not_there_any_more),
    ("divergence", read_with_a_hole),
    ("stale", stale_read_of_the_own_commit),
    ("stale", stale_read_of_nothing),
    ("stale", stale_read_from_the_middle),
    ("unreadable", unreadable),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[case.__name__ for _, case in CASES])
def test_illegal_history_is_reported(name: str, case: Case) -> None:
    builder = Builder()
    final = case(builder)
    assert name in names(builder, final)


def test_plain_commits_and_reads_are_legal() -> None:
    b = Builder()
    b.commit(0, A, 0)
    b.stream_read(A)
    b.commit(1, B, 5)
    b.stream_read((*A[1:], *B), first=1)
    b.stream_read((), process="r")
    b.commit(2, C, 0, sink_id="other", process="s2")
    made = (
        FinalCommit(0, "sink", 0, A),
        FinalCommit(1, "sink", 5, B),
        FinalCommit(2, "other", 0, C),
    )
    assert names(b, FinalStream("rows", made, (*A, *B, *C))) == set()


def test_repeated_commit_says_so_and_changes_nothing() -> None:
    b = Builder()
    b.commit(-1, A, 0, phase=Phase.UNKNOWN)
    b.commit(0, A, 0, applied=False)
    b.commit(0, C, 0, applied=False, process="slower")  # another driver, with other rows
    assert names(b, stream((0, A))) == set()


def test_a_commit_of_unknown_outcome_may_be_there_or_not() -> None:
    b = Builder()
    b.commit(-1, A, 0, phase=Phase.UNKNOWN)
    assert names(b, stream((0, A))) == set()
    assert names(b, stream()) == set()


def test_a_failed_attempt_may_succeed_when_it_is_repeated() -> None:
    b = Builder()
    b.commit(-1, A, 0, phase=Phase.FAIL)
    b.commit(0, A, 0)
    assert names(b, stream((0, A))) == set()
