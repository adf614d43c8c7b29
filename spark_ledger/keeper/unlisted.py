"""Ledgers that no index lists: which are named, and since when others are noted. Pure (rule K9)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Final

from spark_ledger.types import LedgerId

IDS_PER_PAGE: Final = 10_000

Looks = tuple[tuple[float, tuple[int, ...]], ...]
"""When, in seconds of work, which ledgers of a page were first found: the low digits of their ids.
Ascending."""


class NamedIds:
    """A set of ledger ids, a bit each, in pages of ten thousand: a million ids are 125 KB."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self.changed: set[int] = set()
        """Pages that were added to since somebody emptied this."""

    def add(self, ledger_ids: Iterable[LedgerId]) -> None:
        for each in ledger_ids:
            number, low = divmod(each, IDS_PER_PAGE)
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = bytearray(IDS_PER_PAGE // 8)
            page[low >> 3] |= 1 << (low & 7)
            self.changed.add(number)

    def __contains__(self, ledger_id: LedgerId) -> bool:
        number, low = divmod(ledger_id, IDS_PER_PAGE)
        page = self._pages.get(number)
        return page is not None and bool(page[low >> 3] & (1 << (low & 7)))

    def numbers(self) -> list[int]:
        """The pages that have an id."""
        return sorted(self._pages)

    def packed(self, number: int) -> bytes:
        """One page, in as few bytes as its ids take."""
        return zlib.compress(self._pages[number])

    def unpack(self, number: int, data: bytes) -> bool:
        """Have a page be as ``packed`` gave it; False if these bytes are no page."""
        unpacker = zlib.decompressobj()
        try:
            page = bytearray(unpacker.decompress(data, IDS_PER_PAGE // 8))
        except zlib.error:
            return False
        if not unpacker.eof or len(page) != IDS_PER_PAGE // 8:
            return False
        self._pages[number] = page
        return True


class Noted:
    """Since when the ledgers of one page are noted."""

    def __init__(self, number: int, looks: Looks, now_s: float) -> None:
        """``now_s``: seconds of work. A note from a time to come begins the time again."""
        self._base = number * IDS_PER_PAGE
        self._now_s = now_s
        self._since: dict[LedgerId, float] = {}
        for at_s, lows in looks:
            for low in lows:
                self._since[LedgerId(self._base + low)] = min(at_s, now_s)

    def since_s(self, ledger_id: LedgerId) -> float | None:
        """For how long a ledger is noted; None if it is not."""
        at_s = self._since.get(ledger_id)
        return None if at_s is None else self._now_s - at_s

    def after(self, found: Iterable[LedgerId]) -> Looks:
        """What is to be written down: the ledgers that were found now, and no others."""
        by_time: dict[float, list[int]] = {}
        for each in sorted(found):
            by_time.setdefault(self._since.get(each, self._now_s), []).append(each - self._base)
        return tuple((at_s, tuple(lows)) for at_s, lows in sorted(by_time.items()))


def by_stream(ledgers: Mapping[LedgerId, str], at_once: int) -> list[tuple[str, list[LedgerId]]]:
    """Ledgers with the ids of their streams, in groups of one stream and so many."""
    groups: dict[str, list[LedgerId]] = {}
    for ledger_id in sorted(ledgers):
        groups.setdefault(ledgers[ledger_id], []).append(ledger_id)
    return [
        (stream_id, group[start : start + at_once])
        for stream_id, group in groups.items()
        for start in range(0, len(group), at_once)
    ]
