"""The appenders of one ledger, one for each bookie index; their results as events of a machine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from spark_ledger.client.context import ClientContext
from spark_ledger.client.machine_loop import MachineLoop
from spark_ledger.protocol.events import AddAcknowledged, AddFailed, OpenAppender
from spark_ledger.runs import EntryRun
from spark_ledger.transport.base import AddResult, Appender
from spark_ledger.types import BookieStatus, LedgerId

_NO_SUSPICION: Final = (BookieStatus.FENCED, BookieStatus.TOO_MANY_REQUESTS)
"""What says nothing against the bookie: a fence is about the ledger, and who is busy is well."""


class Appenders:
    """Opened and closed as a machine says. Its loop is fed AddAcknowledged and AddFailed."""

    def __init__(
        self,
        context: ClientContext,
        ledger_id: LedgerId,
        machine_loop: MachineLoop,
        *,
        access_key: bytes,
        recovery: bool,
    ) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._machine_loop = machine_loop
        self._access_key = access_key
        self._recovery = recovery
        self._by_index: dict[int, Appender] = {}

    def open(self, command: OpenAppender) -> None:
        """A new appender for one index; the one before, if any, reports nothing more."""
        self.close(command.bookie_index)
        self._by_index[command.bookie_index] = self._context.transport.open_appender(
            command.bookie_id,
            self._ledger_id,
            access_key=self._access_key,
            recovery=self._recovery,
            on_result=partial(self._on_result, command.bookie_index),
        )

    def send(self, bookie_index: int, runs: Iterable[EntryRun]) -> None:
        """Send runs, in order, to the bookie at the index."""
        appender = self._by_index[bookie_index]
        for run in runs:
            appender.send(run)

    def close(self, bookie_index: int) -> None:
        """Nothing more is sent to the bookie at the index or reported of it."""
        appender = self._by_index.pop(bookie_index, None)
        if appender is not None:
            appender.close()

    def close_all(self) -> None:
        """The machine has ended."""
        for bookie_index in list(self._by_index):
            self.close(bookie_index)

    def _on_result(self, bookie_index: int, result: AddResult) -> None:
        bookie_id, status, last_entry, message = result
        if status is BookieStatus.OK:
            acknowledged = AddAcknowledged(bookie_index, bookie_id, last_entry)
            self._machine_loop.feed_acknowledgement(acknowledged)
            return
        if status not in _NO_SUSPICION:
            self._context.suspect(bookie_id)
        self._machine_loop.feed(AddFailed(bookie_index, bookie_id, status, message))
