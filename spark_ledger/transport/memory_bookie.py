"""What the memory transport asks of a bookie object, and what such an object answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieStatus, EntryId, LedgerId

Done = Callable[[BookieStatus, str], None]


class ReadOutcome(Protocol):
    """A bookie's answer to a read: runs, and why they end before what was asked for, if not OK."""

    @property
    def runs(self) -> Sequence[EntryRun]: ...
    @property
    def status(self) -> BookieStatus: ...
    @property
    def entry_id(self) -> EntryId: ...
    @property
    def message(self) -> str: ...


class LedgerEnd(Protocol):
    """Where a ledger ends at a bookie."""

    @property
    def status(self) -> BookieStatus: ...
    @property
    def last_add_confirmed(self) -> EntryId: ...
    @property
    def last_entry(self) -> EntryId: ...
    @property
    def fenced(self) -> bool: ...
    @property
    def message(self) -> str: ...


class LocalBookie(Protocol):
    """What the transport asks of a bookie object; the server's own ``Bookie`` has this shape.

    Callbacks come on the loop.
    """

    def add(
        self,
        run: EntryRun,
        *,
        access_key: bytes,
        recovery: bool,
        last_add_confirmed: EntryId,
        done: Done,
    ) -> None:
        """Store a run."""

    def fence(self, ledger_id: LedgerId, *, access_key: bytes, done: Done) -> None:
        """Fence durably."""

    def write_last_confirmed(
        self, ledger_id: LedgerId, last_add_confirmed: EntryId, *, access_key: bytes, done: Done
    ) -> None:
        """Note the LAC of an idle writer."""

    def end_of_ledger(self, ledger_id: LedgerId, *, access_key: bytes) -> LedgerEnd:
        """LAC and last entry held. A key that is shown must be right."""

    def watch_last_confirmed(
        self, ledger_id: LedgerId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back on growth of the LAC and on fence; the result cancels."""

    def read(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int,
        max_bytes: int,
    ) -> ReadOutcome:
        """Entries ``first_entry, first_entry + stride, ...`` up to ``last_entry``."""

    def list_entries(self, ledger_id: LedgerId) -> list[tuple[EntryId, EntryId]] | None:
        """Ranges held; None for an unknown ledger."""
