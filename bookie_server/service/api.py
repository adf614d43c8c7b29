"""What the service asks of a bookie; ``bookie_server.bookie.Bookie`` is the real one.

The service owns the network and nothing else: it decodes, hands over, and sends the answer. Tests
put a scripted bookie behind the same interface.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from bookie_server.core.answers import Done, LedgerEnd, ReadOutcome
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId


class BookieApi(Protocol):
    """A bookie without its network.

    Methods are called on the service's loop, except ``read`` and ``list_entries``, which are
    thread-safe and run in a pool. ``done`` and watch callbacks come on the loop.
    """

    @property
    def append_bytes_in_flight(self) -> int:
        """Bytes accepted and not durable yet."""

    def batch(self) -> AbstractContextManager[None]:
        """Adds made within become durable together; their ``done`` may come at its end."""

    def add(
        self,
        run: EntryRun,
        *,
        access_key: bytes,
        recovery: bool,
        last_add_confirmed: EntryId,
        done: Done,
    ) -> None:
        """Store a run. Answers for one ledger come in order; a refusal may come at once."""

    def fence(self, ledger_id: LedgerId, *, access_key: bytes, done: Done) -> None:
        """Refuse normal adds from now on; durable before ``done(OK)``."""

    def write_last_confirmed(
        self,
        ledger_id: LedgerId,
        last_add_confirmed: EntryId,
        *,
        access_key: bytes,
        done: Done,
    ) -> None:
        """Take note of a LAC from an idle writer."""

    def end_of_ledger(self, ledger_id: LedgerId, *, access_key: bytes) -> LedgerEnd:
        """The ledger's LAC and last entry here."""

    def watch_last_confirmed(
        self, ledger_id: LedgerId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back when the LAC grows, and on fence; the result cancels the watch."""

    def read(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int,
        max_bytes: int,
    ) -> ReadOutcome:
        """Entries ``first, first + stride, ...`` up to ``last``, at least one whatever its size."""

    def list_entries(self, ledger_id: LedgerId) -> list[tuple[EntryId, EntryId]] | None:
        """Ranges, both ends included, of the entries held; None for an unknown ledger.

        Raises OSError or CorruptionError if that cannot be read.
        """
