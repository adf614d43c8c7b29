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
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)

HERE, THERE, FAR = BookieId("here"), BookieId("there"), BookieId("far")


def ledger(key: bytes, *bookies: BookieId, is_closed: bool = False) -> LedgerMetadata:
    """What a node says: one fragment after the other, each on one bookie."""
    fragments = [Fragment(EntryId(at), (each,)) for at, each in enumerate(bookies or (HERE,))]
    return LedgerMetadata(
        ledger_id=LedgerId(1),
        quorums=Quorums(1, 1, 1),
        fragments=tuple(fragments),
        state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
        last_entry_id=EntryId(9 if is_closed else -1),
        access_key_hash=key,
    )


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
    found = None if found_key is None else ledger(found_key)
    assert seen(held_key, found, HERE) is wanted


@pytest.mark.parametrize(
    ("held_key", "bookies", "is_closed", "wanted"),
    [
        (b"a", (THERE, FAR), True, Seen.ELSEWHERE),
        (b"a", (THERE, HERE), True, Seen.NAMED),
        (b"a", (HERE, THERE), True, Seen.NAMED),
        (b"a", (THERE, FAR), False, Seen.NAMED),  # a writer, or a recovery, may name it yet
        (b"", (THERE, FAR), True, Seen.NAMED),  # nobody can tell which ledger it is
        (b"b", (THERE, FAR), True, Seen.OTHER),
    ],
)
def test_closed_ledger_that_is_named_on_other_bookies_only_is_elsewhere(
    held_key: bytes, bookies: tuple[BookieId, ...], is_closed: bool, wanted: Seen
) -> None:
    assert seen(held_key, ledger(b"a", *bookies, is_closed=is_closed), HERE) is wanted


@pytest.mark.parametrize("first", Seen)
@pytest.mark.parametrize("second", Seen)
def test_only_two_looks_that_agree_make_garbage(first: Seen, second: Seen) -> None:
    assert is_garbage(first, second) is (first is second and first in (Seen.ABSENT, Seen.OTHER))


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
