"""The answers of a bookie as values: made by core and bookie, sent by the service. Pure.

A status that is not OK comes with a sentence for people. A failure to read is IO_ERROR and never
NO_SUCH_ENTRY or NO_SUCH_LEDGER: a recovery counts those two as denials and may cut a ledger
because of them (rule P14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId

Done = Callable[[BookieStatus, str], None]
"""Receives the answer to a change, once: a status, and a sentence when it is not OK."""


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
