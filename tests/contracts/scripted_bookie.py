"""A bookie in memory for tests of the network: right answers, completions on command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from bookie_server.storage.index.base import HeldLedger
from spark_ledger.bookie_api import Done, EntryPage, LedgerEnd, ReadOutcome
from spark_ledger.runs import EntryRun
from spark_ledger.types import NO_ENTRY, BookieStatus, EntryId, LedgerId


@dataclass
class _Ledger:
    access_key: bytes | None  # None: somebody waits for it, and nobody has used it
    entries: dict[int, bytes] = field(default_factory=dict)
    last_add_confirmed: int = -1
    fenced: bool = False
    watches: list[tuple[int, Callable[[], None]]] = field(default_factory=list)


@dataclass(frozen=True)
class ScriptedStats:
    ledgers: int = 0
    journal_bytes: int = 0
    entry_log_bytes: int = 0
    free_bytes: int = 0


class ScriptedBookie:
    """``hold`` keeps completions until ``release()``; ``refuse_next`` answers the next add."""

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, _Ledger] = {}
        self.append_bytes_in_flight = 0
        self.hold = False
        self.ranges_per_page = 2  # few: whoever forgets the next page has a test that fails
        self.refuse_next: tuple[BookieStatus, str] | None = None
        self.adds: list[EntryRun] = []
        self._held: list[Callable[[], None]] = []
        self._posted: list[Callable[[], None]] = []

    def batch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add(
        self,
        run: EntryRun,
        *,
        access_key: bytes,
        recovery: bool,
        last_add_confirmed: EntryId,
        done: Done,
    ) -> None:
        refusal = self._refusal(run.ledger_id, access_key)
        if self.refuse_next is not None:
            refusal, self.refuse_next = self.refuse_next, None
        if refusal is None and self._ledger(run.ledger_id, access_key).fenced and not recovery:
            refusal = BookieStatus.FENCED, f"ledger {run.ledger_id} is fenced"
        if refusal is not None:
            done(*refusal)
            return
        self.adds.append(run)
        self.append_bytes_in_flight += len(run.frames)

        def durable() -> None:
            self.append_bytes_in_flight -= len(run.frames)
            ledger = self._ledger(run.ledger_id, access_key)
            for entry_id, frame in run.split():
                ledger.entries[entry_id] = bytes(frame)
            done(BookieStatus.OK, "")
            self._confirm(ledger, last_add_confirmed)

        self._later(durable)

    def fence(self, ledger_id: LedgerId, *, access_key: bytes, done: Done) -> None:
        refusal = self._refusal(ledger_id, access_key)
        if refusal is not None:
            done(*refusal)
            return
        ledger = self._ledger(ledger_id, access_key)
        ledger.fenced = True
        for _above, watch in list(ledger.watches):
            self._later(watch)
        self._later(lambda: done(BookieStatus.OK, ""))

    def write_last_confirmed(
        self, ledger_id: LedgerId, last_add_confirmed: EntryId, *, access_key: bytes, done: Done
    ) -> None:
        refusal = self._refusal(ledger_id, access_key)
        if refusal is not None:
            done(*refusal)
            return
        self._confirm(self._ledger(ledger_id, access_key), last_add_confirmed)
        self._later(lambda: done(BookieStatus.OK, ""))

    def end_of_ledger(self, ledger_id: LedgerId, *, access_key: bytes) -> LedgerEnd:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            message = f"ledger {ledger_id} is not known here"
            return LedgerEnd(BookieStatus.NO_SUCH_LEDGER, NO_ENTRY, NO_ENTRY, False, message)
        if access_key and (refusal := self._refusal(ledger_id, access_key)) is not None:
            return LedgerEnd.without_end(*refusal)
        return LedgerEnd(
            BookieStatus.OK,
            EntryId(ledger.last_add_confirmed),
            EntryId(max(ledger.entries, default=-1)),
            ledger.fenced,
            "",
        )

    def watch_last_confirmed(
        self, ledger_id: LedgerId, above: EntryId, callback: Callable[[], None]
    ) -> Callable[[], None]:
        watches = self.ledgers.setdefault(ledger_id, _Ledger(None)).watches
        watches.append((above, callback))
        return lambda: watches.remove((above, callback))

    def read(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        last_entry: EntryId,
        *,
        stride: int,
        max_bytes: int,
    ) -> ReadOutcome:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            message = f"ledger {ledger_id} is not known here"
            return ReadOutcome([], BookieStatus.NO_SUCH_LEDGER, first_entry, message)
        runs: list[EntryRun] = []
        size = 0
        for entry_id in range(first_entry, last_entry + 1, stride):
            frame = ledger.entries.get(entry_id)
            if frame is None:
                message = f"entry {entry_id} is not held"
                return ReadOutcome(runs, BookieStatus.NO_SUCH_ENTRY, EntryId(entry_id), message)
            if runs and size + len(frame) > max_bytes:
                break
            size += len(frame)
            runs.append(EntryRun(ledger_id, EntryId(entry_id), None, [len(frame)], frame))
        return ReadOutcome(runs, BookieStatus.OK, NO_ENTRY, "")

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return None
        ranges: list[tuple[EntryId, EntryId]] = []
        for entry_id in sorted(each for each in ledger.entries if each >= first):
            if ranges and ranges[-1][1] == entry_id - 1:
                ranges[-1] = (ranges[-1][0], EntryId(entry_id))
            elif len(ranges) == self.ranges_per_page:
                return EntryPage(ranges, EntryId(entry_id))
            else:
                ranges.append((EntryId(entry_id), EntryId(entry_id)))
        return EntryPage(ranges, None)

    def held_ledgers(self, after: int, limit: int) -> list[HeldLedger]:
        held = sorted(each for each in self.ledgers if each > after)
        return [HeldLedger(each, b"") for each in held[:limit]]

    def stats(self) -> ScriptedStats:
        return ScriptedStats(ledgers=len(self.ledgers))

    def release(self) -> None:
        """Complete everything held, in order, as one synced journal batch does."""
        held, self._held = self._held, []
        for action in held:
            action()

    def _later(self, action: Callable[[], None]) -> None:
        if self.hold:
            self._held.append(action)
            return
        if not self._posted:
            asyncio.get_running_loop().call_soon(self._run_posted)
        self._posted.append(action)

    def _run_posted(self) -> None:
        posted, self._posted = self._posted, []
        for action in posted:
            action()

    def _refusal(self, ledger_id: LedgerId, access_key: bytes) -> tuple[BookieStatus, str] | None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and ledger.access_key not in (None, access_key):
            return BookieStatus.UNAUTHORIZED, f"wrong access key for ledger {ledger_id}"
        return None

    def _ledger(self, ledger_id: LedgerId, access_key: bytes) -> _Ledger:
        ledger = self.ledgers.setdefault(ledger_id, _Ledger(access_key))
        if ledger.access_key is None:
            ledger.access_key = access_key
        return ledger

    def _confirm(self, ledger: _Ledger, last_add_confirmed: int) -> None:
        if last_add_confirmed > ledger.last_add_confirmed:
            ledger.last_add_confirmed = last_add_confirmed
            for above, watch in list(ledger.watches):
                if above < last_add_confirmed:
                    watch()
