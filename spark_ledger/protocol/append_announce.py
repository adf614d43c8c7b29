"""When a writer tells its last add confirmed on its own, and not inside an entry (rule P5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spark_ledger.protocol.events import AnnounceLastConfirmed, Command, LastConfirmedTold
from spark_ledger.protocol.quorum import is_told
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import NO_ENTRY, BookieId, BookieStatus, EntryId, Quorums

REPEAT_S: Final = 0.5
"""An announcement that too few have stored is repeated after this long, and after twice as long
each time: a lost message costs a reader half a second."""

REPEAT_S_MAX: Final = 60.0
"""Longest of these pauses: 3,000 idle writers beside a dead bookie that is a member of each send it
fifty small requests a second in all."""


class Announcements:
    """What bookies were told of the last add confirmed, and when they are to be told more."""

    def __init__(self, now: float, delay_s: float, quorums: Quorums) -> None:
        self._quorums = quorums
        self._delay_s = delay_s
        self._carried: EntryId = NO_ENTRY
        """The last add confirmed that the newest entries carry."""
        self._announced: EntryId = NO_ENTRY
        self._knows: dict[BookieId, EntryId] = {}
        """What bookies have stored of what was announced to them."""
        self._asked: set[BookieId] = set()
        """Bookies that were told and have not answered. They are told nothing more until they do:
        beside a thousand writers, one that hangs would be behind by hundreds of tellings a second,
        and hear all the stale ones first once it is back."""
        self._pause_s = REPEAT_S
        self._due_at = now + delay_s

    def carried(self, last_confirmed: EntryId, now: float) -> None:
        """Entries that are being sent carry it."""
        self._carried = last_confirmed
        self._due_at = now + self._delay_s

    def told(self, event: LastConfirmedTold, replication: Replication) -> list[Command]:
        """A bookie has stored what it was told, or did not. One that was still busy with it when
        more was announced is told the rest at once, for its readers wait."""
        bookie_id, announced = event.bookie_id, self._announced
        self._asked.discard(bookie_id)
        if event.status is not BookieStatus.OK:
            return []  # it is told again after the pause
        knows = self._knows[bookie_id] = max(
            self._knows.get(bookie_id, NO_ENTRY), event.last_add_confirmed
        )
        if max(knows, self._carried) >= announced or bookie_id not in replication.bookies:
            return []  # it knows, entries that are under way carry it, or it is no member any more
        return self._tell(announced, (bookie_id,))

    def owes(self, last_confirmed: EntryId, replication: Replication) -> bool:
        """Whether a reader that asks the members may not see this end."""
        if self._carried >= last_confirmed:
            return False
        if self._announced < last_confirmed:  # asked after each event: mostly nobody can know yet
            return True
        knowing = frozenset(
            index
            for index, bookie_id in enumerate(replication.bookies)
            if self._knows.get(bookie_id, NO_ENTRY) >= last_confirmed
        )
        return not is_told(knowing, self._quorums)

    def next_look(self, last_confirmed: EntryId, replication: Replication) -> float | None:
        """When an idle writer tells what it owes; None if it owes nothing."""
        return self._due_at if self.owes(last_confirmed, replication) else None

    def announce(
        self, last_confirmed: EntryId, replication: Replication, now: float
    ) -> list[Command]:
        """Tell it, if it is owed and due: first all who live, then all members that do not know it.

        Entries carry the LAC of when they were sent, so without this the last ones stay invisible
        to readers for as long as the writer has nothing to add (rule P5).
        """
        if now < self._due_at or not self.owes(last_confirmed, replication):
            return []
        if self._announced < last_confirmed:
            self._announced, self._pause_s = last_confirmed, REPEAT_S
            bookies = replication.live_bookies
        else:
            self._pause_s = min(2 * self._pause_s, REPEAT_S_MAX)
            bookies = tuple(
                bookie_id
                for bookie_id in replication.bookies
                if self._knows.get(bookie_id, NO_ENTRY) < last_confirmed
            )
        self._due_at = now + self._pause_s
        return self._tell(last_confirmed, bookies)

    def _tell(self, last_confirmed: EntryId, bookies: Iterable[BookieId]) -> list[Command]:
        free = tuple(bookie_id for bookie_id in bookies if bookie_id not in self._asked)
        self._asked.update(free)
        return [AnnounceLastConfirmed(last_confirmed, free)] if free else []
