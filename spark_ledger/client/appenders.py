"""The appenders of one ledger, one for each slot; their results as events of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from spark_ledger.client.context import ClientContext
from spark_ledger.protocol.events import AddAcknowledged, AddFailed, Event, OpenAppender
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult, Appender
from spark_ledger.types import BookieStatus, LedgerId


class Appenders:
    """Opened and closed as a machine says. ``feed`` takes AddAcknowledged and AddFailed."""

    def __init__(
        self,
        context: ClientContext,
        ledger_id: LedgerId,
        feed: Callable[[Event], None],
        *,
        access_key: bytes,
        recovery: bool,
    ) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._feed = feed
        self._access_key = access_key
        self._recovery = recovery
        self._by_slot: dict[int, Appender] = {}

    def open(self, command: OpenAppender) -> None:
        """A new appender for a slot; the one before, if any, reports nothing more."""
        self.close(command.slot)
        self._by_slot[command.slot] = self._context.transport.open_appender(
            command.bookie_id,
            self._ledger_id,
            access_key=self._access_key,
            recovery=self._recovery,
            on_result=partial(self._on_result, command.slot),
        )

    def send(self, slot: int, runs: Iterable[EntryRun]) -> None:
        """Send runs, in order, to the slot's bookie."""
        appender = self._by_slot[slot]
        for run in runs:
            appender.send(run)

    def close(self, slot: int) -> None:
        """Nothing more is sent to the slot's bookie or reported of it."""
        appender = self._by_slot.pop(slot, None)
        if appender is not None:
            appender.close()

    def close_all(self) -> None:
        """The machine has ended."""
        for slot in list(self._by_slot):
            self.close(slot)

    def _on_result(self, slot: int, result: AddResult) -> None:
        if result.status is BookieStatus.OK:
            self._feed(AddAcknowledged(slot, result.bookie_id, result.last_entry))
            return
        if result.status is not BookieStatus.FENCED:  # which is about the ledger, not the bookie
            self._context.suspect(result.bookie_id)
        self._feed(AddFailed(slot, result.bookie_id, result.status, result.message))
