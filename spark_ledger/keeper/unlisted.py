"""Ledgers that no index lists: which are named, and since when others are noted. Pure (rule K9)."""

from __future__ import annotations

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

    def add(self, ledger_ids: Iterable[LedgerId]) -> None:
        for each in ledger_ids:
            number, low = divmod(each, IDS_PER_PAGE)
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = bytearray(IDS_PER_PAGE // 8)
            page[low >> 3] |= 1 << (low & 7)

    def __contains__(self, ledger_id: LedgerId) -> bool:
        number, low = divmod(ledger_id, IDS_PER_PAGE)
        page = self._pages.get(number)
        return page is not None and bool(page[low >> 3] & (1 << (low & 7)))


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
