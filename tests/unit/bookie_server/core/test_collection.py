"""What is garbage, by what the looks at the metadata say."""

from __future__ import annotations

import pytest

from bookie_server.core.collection import (
    History,
    Seen,
    absent,
    history,
    is_garbage,
    seen,
    too_many,
)
from spark_ledger.types import LedgerId


def test_held_ledgers_that_are_not_listed_are_absent_in_their_order() -> None:
    held = [LedgerId(each) for each in (1, 4, 5, 9)]
    assert absent(held, {LedgerId(4), LedgerId(7)}) == [1, 5, 9]


@pytest.mark.parametrize(
    ("held_key", "found_key", "wanted"),
    [
        (b"a", None, Seen.ABSENT),
        (b"", None, Seen.ABSENT),
        (b"a", b"a", Seen.NAMED),
        (b"a", b"b", Seen.OTHER),
        (b"a", b"", Seen.OTHER),
        (b"", b"b", Seen.NAMED),
        (b"", b"", Seen.NAMED),
    ],
)
def test_ledger_is_known_by_the_hash_of_its_key(
    held_key: bytes, found_key: bytes | None, wanted: Seen
) -> None:
    assert seen(held_key, found_key) is wanted


@pytest.mark.parametrize("first", Seen)
@pytest.mark.parametrize("second", Seen)
def test_only_two_looks_that_agree_make_garbage(first: Seen, second: Seen) -> None:
    assert is_garbage(first, second) is (first is second is not Seen.NAMED)


@pytest.mark.parametrize(
    ("noted", "stored", "wanted"),
    [
        ((), "", History.BEGINS),
        (("", "a"), "", History.CONTINUES),  # a crash before the first one was written
        (("", "a"), "a", History.CONTINUES),
        (("a",), "a", History.CONTINUES),
        (("a", "b"), "a", History.CONTINUES),
        (("a", "b"), "b", History.CONTINUES),
        (("b",), "a", History.BROKEN),  # a backup of before
        (("a",), "", History.BROKEN),
        ((), "a", History.BROKEN),  # the disk has lost it
    ],
)
def test_history_continues_where_disk_and_metadata_know_one_mark(
    noted: tuple[str, ...], stored: str, wanted: History
) -> None:
    assert history(noted, stored) is wanted


@pytest.mark.parametrize(
    ("garbage", "held", "wanted"),
    [(0, 0, False), (20, 20, False), (21, 42, False), (21, 41, True), (41, 41, True)],
)
def test_more_than_a_share_is_too_many_unless_they_are_few(
    garbage: int, held: int, wanted: bool
) -> None:
    assert too_many(garbage, held, share_max=0.5, freely=20) is wanted
