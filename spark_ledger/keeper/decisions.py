"""What is to be done about one ledger. Pure: from what was just read of it, and nothing else."""

from __future__ import annotations

from enum import StrEnum

from spark_ledger.types import LedgerMetadata


class Verdict(StrEnum):
    """What to do."""

    WAIT = "wait"
    """Nothing yet: its owner lives, or has not been gone for long enough."""

    RECOVER = "recover"
    """Fence it, find its end, close it (rule K3)."""

    DELETE = "delete"
    """Delete it, in the transaction that proves that nothing named it (rule K4)."""

    FORGET = "forget"
    """Take it off the index: what it was listed for is over."""


def judge_open(ledger: LedgerMetadata | None, *, gone_s: float | None, grace_s: float) -> Verdict:
    """A ledger that is listed as open. ``gone_s``: for how long its owner was seen to be gone; None
    while it lives (rule K2)."""
    if ledger is None or ledger.is_closed:
        return Verdict.FORGET
    if gone_s is None or gone_s < grace_s:
        return Verdict.WAIT
    return Verdict.RECOVER


def judge_unnamed(
    ledger: LedgerMetadata | None, *, gone_s: float | None, grace_s: float, has_stream: bool
) -> Verdict:
    """A ledger that is listed as unnamed. ``has_stream``: the stream that it was made for exists.

    Without its stream nothing can ever name it (rule T7), whoever still writes to it. Else an open
    ledger is recovered first: its writer learns that it is over before its rows are gone.
    """
    if ledger is None:
        return Verdict.FORGET
    if not has_stream:
        return Verdict.DELETE
    if gone_s is None or gone_s < grace_s or not ledger.is_closed:
        return Verdict.WAIT
    return Verdict.DELETE
