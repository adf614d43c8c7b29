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


class Maker(StrEnum):
    """What an audit knows of the stream that a ledger was made for."""

    NONE = "none"
    """It was made for no stream: an application's own."""

    GONE = "gone"
    """The stream is deleted, and its id is never used again."""

    READ = "read"
    """The stream exists, and all that it names was read."""

    UNREAD = "unread"
    """It exists, and was not read, or not to its end."""


def judge_open(
    ledger: LedgerMetadata | None,
    *,
    gone_s: float | None,
    recovering_s: float | None = None,
    grace_s: float,
) -> Verdict:
    """A ledger that is listed as open. ``gone_s``: for how long its owner was seen to be gone; None
    while it lives (rule K2). ``recovering_s``: for how long it was seen in recovery; None if it is
    not. Such a one has no writer any more, whoever lives."""
    if ledger is None or ledger.is_closed:
        return Verdict.FORGET
    is_over = any(s is not None and s >= grace_s for s in (gone_s, recovering_s))
    return Verdict.RECOVER if is_over else Verdict.WAIT


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


def judge_unlisted(
    ledger: LedgerMetadata | None, *, maker: Maker, noted_s: float | None, grace_s: float
) -> Verdict:
    """A ledger that an audit found in no index, and named by nothing (rule K9).

    ``noted_s``: since when an audit of before has noted it, in time in which keepers worked; None
    if none has. So it takes two audits to delete one, except where its stream is gone.
    """
    if ledger is None or maker in (Maker.NONE, Maker.UNREAD):
        return Verdict.FORGET
    if maker is Maker.GONE:
        return Verdict.DELETE
    if noted_s is None or noted_s < grace_s:
        return Verdict.WAIT
    return Verdict.DELETE if ledger.is_closed else Verdict.RECOVER
