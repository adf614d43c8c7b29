"""Who makes up for what a bookie lacks: repair, or the writer of a fragment that is not final."""

from __future__ import annotations

import pytest

from spark_ledger.repair.holes import Hole, hole
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)

A, B, C, D = (BookieId(name) for name in "abcd")
OPEN = LedgerMetadata(
    LedgerId(1),
    Quorums(3, 3, 2),
    (Fragment(EntryId(0), (A, B, C)), Fragment(EntryId(5), (A, B, D))),
)
CLOSED = OPEN.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(9), length=10)


@pytest.mark.parametrize(
    ("bookie_id", "held", "of_open", "of_closed"),
    [
        (A, [(0, 9)], Hole.NONE, Hole.NONE),
        (A, [(0, 4)], Hole.WAIT, Hole.REPAIR),
        (A, [(5, 9)], Hole.REPAIR, Hole.REPAIR),
        (A, [], Hole.REPAIR, Hole.REPAIR),  # of both fragments: one is final
        (C, [], Hole.REPAIR, Hole.REPAIR),
        (C, [(0, 4)], Hole.NONE, Hole.NONE),
        (D, [], Hole.WAIT, Hole.REPAIR),
    ],
)
def test_hole_in_a_final_fragment_is_repaired_whatever_the_last_one_lacks(
    bookie_id: BookieId, held: list[tuple[int, int]], of_open: Hole, of_closed: Hole
) -> None:
    assert hole(OPEN, bookie_id, 0, 9, held) is of_open
    assert hole(CLOSED, bookie_id, 0, 9, held) is of_closed
