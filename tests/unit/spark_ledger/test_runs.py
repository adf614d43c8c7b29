"""Runs of entries: ids, offsets, splitting, and what is refused from outside."""

from __future__ import annotations

import pytest

from spark_ledger.runs import EntryRun, run_error
from spark_ledger.types import EntryId, LedgerId


def run(
    first: int = 3,
    ids: list[int] | None = None,
    sizes: tuple[int, ...] = (2, 1, 3),
    frames: bytes = b"aabccc",
    ledger: int = 7,
) -> EntryRun:
    return EntryRun(LedgerId(ledger), EntryId(first), ids, sizes, frames)


def test_consecutive_ids() -> None:
    whole = run()
    assert (whole.count, whole.last_entry, list(whole.ids())) == (3, 5, [3, 4, 5])
    assert whole.offsets() == [0, 2, 3, 6]
    assert [(entry, bytes(frame)) for entry, frame in whole.split()] == [
        (3, b"aa"),
        (4, b"b"),
        (5, b"ccc"),
    ]
    assert run_error(whole) is None


def test_ids_with_gaps() -> None:
    striped = run(ids=[3, 6, 9])
    assert striped.last_entry == 9 and list(striped.ids()) == [3, 6, 9]
    assert [entry for entry, _ in striped.split()] == [3, 6, 9]
    assert striped == run(ids=[3, 6, 9]) and striped not in (run(), run(ids=[3, 6, 8]))
    assert run_error(striped) is None


def test_splitting_copies_nothing() -> None:
    whole = run()
    assert all(frame.obj is whole.frames for _, frame in whole.split())


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (run(ledger=-1), "negative ledger id -1"),
        (run(first=-1), "entry id -1"),
        (run(sizes=(), frames=b""), "no entries"),
        (run(sizes=(2, 0, 4)), "add up"),
        (run(sizes=(2, 1, 2)), "add up to 6 bytes"),
        (run(ids=[3, 6]), "do not match"),
        (run(ids=[4, 6, 9]), "do not match"),
        (run(ids=[3, 9, 6]), "not ascending"),
        (run(ids=[3, 3, 6]), "not ascending"),
        (run(first=2**63 - 3), "ids end below"),
        (run(first=3, ids=[3, 6, 2**63 - 1]), "ids end below"),
    ],
)
def test_malformed_runs(bad: EntryRun, reason: str) -> None:
    error = run_error(bad)
    assert error is not None and reason in error


def test_the_highest_entry_ids() -> None:
    """The id behind the last one still fits into 64 bits."""
    assert run_error(run(first=2**63 - 4)) is None
    assert run_error(run(first=3, ids=[3, 6, 2**63 - 2])) is None
