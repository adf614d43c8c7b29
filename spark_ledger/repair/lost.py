"""Which bookies are lost, and when too many are. Pure (rules R1 and R9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from spark_ledger.types import BookieId


class Losses(NamedTuple):
    """What the auditor concludes from one look."""

    lost: frozenset[BookieId]
    """Their copies are made again."""
    stopped: str
    """Why nothing is to be done now; empty: nothing is in the way."""


def losses(
    known: Collection[BookieId],
    gone_s: Mapping[BookieId, float],
    leaving: Collection[BookieId],
    settled: Collection[BookieId],
    *,
    delay_s: float,
    share_max: float,
) -> Losses:
    """Who is lost: gone for the delay, or told to leave.

    ``known``: all that the cluster has had. ``gone_s``: those that are not registered, and for how
    long. ``settled``: lost ones that nothing names any more; they count for nothing. Whoever
    leaves does so by an operator's word, and does not count as a loss.
    """
    counted = frozenset(known) - frozenset(settled) - frozenset(leaving)
    gone = frozenset(gone_s) & counted
    lost = frozenset(each for each in gone if gone_s[each] >= delay_s)
    if counted and len(gone) > share_max * len(counted):
        return Losses(
            frozenset(leaving),
            f"{len(gone)} of {len(counted)} bookies are gone at once ({', '.join(sorted(gone))}), "
            f"more than {share_max:.0%}: nothing is copied until some are back. If they are gone "
            "for good, run `ledger bookies decommission ID` for each",
        )
    return Losses(lost | frozenset(leaving), "")
