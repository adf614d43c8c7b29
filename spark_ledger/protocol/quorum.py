"""All quorum arithmetic: who stores an entry, what is confirmed, what answers suffice.

Nothing else in the project computes with E, WQ and AQ. The rules are those of BookKeeper; the
terms (coverage, ack quorum) are those of its TLA+ specification.

Entry e of a fragment is stored at the bookie indexes ``(e + i) % E`` for ``i < WQ``, its *write
set* (rule P1). Entries with the same remainder ``e % E`` share a write set; such a class of
entries is a *lane*. When E == WQ every index is in every write set, and there is one lane only.

Every function here answers a question about *all* lanes at once. That is where arithmetic by
counting goes wrong: with E > WQ, two silent bookies out of five may be harmless or fatal, depending
on whether they are neighbours on the ring. So the write sets are walked, never just counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from spark_ledger.types import EntryId, Quorums


def write_set(entry_id: int, quorums: Quorums) -> tuple[int, ...]:
    """The indexes that store an entry, in read preference order (rule P1)."""
    e = quorums.ensemble_size
    return tuple((entry_id + i) % e for i in range(quorums.write_quorum))


def in_write_set(bookie_index: int, entry_id: int, quorums: Quorums) -> bool:
    """Whether an entry's write set contains an index (rule P1)."""
    return (bookie_index - entry_id) % quorums.ensemble_size < quorums.write_quorum


def entries_of_index(bookie_index: int, first: int, last: int, quorums: Quorums) -> Sequence[int]:
    """The entries of ``first..last`` that the bookie at an index stores; ascending."""
    assert 0 <= bookie_index < quorums.ensemble_size, "An index is below E."
    if quorums.ensemble_size == quorums.write_quorum:
        return range(first, last + 1)
    return [e for e in range(first, last + 1) if in_write_set(bookie_index, e, quorums)]


def ranges_of_index(
    bookie_index: int, first: int, last: int, quorums: Quorums
) -> Iterator[tuple[int, int]]:
    """The same as ranges, both ends included: WQ neighbours, then a gap, on a ring of E."""
    e, wq = quorums.ensemble_size, quorums.write_quorum
    if e == wq and first <= last:
        yield first, last
        return
    begin = first - (first - (bookie_index - wq + 1)) % e
    for start in range(begin, last + 1, e):
        low, high = max(start, first), min(start + wq - 1, last)
        if low <= high:
            yield low, high


def last_entry_of_index(bookie_index: int, last: int, quorums: Quorums) -> int:
    """The highest entry up to ``last`` that an index stores; below 0 if there is none."""
    # An index stores the entries whose distance to it on the ring is below WQ. Going back one entry
    # makes the distance one larger, and it wraps to 0 after E - 1: so the answer is reached in at
    # most E - WQ steps back, and one subtraction does them all.
    distance = (bookie_index - last) % quorums.ensemble_size
    if distance < quorums.write_quorum:
        return last
    found = last - (quorums.ensemble_size - distance)
    assert in_write_set(bookie_index, found, quorums), "The entry is one of the index."
    return found


class Lane(NamedTuple):
    """Entries ``residue, residue + stride, ...`` and the indexes that each of them is stored on."""

    residue: int
    stride: int
    indexes: tuple[int, ...]

    def first_at_or_after(self, entry_id: int) -> int:
        """The lane's first entry that is not below ``entry_id``."""
        return entry_id + (self.residue - entry_id) % self.stride


@lru_cache
def lanes(quorums: Quorums) -> tuple[Lane, ...]:
    """Every class of entries that share a write set."""
    e = quorums.ensemble_size
    if e == quorums.write_quorum:
        return (Lane(0, 1, tuple(range(e))),)
    found = tuple(Lane(residue, e, write_set(residue, quorums)) for residue in range(e))
    for index in range(e):
        # Every bookie carries the same share, and no entry is left without a lane.
        shares = sum(index in lane.indexes for lane in found)
        assert shares == quorums.write_quorum, "An index is in WQ of the E write sets."
    return found


