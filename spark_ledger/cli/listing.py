"""What several bookies hold of a ledger, side by side: a stretch of entries at a time.

A bookie lists a page at a time, and pages of two bookies end at different entries. So no more is
in memory than a page of each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from spark_ledger.transport.base import ListedEntries
from spark_ledger.types import BookieStatus, EntryId

Ask = Callable[[EntryId], Awaitable[ListedEntries]]
"""Asks a bookie for the page from an entry on, again while it is busy."""


class HeldEntries:
    """What one bookie holds, from entry 0 on; ``take`` goes forward."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
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
        page = await self._ask(self._next)
        self.status, self._next = page.status, page.next_entry
        self._ranges.extend(page.ranges)

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
    it, left out. None: to the end."""
    behind = [each for each in held if each.known_until is not None and each.known_until <= start]
    await asyncio.gather(*(each.fetch() for each in behind))
    return min((each.known_until for each in held if each.known_until is not None), default=None)
