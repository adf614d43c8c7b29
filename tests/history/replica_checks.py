"""Copies and fragments of ledgers at the end: enough copies of each entry, on the right bookies."""

from __future__ import annotations

from tests.history.final import Final, FinalLedger
from tests.history.model import History
from tests.history.violation import Violation


def under_replicated(_history: History, final: Final) -> list[Violation]:
    """I3: every entry of a closed ledger is on at least AQ bookies of its write set. A bookie that
    could not be asked counts as one that has it."""
    found = []
    for last in final.ledgers.values():
        if last.closed and last.replicas and not (last.deleted or last.beyond_tolerance):
            found += _thin_entries(last)
    return found


def _thin_entries(last: FinalLedger) -> list[Violation]:
    found = []
    for index, fragment in enumerate(last.fragments):
        is_last = index + 1 == len(last.fragments)
        end = last.end if is_last else min(last.end, last.fragments[index + 1].first_entry - 1)
        unknown = set(fragment.bookies) - set(last.replicas)
        for entry_id in range(fragment.first_entry, end + 1):
            wanted = last.write_set_of(fragment, entry_id)
            holders = [b for b in wanted if b in unknown or entry_id in last.replicas[b]]
            if len(holders) < last.quorums.ack_quorum:
                text = (
                    f"ledger {last.ledger_id}, entry {entry_id}: of {' '.join(wanted)} only "
                    f"{' '.join(holders) or 'none'} hold it, {last.quorums.ack_quorum} must"
                )
                found.append(Violation("I3", "under-replicated", text))
    return found


def fragment_rules(_history: History, final: Final) -> list[Violation]:
    """I9: fragments begin at 0, ascend, do not begin beyond the end, and have E bookies."""
    found = []
    for last in final.ledgers.values():
        if last.deleted or (last.unreadable and not last.fragments):
            continue
        why = _why_illegal(last)
        if why:
            found.append(Violation("I9", "fragments", f"ledger {last.ledger_id}: {why}"))
    return found


def _why_illegal(last: FinalLedger) -> str | None:
    if not last.fragments or last.fragments[0].first_entry != 0:
        return "its first fragment does not begin at entry 0"
    previous = -1
    for fragment in last.fragments:
        if fragment.first_entry <= previous:
            return f"a fragment from {fragment.first_entry} follows one from {previous}"
        if last.closed and fragment.first_entry > last.end + 1:
            return f"a fragment from {fragment.first_entry} in a ledger that ends at {last.end}"
        if len(fragment.bookies) != last.quorums.ensemble_size:
            return f"{len(fragment.bookies)} bookies in a fragment, not {last.quorums}"
        if len(set(fragment.bookies)) != len(fragment.bookies):
            return f"a bookie stands twice in the fragment from {fragment.first_entry}"
        previous = fragment.first_entry
    return None