def confirmed_end(acked: Sequence[int], last_pushed: int, quorums: Quorums) -> EntryId:
    """The highest entry L such that every entry up to L has AQ acknowledgements (rule P4).

    ``acked[i]`` says that the bookie at index i holds all of its entries up to that id. Bookies
    answer a writer in order (rule P3), so one number per bookie is all there is to know, and the
    cost of confirming does not grow with the number of entries.
    """
    assert len(acked) == quorums.ensemble_size, "Every member has one acknowledged entry."
    if quorums.ensemble_size == quorums.write_quorum:  # one lane: this runs after each answer
        return EntryId(min(last_pushed, sorted(acked)[-quorums.ack_quorum]))
    end = last_pushed
    for lane in lanes(quorums):
        # The AQ-th highest number of the lane: up to there, AQ bookies hold the lane's entries.
        in_order = sorted([acked[index] for index in lane.indexes], reverse=True)
        stored = in_order[quorums.ack_quorum - 1]
        # Confirmation is in order over all lanes: the first entry that lacks copies in any of them
        # ends it, or readers would find a hole below the last add confirmed.
        first_missing = lane.first_at_or_after(stored + 1)
        end = min(end, first_missing - 1)
    assert end <= last_pushed, "An entry that was never added cannot be confirmed."
    return EntryId(end)


def can_confirm(failed_indexes: frozenset[int], quorums: Quorums) -> bool:
    """Whether every write set still has AQ members that have not failed (rule P10)."""
    return not failed_indexes or all(
        sum(index not in failed_indexes for index in lane.indexes) >= quorums.ack_quorum
        for lane in lanes(quorums)
    )


def is_covered(known_indexes: frozenset[int], quorums: Quorums) -> bool:
    """True when every write set has fewer than AQ members that did not answer.

    This is coverage (rule P13). OK and denials are answers; an error is none.
    Once all the answering bookies are fenced the old writer can confirm nothing more, because
    every AQ of a write set has a fenced bookie in it. For the same reason one of them knows every
    entry that was confirmed before.
    """
    assert known_indexes <= set(range(quorums.ensemble_size)), "Only the ensemble is asked."
    return all(
        sum(index not in known_indexes for index in lane.indexes) < quorums.ack_quorum
        for lane in lanes(quorums)
    )


def is_not_written(denials: int, quorums: Quorums) -> bool:
    """True when this many denials of one write set leave fewer than AQ members that can hold the
    entry (rule P14).

    At most WQ - denials bookies hold the entry, so AQ of them cannot once
    ``denials >= WQ - AQ + 1``. One less would call an entry unwritten that may be confirmed.
    """
    assert 0 <= denials <= quorums.write_quorum, "Only the write set is asked, and once each."
    return denials >= quorums.write_quorum - quorums.ack_quorum + 1


def no_newer_confirmed(empty_answers: int, quorums: Quorums) -> bool:
    """True when fewer than AQ bookies of the ensemble can know a newer LAC.

    ``empty_answers`` bookies have said that they know none.
    A long poll ends then: waiting for the rest could bring nothing that AQ bookies hold (rule P5).
    """
    assert 0 <= empty_answers <= quorums.ensemble_size, "Every bookie answers a round once."
    return empty_answers >= quorums.ensemble_size - quorums.ack_quorum + 1


def is_supported(supporters: frozenset[int], quorums: Quorums) -> bool:
    """True when one of those who say something is honest, if at most WQ - AQ of a write set lie
    (rule P5). Bookies that do not answer prove nothing, so they change nothing."""
    liars_max = quorums.write_quorum - quorums.ack_quorum
    return any(
        sum(index in supporters for index in lane.indexes) > liars_max for lane in lanes(quorums)
    )


def agreement_suffices(mute: frozenset[int], quorums: Quorums) -> bool:
    """Whether what AQ bookies of a write set know is believed by their agreement, although these
    gave no answer (rule P5). If not, an entry must prove what one bookie says."""
    liars_max = quorums.write_quorum - quorums.ack_quorum
    return all(
        quorums.ack_quorum - sum(index in mute for index in lane.indexes) > liars_max
        for lane in lanes(quorums)
    )


def is_told(knowing: frozenset[int], quorums: Quorums) -> bool:
    """True when whoever hears a coverage of the ensemble believes what these bookies know, whoever
    fails to answer (rule P5).

    That takes a whole write set: a coverage may be no more than WQ - AQ + 1 of it, and all of these
    have to agree.
    """
    return any(knowing.issuperset(lane.indexes) for lane in lanes(quorums))
