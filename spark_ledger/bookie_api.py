"""What is asked of a bookie without a network between, and its answers as values. Pure.

``bookie_server.bookie.Bookie`` is the real one. The bookie's service and the memory transport ask
it, and tests put a scripted bookie behind the same interface.

A status that is not OK comes with a sentence for people. A failure to read is IO_ERROR and never
NO_SUCH_ENTRY or NO_SUCH_LEDGER: a recovery counts those two as denials and may cut a ledger
because of them (rule P14).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId

Done = Callable[[BookieStatus, str], None]
"""Receives the answer to a change, once: a status, and a sentence when it is not OK."""


ASKED_BY: Final[ContextVar[str]] = ContextVar("ASKED_BY", default="")
"""The connection on whose behalf a bookie is asked: each has its share of what the bookie has to
look up elsewhere."""


class Refusal(NamedTuple):
    """Why a request is not served. Nothing was changed by it."""

    status: BookieStatus
    message: str


class ReadOutcome(NamedTuple):
    """What a read could have.

    ``runs`` together are the entries first, first + stride, ... without a gap. ``status`` is OK
    when the range, or ``max_bytes`` of it and at least one entry, is there; else it says why the
    read stopped at ``entry_id``.
    """

    runs: list[EntryRun]
    status: BookieStatus
    entry_id: EntryId
    message: str


class LedgerEnd(NamedTuple):
    """Where a ledger ends on this bookie; the numbers are NO_ENTRY unless status is OK."""

    status: BookieStatus
    last_add_confirmed: EntryId
    last_entry: EntryId
    fenced: bool
    message: str

    @classmethod
    def without_end(cls, status: BookieStatus, message: str) -> LedgerEnd:
        """The answer that names no end, and says why."""
        assert status is not BookieStatus.OK, "OK names the end"
        return cls(status, NO_ENTRY, NO_ENTRY, False, message)


class EntryPage(NamedTuple):
    """Stretches of entries that are held, ascending, disjoint and not adjacent, both ends included.

    They say all of the entries from where the page begins up to ``next_entry``, which is left out;
    None: of all that follow.
    """

    ranges: list[tuple[EntryId, EntryId]]
    next_entry: EntryId | None


class Held(Protocol):
    """A ledger of which a bookie holds something."""

    @property
    def ledger_id(self) -> LedgerId:
        """Its id."""


class LedgerDisks(NamedTuple):
    """The ledger directories of a bookie, for those who read."""

    names: Sequence[str]
    number_of: Callable[[LedgerId], int]
    """In which of them a ledger lives."""
    read_in_memory: Callable[[LedgerId, EntryId, EntryId, int, int], ReadOutcome | None]
    """Entries first, first + stride, ... up to last, in so many bytes, of what is in memory: at
    least one, whatever its size. None: a disk has to be asked. Any thread."""


class BookieApi(Protocol):
    """A bookie without its network.

    Methods are called on the service's loop, except ``read`` and those that list, which are
    thread-safe and run in a pool. ``done`` and watch callbacks come on the loop.
    """

    @property
    def append_bytes_in_flight(self) -> int:
        """Bytes accepted and not answered yet, without those of adds that wait for the key of
        their ledger: these have a bound of their own."""

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
        self, ledger_id: LedgerId, above: EntryId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back when the LAC grows and is higher than ``above``, and on fence; the result
        cancels the watch."""

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

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        """What is held of the entries from ``first`` on, up to where the page ends; None for an
        unknown ledger.

        Raises OSError or CorruptionError if that cannot be read.
        """

    def held_ledgers(self, after: int, limit: int) -> Sequence[Held]:
        """Ledgers with ids above ``after``, ascending, at most so many. What no flush has stored
        yet may be missing.

        Raises OSError or CorruptionError if that cannot be read.
        """


def refuse_reader(bookie: BookieApi, ledger_id: LedgerId, access_key: bytes) -> Refusal | None:
    """The refusal of a read without a fence whose key is wrong.

    A reader need not show a key. One that does is not served entries of another ledger that had
    the same id (rule P20).
    """
    if not access_key:
        return None
    end = bookie.end_of_ledger(ledger_id, access_key=access_key)
    if end.status is not BookieStatus.UNAUTHORIZED:
        return None  # what else is wrong shows when it is read
    return Refusal(end.status, end.message)
