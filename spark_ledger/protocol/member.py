"""One bookie at one index of an ensemble: what it was sent, what it holds, how it has behaved."""

from __future__ import annotations

from typing import Final

from spark_ledger.limits.bookie import BOOKIE_REFRESH_INTERVAL_S
from spark_ledger.limits.client import (
    BOOKIE_RETURN_DELAY_S,
    BOOKIE_RETURN_DELAY_S_MAX,
    BUSY_RETRY_S,
    BUSY_RETRY_S_MAX,
)
from spark_ledger.types import BookieId, BookieStatus

_SILENT: Final = (BookieStatus.TIMEOUT, BookieStatus.STALLED)
"""How a bookie fails that acknowledges nothing: it may be storing all the same (rule P11)."""

_AT_ONCE: Final = (BookieStatus.UNAVAILABLE, BookieStatus.TIMEOUT, BookieStatus.IO_ERROR)
"""Failures that a restart may have ended by now. After any other the bookie would answer the same
again: it may not return at once, not even the first time."""


class EnsembleMember:
    """A bookie at one index of the ensemble. Replaced as a whole, never given another bookie.

    With C the last add confirmed when the bookie was installed, and P the last entry pushed:

        C <= acked_to <= sent_to <= P
        failed  =>  sent_to does not grow
        paused_until is set  =>  not failed, and nothing is under way to the bookie

    ``acked_to`` never goes back while the bookie stands here; a new member starts at C, which is
    how its predecessor's acknowledgements are forgotten (rule P8).
    """

    __slots__ = (
        "acked_to",
        "bookie_id",
        "excused_until",
        "failed",
        "hopeless",
        "installed_at",
        "outwaited",
        "owed_from",
        "owing_since",
        "paused_until",
        "pauses",
        "reason",
        "retry_at",
        "return_at",
        "sent_to",
        "silent_since",
        "stalled",
        "status",
        "worked",
    )

    def __init__(self, bookie_id: BookieId, last_confirmed: int, now: float) -> None:
        self.bookie_id = bookie_id
        self.acked_to = last_confirmed
        self.sent_to = last_confirmed
        self.failed = False
        self.status = BookieStatus.OK
        """How it failed."""
        self.reason = ""
        """What it said when it failed."""
        self.hopeless = False
        """It failed after all the time that it is waited for where nothing goes on without it."""
        self.outwaited = False
        """It failed after all the time that a member is waited for which stores nothing."""
        self.stalled = False
        """It said that its disk does not move, and has acknowledged nothing since."""
        self.installed_at = now
        self.worked = False
        """Whether it has acknowledged anything here."""
        self.retry_at = now
        """A failed member without a replacement: when to look for one again."""
        self.return_at = now
        """A failed member: before that it gets no index back while others suffice (rule P10)."""
        self.silent_since = now
        """When the bookie last had nothing to answer, or answered anything."""
        self.owed_from = last_confirmed + 1
        """The first entry of those that were pushed since the bookie last had nothing to answer."""
        self.owing_since = now
        """When the bookie last had nothing to answer, or acknowledged something."""
        self.excused_until = now
        """A silent member that cannot be spared: when to ask for a replacement again (rule P11)."""
        self.paused_until: float | None = None
        """The bookie said that it is busy: when its entries are sent again (rule P11)."""
        self.pauses = 0
        """How often it said so since it acknowledged something."""

    @property
    def may_come_back_early(self) -> bool:
        """Whether a failed bookie may be tried again where nothing goes on without it: it has
        worked here, or it was given up for being silent."""
        return not self.hopeless and (self.worked or self.status in _SILENT)

    @property
    def held_to(self) -> int:
        """Up to which entry it holds, or need not hold, everything. What it acknowledged last may
        be older: entries of other indexes were pushed meanwhile."""
        acked_to, owed_from = self.acked_to, self.owed_from
        return acked_to if acked_to >= owed_from else owed_from - 1

    def starts_to_owe(self, first: int, now: float) -> None:
        """Silence counts from the first entry owed (rule P11): a bookie that was asked nothing for
        an hour has not been silent for an hour."""
        self.owed_from = first
        self.silent_since = self.owing_since = now

    def acknowledge(self, last: int, now: float) -> None:
        """It holds its entries up to ``last``."""
        assert self.acked_to < last <= self.sent_to, "An acknowledgement is new, of what was sent."
        self.acked_to = last
        self.silent_since = self.owing_since = now
        self.worked, self.stalled, self.pauses = True, False, 0

    def fail(
        self, status: BookieStatus, reason: str, failures: int, now: float, retry_s: float
    ) -> None:
        """It failed, ``failures`` times before since it last worked well (rule P10)."""
        assert not self.failed, "A bookie fails once where it stands."
        self.failed, self.status, self.reason = True, status, reason
        self.paused_until = None
        # Where nobody else is, the next choice would be no better than this one was: a bookie that
        # answers yet refuses to store would be chosen again as fast as it can refuse.
        self.retry_at = now if self.worked or not failures else now + retry_s
        if status is BookieStatus.READ_ONLY:
            # Its registration says when it takes entries again, and may be that late.
            self.return_at = now + BOOKIE_REFRESH_INTERVAL_S
        else:
            again = self.hopeless or status not in _AT_ONCE
            self.return_at = now + return_delay_s(failures + again)

    def stall(self) -> None:
        """The bookie says that its disk does not move: as good as silent, from now on."""
        self.stalled = True
        self.silent_since = float("-inf")

    def pause(self, chance: float, now: float) -> None:
        """The bookie is busy: nothing that was sent and not acknowledged was decided (rule P11).

        ``chance``, from 0 to 1: up to half as long again, so that writers which were refused
        together come back apart.
        """
        pause_s = min(BUSY_RETRY_S * 2 ** min(self.pauses, 10), BUSY_RETRY_S_MAX)
        self.paused_until = now + pause_s * (1 + chance / 2)
        self.pauses += 1
        self.sent_to = self.acked_to
        if not self.stalled:  # busy because nothing moves: as good as silent, whatever it says
            self.silent_since = now


def return_delay_s(failures: int) -> float:
    """How long a bookie that failed ``failures`` times before stays away from its ensemble."""
    if not failures:
        return 0.0
    doubled = min(failures - 1, 10)  # as many as matter: no float holds 2 ** 1024
    return float(min(BOOKIE_RETURN_DELAY_S * 2**doubled, BOOKIE_RETURN_DELAY_S_MAX))
