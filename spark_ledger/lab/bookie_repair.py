"""The repair of ledgers whose bookie is silent for long, as BookKeeper's auditor and workers do it.

One host is all of them. It asks bookies whether they live. Of a silent one it copies each entry
that lies in a fragment nobody writes to any more, from another member to a bookie that is not one,
and then names that bookie in the metadata. The last fragment of an open ledger is its writer's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from spark_ledger.lab.bookies import (
    METADATA,
    Add,
    Added,
    Listed,
    ListLedgers,
    NodeWritten,
    Ping,
    Pong,
    Read,
    ReadBack,
    WriteNode,
)
from spark_ledger.lab.machines import Effect, Event, Note, Received, Send, Tick
from spark_ledger.protocol.quorum import write_set
from spark_ledger.types import BookieId, EntryId, Fragment, LedgerMetadata

AUDITOR: Final = "auditor"
PING_S: Final = 0.1
LOST_S: Final = 1.0
"""A bookie that is silent for so long is lost: as the other protocols' sessions."""
STEP_S: Final = 1.0
"""A copy that has not ended after so long is begun anew."""


class Auditor:
    """Repairs one fragment at a time."""

    def __init__(self, bookies: tuple[str, ...], now: float) -> None:
        self._bookies = tuple(BookieId(name) for name in bookies)
        self._seen = dict.fromkeys(self._bookies, now)
        self._ping_at = 0.0
        self._due = 0.0
        """When the metadata are looked at again."""
        self._metadata: LedgerMetadata | None = None
        """With the new bookie already."""
        self._version = 0
        self._fragment = Fragment(EntryId(0), ())
        self._slot = 0
        self._missing: set[int] = set()
        """Entries of this fragment that were not copied yet."""

    def knows(self) -> str:
        lost = " ".join(sorted(set(self._bookies) - set(self._live(self._ping_at)))) or "nobody"
        return f"lost: {lost}; {len(self._missing)} entries to copy"

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(source, Pong()):
                self._seen[BookieId(source)] = now
                return []
            case Received(_, Listed(ledgers)):
                return self._begin(ledgers, now)
            case Received(source, ReadBack(ask, entries)):
                return self._on_read(source, ask, entries)
            case Received(_, Added(ledger, slot, entry)):
                if not self._is_current(ledger, slot) or entry not in self._missing:
                    return []
                self._missing.remove(entry)
                return [] if self._missing else self._end()
            case Received(_, NodeWritten(ok)):
                self._due, self._metadata = now, None
                return [Note("repair", int(ok))]
            case Tick():
                return self._on_tick(now)
            case _:
                return []

    def _live(self, now: float) -> list[BookieId]:
        return [each for each in self._bookies if now - self._seen[each] < LOST_S]

    def _is_current(self, ledger: int, slot: int) -> bool:
        metadata = self._metadata
        return metadata is not None and (metadata.ledger_id, self._slot) == (ledger, slot)

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now >= self._ping_at:
            self._ping_at = now + PING_S
            effects += [Send(bookie, Ping()) for bookie in self._bookies]
        if now >= self._due and len(self._live(now)) < len(self._bookies):
            self._due = now + STEP_S
            effects.append(Send(METADATA, ListLedgers()))
        return effects

    def _begin(self, ledgers: tuple[tuple[LedgerMetadata, int], ...], now: float) -> list[Effect]:
        """Look for a fragment with a lost bookie, and ask for what that one had."""
        live = self._live(now)
        for metadata, version in ledgers:
            fragments = tuple(metadata.fragments)
            for place, fragment in enumerate(fragments):
                is_last = place + 1 == len(fragments)
                lost = [slot for slot, each in enumerate(fragment.bookies) if each not in live]
                free = [bookie for bookie in live if bookie not in fragment.bookies]
                if not lost or not free or (is_last and not metadata.is_closed):
                    continue
                end = metadata.last_entry_id if is_last else fragments[place + 1].first_entry - 1
                slot, bookies = lost[0], list(fragment.bookies)
                bookies[slot] = free[-1]
                changed = Fragment(fragment.first_entry, tuple(bookies))
                others = (*fragments[:place], changed, *fragments[place + 1 :])
                self._metadata, self._version = replace(metadata, fragments=others), version
                self._fragment, self._slot = fragment, slot
                quorums = metadata.quorums
                entries = range(fragment.first_entry, end + 1)
                self._missing = {e for e in entries if slot in write_set(EntryId(e), quorums)}
                asked = [self._ask(entry, live) for entry in sorted(self._missing)]
                return asked or self._end()
        return []

    def _ask(self, entry: int, live: list[BookieId]) -> Effect:
        """Of the live members of its write set; a member that lacks it passes the question on."""
        assert self._metadata is not None, "A copy is of a ledger."
        members = write_set(EntryId(entry), self._metadata.quorums)
        having = [slot for slot in members if self._fragment.bookies[slot] in live]
        slot = having[0] if having else members[0]
        ask = Read(self._metadata.ledger_id, self._slot, slot, entry, entry, 1)
        return Send(self._fragment.bookies[slot], ask)

    def _on_read(
        self, source: str, ask: Read, entries: tuple[tuple[int, int, int], ...]
    ) -> list[Effect]:
        if not self._is_current(ask.ledger, ask.slot) or ask.first not in self._missing:
            return []
        assert self._metadata is not None, "A copy is of a ledger."
        if entries:
            entry, value, confirmed = entries[0]
            add = Add(ask.ledger, ask.slot, entry, value, confirmed, recovery=True)
            return [Send(self._target(), add)]
        members = write_set(EntryId(ask.first), self._metadata.quorums)
        later = members[members.index(ask.lane) + 1 :]
        if not later:
            return []  # asked again when this copy is begun anew
        bookie = self._fragment.bookies[later[0]]
        return [Send(bookie, ask._replace(lane=later[0]))]

    def _target(self) -> BookieId:
        assert self._metadata is not None, "A copy is of a ledger."
        for fragment in self._metadata.fragments:
            if fragment.first_entry == self._fragment.first_entry:
                return fragment.bookies[self._slot]
        raise AssertionError("The fragment is one of the ledger's.")

    def _end(self) -> list[Effect]:
        """All is copied: name the new bookie, unless somebody changed the ledger meanwhile."""
        assert self._metadata is not None, "A copy is of a ledger."
        return [Send(METADATA, WriteNode(self._metadata, self._version))]
