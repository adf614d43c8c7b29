"""What a bookie says that it holds of a range of entries, asked for a page at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from spark_ledger.limits.client import BUSY_PAUSE_S, BUSY_PAUSE_S_MAX
from spark_ledger.repair.plan import LaneCopy, missing, within
from spark_ledger.transport.base import Transport
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId


class HeldPart(NamedTuple):
    """The answer for the entries ``first..last``; what follows is another part.

    ``ranges``: None if the bookie does not say. Nothing follows then.
    """

    first: int
    last: int
    ranges: Sequence[tuple[EntryId, EntryId]] | None
    timed_out: bool = False
    """Whether it does not say because it did not answer in time."""
    is_away: bool = False
    """Whether nobody answers for it."""

    def missing(self, lanes: Sequence[LaneCopy]) -> list[LaneCopy]:
        """What the bookie says that it lacks of lanes, in this part."""
        assert self.ranges is not None, "silence says nothing"
        parts = [within(lane, self.first, self.last) for lane in lanes]
        return [each for part in parts for each in missing(part, self.ranges)]


class BusyPauses:
    """Pauses before a busy bookie is asked again, twice as long each time, up to a sum."""

    def __init__(self, wait_s: float) -> None:
        self._left_s = wait_s
        self._pause_s = BUSY_PAUSE_S

    async def pause(self) -> bool:
        """Wait; false, at once, if it was waited long enough."""
        if self._left_s <= 0:
            return False
        self._left_s -= self._pause_s
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, BUSY_PAUSE_S_MAX)
        return True


async def held_parts(
    transport: Transport,
    bookie_id: BookieId,
    ledger_id: LedgerId,
    first: int,
    last: int,
    *,
    timeout_s: float,
) -> AsyncIterator[HeldPart]:
    """All parts of a range, ascending. A bookie that knows no such ledger holds nothing of it. One
    that is busy is asked again, for ``timeout_s`` in sum: that says nothing of its copies."""
    busy = BusyPauses(timeout_s)
    while first <= last:
        page = await transport.list_entries(
            bookie_id, ledger_id, EntryId(first), timeout_s=timeout_s
        )
        if page.status is BookieStatus.TOO_MANY_REQUESTS and await busy.pause():
            continue
        if page.status is not BookieStatus.OK:
            timed_out = page.status is BookieStatus.TIMEOUT
            is_away = page.status is BookieStatus.UNAVAILABLE
            ranges = () if page.status.is_denial else None
            yield HeldPart(first, last, ranges, timed_out, is_away)
            return
        end = last if page.next_entry is None else min(last, page.next_entry - 1)
        yield HeldPart(first, end, page.ranges)
        first = end + 1
