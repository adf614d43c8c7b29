"""Transport: how a client talks to bookies. One interface; gRPC in production, memory in tests.

A transport delivers and reports; it never retries and never decides. All methods are called on
one asyncio loop, and callbacks come on that loop. Statuses of ``BookieStatus`` are values here,
not exceptions: the protocol machines need every one of them. A broken connection is reported as
UNAVAILABLE, a missing answer as TIMEOUT, an answer that cannot be decoded as IO_ERROR. None of
these denies anything (rule P14).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, LedgerId

FIRST_ENTRY: Final = EntryId(0)


class AddResult(NamedTuple):
    """A bookie's answer to the runs of one appender.

    OK means that every run sent so far, up to and with ``last_entry``, is durable there. STALLED is
    a note that nothing has become durable for long; it may yet, and is reported then. Any other
    status ends the appender: nothing more is reported, later runs are dropped.
    """

    bookie_id: BookieId
    status: BookieStatus
    last_entry: EntryId
    message: str = ""


class ReadChunk(NamedTuple):
    """Part of a range.

    When ``status`` is not OK, ``run`` is None, ``entry_id`` is the entry that could not be read,
    and the iterator ends.
    """

    status: BookieStatus
    run: EntryRun | None
    entry_id: EntryId
    message: str = ""


class LastConfirmed(NamedTuple):
    """A bookie's view of a ledger's end: its LAC, and the highest entry it holds (-1: none)."""

    status: BookieStatus
    last_add_confirmed: EntryId = NO_ENTRY
    last_entry: EntryId = NO_ENTRY
    fenced: bool = False
    message: str = ""


class ListedEntries(NamedTuple):
    """Ranges of entries that a bookie holds, ascending, both ends included. They say all up to
    ``next_entry``, where one asks again; None: of all that follow."""

    status: BookieStatus
    ranges: list[tuple[EntryId, EntryId]]
    next_entry: EntryId | None = None


class BookieDescription(NamedTuple):
    """What a bookie says about itself."""

    bookie_id: BookieId
    cluster_id: str
    version: str
    state: str
    ledgers: int
    journal_bytes: int
    entry_log_bytes: int
    free_bytes: int
    uptime_s: float
    next_ledger_id: int = 0
    """Above every ledger that it has heard of; 0 from an older version, which does not say."""
    scrubbed_at: float = 0.0
    """When it had verified all that it stores the last time, since 1970; 0: never."""
    damaged: int = 0
    """Blocks, and parts of the index, that it found damaged since it started."""
    lacking: int = 0
    """Stretches of entries that are damaged there and await copies."""


class Appender(Protocol):
    """One ledger's runs to one bookie, in order, over the append stream that all ledgers share."""

    def send(self, run: EntryRun) -> None:
        """Queue a run. Never blocks and never raises; failures arrive as an ``AddResult``."""

    def close(self) -> None:
        """Stop reporting. What was sent may still be stored."""


class Transport(Protocol):
    """Connections to bookies, made on first use and kept."""

    def open_appender(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        access_key: bytes,
        recovery: bool,
        on_result: Callable[[AddResult], None],
    ) -> Appender:
        """An appender for one ledger.

        ``on_result`` is never called from inside this call or inside ``send``.
        """

    def read(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int = 1,
        max_bytes: int = 0,
        fence: bool = False,
        access_key: bytes = b"",
        timeout_s: float,
    ) -> AsyncGenerator[ReadChunk, None]:
        """Entries ``first_entry, first_entry + stride, ...`` up to ``last_entry``, in order.

        ``timeout_s`` is how long each chunk may take from when the caller asks for it; what the
        caller does between two chunks does not count.

        Ends early after ``max_bytes``. Never raises for what a bookie or the network does.
        """

    async def read_last_confirmed(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        *,
        fence: bool = False,
        access_key: bytes = b"",
        wait_above: EntryId = NO_ENTRY,
        wait_s: float = 0.0,
        timeout_s: float,
    ) -> LastConfirmed:
        """The bookie's LAC; with ``wait_s``, held there until LAC > ``wait_above`` (long poll).

        The deadline of the call is ``wait_s + timeout_s``.
        """

    def write_last_confirmed(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        last_add_confirmed: EntryId,
        *,
        access_key: bytes = b"",
        timeout_s: float,
    ) -> Awaitable[BookieStatus]:
        """Tell a bookie the LAC of an idle writer; what it answers."""

    async def list_entries(
        self,
        bookie_id: BookieId,
        ledger_id: LedgerId,
        first: EntryId = FIRST_ENTRY,
        *,
        timeout_s: float,
    ) -> ListedEntries:
        """What this bookie holds of the entries from ``first`` on: a page. A bookie of a former
        version lists all of them at once."""

    async def list_ledgers(
        self, bookie_id: BookieId, first: LedgerId, *, timeout_s: float
    ) -> tuple[BookieStatus, list[LedgerId]]:
        """Ledgers that this bookie holds, from this id on, ascending, as many as fit an answer;
        none: there are no more. BAD_REQUEST from a bookie that cannot list them."""

    async def describe(self, bookie_id: BookieId, *, timeout_s: float) -> BookieDescription:
        """What the bookie says of itself. Raises BookieUnavailableError if it does not answer."""

    async def close(self) -> None:
        """Close every connection; open appenders are failed with UNAVAILABLE."""
