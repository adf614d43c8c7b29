"""What several bookies hold of a ledger, side by side: a stretch of entries at a time.

A bookie lists a page at a time, and pages of two bookies end at different entries. So no more is
in memory than a page of each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from spark_ledger.transport.base import ListedEntries
from spark_ledger.types import BookieStatus, EntryId

Ask = Callable[[EntryId], Awaitable[ListedEntries]]
"""Asks a bookie for the page from an entry on, again while it is busy."""

SHORT_PAGE_ENTRIES: Final = 1_000
"""A page that is not the last reaches further than this, if it came at once: it has ten thousand
rows of the index. A slow disk ends it before: of a striped ledger whole blocks are read."""

AT_ONCE_S: Final = 0.1
"""A bookie whose disk is slow ends a page after twice this (``BOOKIE_READ_QUICK_S``)."""

SHORT_PAGES_MAX: Final = 100
"""Shorter ones that came at once, of one bookie and ledger. One entry in each answer would have a
command ask for ever."""

SLOW_PAGES_MAX: Final = 10_000
"""Shorter ones that took their time: half an hour of a disk that reads."""

BEYOND_MAX: Final = 2**22
"""So far behind the known end it is looked at what a bookie holds: more than a writer sends ahead.
What follows came since then."""

ABSURD: Final = 2**40
"""So far behind it nobody holds anything, whatever was added meanwhile."""

STRETCH_ENTRIES_MAX: Final = 100_000
"""Entries that are looked at in one turn."""


class HeldEntries:
    """What one bookie holds, from entry 0 on; ``take`` goes forward."""

    def __init__(self, ask: Ask, last_entry: int, refuse: Callable[[str], object]) -> None:
        """``last_entry``: where the ledger is known to end. ``refuse`` hears why a bookie that
        says what cannot be is asked no more."""
        self._ask = ask
        self._end = EntryId(last_entry + BEYOND_MAX)
        self._refuse = refuse
        self._short = self._slow = 0
        self._ranges: deque[tuple[EntryId, EntryId]] = deque()
        self._next: EntryId | None = EntryId(0)
        self.status = BookieStatus.OK
        """Of the last answer. What it said before stands; from then on it holds nothing."""

    @property
    def known_until(self) -> EntryId | None:
        """Up to which entry, left out, all that it holds is known; None: to the end."""
        return self._next

    @property
    def is_said(self) -> bool:
        """Whether the bookie has said what it holds, as far as it was asked."""
        return self.status is BookieStatus.OK or self.status.is_denial

    async def fetch(self) -> None:
        """Ask for the next page."""
        assert self._next is not None, "there is one"
        loop, first = asyncio.get_running_loop(), self._next
        began, page = loop.time(), await self._ask(first)
        if fault := self._fault(first, page, at_once=loop.time() - began < AT_ONCE_S):
            self._refuse(fault)
            page = ListedEntries(BookieStatus.IO_ERROR, [])
        self.status, self._next = page.status, page.next_entry
        self._ranges += [(a, min(b, self._end)) for a, b in page.ranges if a <= self._end]
        if self._next is not None and self._next > self._end:
            self._next = None

    def _fault(self, first: EntryId, page: ListedEntries, *, at_once: bool) -> str:
        """What is wrong with a page; "" if nothing is."""
        reaches = max([page.next_entry or 0, *(last for _, last in page.ranges)])
        if reaches > self._end + ABSURD:
            return f"it lists entries up to {reaches}, which cannot be"
        if page.next_entry is not None and page.next_entry <= first + SHORT_PAGE_ENTRIES:
            self._short += at_once
            self._slow += not at_once
            if self._short > SHORT_PAGES_MAX or self._slow > SLOW_PAGES_MAX:
                return "it lists hardly anything in each of many answers"
        return ""

    def goes_beyond(self, entry_id: int) -> bool:
        """Whether it is known to hold entries from there on that were not taken yet."""
        return bool(self._ranges) and self._ranges[-1][1] >= entry_id

    async def take(self, end: int | None) -> list[tuple[int, int]]:
        """Ranges below ``end``, cut there, that were not taken yet. None: all of what is known."""
        while self._next is not None and end is not None and self._next < end:
            await self.fetch()
        taken: list[tuple[int, int]] = []
        while self._ranges and (end is None or self._ranges[0][0] < end):
            first, last = self._ranges.popleft()
            if end is not None and last >= end:
                self._ranges.appendleft((EntryId(end), last))
                last = EntryId(end - 1)
            taken.append((first, last))
        return taken


async def fetch_to_same_end(held: Sequence[HeldEntries], start: int) -> int | None:
    """Have everybody say what it holds from ``start`` on, a page at least; up to where all said
    it, left out, or as far as is looked at in one turn. None: to the end."""
    behind = [each for each in held if each.known_until is not None and each.known_until <= start]
    await asyncio.gather(*(each.fetch() for each in behind))
    end = min((each.known_until for each in held if each.known_until is not None), default=None)
    turn_ends = start + STRETCH_ENTRIES_MAX
    if end is None and not any(each.goes_beyond(turn_ends) for each in held):
        return None
    return turn_ends if end is None else min(end, turn_ends)
