"""Up to where a ledger directory has the journal and its run log, and of which ledgers those may
have more.

The marks of a flush were read before it set apart what it stores (rule S2), so something of that
may lie behind them. A start stores it once more, which is harmless (rule S8), unless its ledger was
deleted meanwhile and is let in again (rules G2 and G9).
"""

from __future__ import annotations

from collections.abc import Iterable

from bookie_server.storage.index.base import Index, IndexUpdate
from bookie_server.storage.journal.mark import Mark, later
from spark_ledger.types import LedgerId


class Covered:
    """The marks of one directory; whoever has the flush lock. Any thread reads single fields."""

    def __init__(self, index: Index) -> None:
        self.mark = index.mark()
        self.run_log_mark = index.run_log_mark()
        self.seen_behind: frozenset[LedgerId] = frozenset()
        """Ledgers of which something that is stored may lie behind the marks; no others."""
        # Of what is frozen.
        self._mark: Mark | None = None
        self._run_log_mark: Mark | None = None
        self._behind: frozenset[LedgerId] = frozenset()

    def is_before(self, mark: Mark | None, run_log_mark: Mark | None) -> bool:
        """Whether one of these lies further on."""
        return bool(later(self.mark, mark) or later(self.run_log_mark, run_log_mark))

    def freeze(
        self,
        mark: Mark | None,
        run_log_mark: Mark | None,
        stored: Iterable[LedgerId],
        unwritten: Iterable[LedgerId],
    ) -> None:
        """What was frozen has these marks. ``stored``: ledgers whose records are part of it.
        ``unwritten``: those seen behind that the journal had still to write of, before the marks
        were read; the marks have passed all that came of the others."""
        self._mark, self._run_log_mark = mark, run_log_mark
        self._behind = frozenset(unwritten).union(stored)

    def put_into(self, update: IndexUpdate) -> None:
        """Have an update store the frozen marks. A mark never goes back (rule S6)."""
        if (moved := later(self.mark, self._mark)) is not None:
            update.put_mark(moved)
        if (moved := later(self.run_log_mark, self._run_log_mark)) is not None:
            update.put_run_log_mark(moved)

    def committed(self) -> None:
        """The update is committed."""
        self.mark = later(self.mark, self._mark) or self.mark
        self.run_log_mark = later(self.run_log_mark, self._run_log_mark) or self.run_log_mark
        assert not self.is_before(self._mark, self._run_log_mark), (
            f"the marks {self.mark}, {self.run_log_mark} were left behind a commit"
        )
        self.seen_behind = self._behind
        self._mark = self._run_log_mark = None

    def behind(self, mark: Mark | None, run_log_mark: Mark | None) -> frozenset[LedgerId]:
        """Ledgers of which a start may bring something back that lies before these marks, among
        those that are stored. Has the flush lock."""
        return self.seen_behind if self.is_before(mark, run_log_mark) else frozenset()
