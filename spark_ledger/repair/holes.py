"""What one bookie still lacks of stretches that it found damaged. Pure (rule R8).

Only the metadata say which entries of a stretch a bookie has to hold: a block with gaps may have
had some of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from spark_ledger.repair.plan import FinalFragment, final_fragments, lane_copies, missing
from spark_ledger.types import BookieId, LedgerMetadata


class Hole(Enum):
    """What is to be done about a stretch."""

    NONE = "all that it has to hold is there, or nothing is wanted of it any more"
    REPAIR = "entries are missing, and repair may copy them"
    WAIT = "entries are missing that a writer or a recovery may still change (rule R2)"


def hole(
    ledger: LedgerMetadata,
    bookie_id: BookieId,
    first: int,
    last: int,
    held: Sequence[tuple[int, int]],
) -> Hole:
    """Of the entries ``first..last``, with the ranges that the bookie holds, ascending."""
    found = Hole.NONE
    final = final_fragments(ledger)
    fragments = [(fragment, Hole.REPAIR) for fragment in final]
    if not ledger.is_closed:
        writable = ledger.last_fragment
        end = max(last, writable.first_entry - 1)
        fragments.append((FinalFragment(writable.first_entry, end, writable.bookies), Hole.WAIT))
    for fragment, answer in fragments:
        part = fragment._replace(first=max(first, fragment.first), last=min(last, fragment.last))
        if part.first > part.last or bookie_id not in part.bookies:
            continue
        lanes = lane_copies(ledger, part, part.bookies.index(bookie_id), lost=())
        if any(missing(lane, held) for lane in lanes):
            found = answer if found is Hole.NONE else Hole.REPAIR
    return found
