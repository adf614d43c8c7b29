"""When a writer tells its last add confirmed on its own, and not inside an entry (rule P5)."""

from __future__ import annotations

from spark_ledger.protocol.events import AnnounceLastConfirmed, Command
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import NO_ENTRY, EntryId


class Announcements:
    """What bookies were told of the last add confirmed, and when they are to be told more."""

    def __init__(self, now: float, delay_s: float) -> None:
        self._told: EntryId = NO_ENTRY
        """The last add confirmed that bookies were told of, by an entry or on its own."""
        self._last_append_at = now
        self._delay_s = delay_s

    def carried(self, last_confirmed: EntryId, now: float) -> None:
        """Entries that are being sent carry it."""
        self._told, self._last_append_at = last_confirmed, now

    def owes(self, last_confirmed: EntryId) -> bool:
        """Whether bookies know less."""
        return self._told < last_confirmed

    @property
    def due_at(self) -> float:
        """When an idle writer tells what it owes."""
        return self._last_append_at + self._delay_s

    def announce(self, last_confirmed: EntryId, replication: Replication) -> Command:
        """Tell it now, to all who live.

        Entries carry the LAC of when they were sent, so without this the last ones stay invisible
        to readers for as long as the writer has nothing to add (rule P5).
        """
        self._told = last_confirmed
        return AnnounceLastConfirmed(last_confirmed, replication.live_bookies)
