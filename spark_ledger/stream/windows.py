"""Ranges in groups and windows that are fetched together; entries in stream order. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from spark_ledger.limits.entries import READ_CHUNK_BYTES_TARGET, READ_REQUEST_BYTES_MAX
from spark_ledger.limits.stream import READ_WINDOW_BYTES_MAX, READ_WINDOW_BYTES_MIN
from spark_ledger.stream.model import SegmentRange
from spark_ledger.stream.packs.places import PackedRange
from spark_ledger.stream.row_filter import RowFilter
from spark_ledger.types import Entry, EntryId, LedgerId

T = TypeVar("T")
Ranges: TypeAlias = AsyncIterator[SegmentRange] | Iterable[SegmentRange]
"""Ranges in stream order; those that are still to be looked up come as an iterator."""

Chunk: TypeAlias = Sequence[tuple[SegmentRange | PackedRange, Entry]]
"""Entries, each with the range it belongs to."""

GROUP_BYTES_MAX: Final = READ_REQUEST_BYTES_MAX
"""Neighbouring segments are joined up to the size that a bookie sends for one request."""

WINDOW_GROUPS_MAX: Final = 8192
"""Ranges of a window, for commits of a few rows: their entries cost some 1 KB of memory each."""


async def group_neighbours(
    ranges: Ranges, where: RowFilter | None = None
) -> AsyncIterator[list[SegmentRange]]:
    """Ranges in groups: the entries of a group follow one another in one ledger. Those that can
    have no row that is wanted are left out (rule T29)."""
    group: list[SegmentRange] = []
    size_bytes = 0
    async for part in _iterate(ranges):
        if where is not None and not where.may_match(part.segment):
            continue
        if group and (
            part.segment.ledger_id != group[-1].segment.ledger_id
            or part.first_entry != group[-1].last_entry + 1
            or size_bytes >= GROUP_BYTES_MAX
        ):
            yield group
            group, size_bytes = [], 0
        group.append(part)
        size_bytes += part.segment.size_bytes
    if group:
        yield group


async def windows(
    groups: AsyncIterator[list[SegmentRange]],
) -> AsyncIterator[list[list[SegmentRange]]]:
    """Groups that are fetched together; one that is larger than a window is alone.

    The first window is small, so that the first rows come soon, and each has twice the bytes of the
    one before.
    """
    window: list[list[SegmentRange]] = []
    size, room_bytes, room_groups = READ_WINDOW_BYTES_MIN, READ_WINDOW_BYTES_MIN, WINDOW_GROUPS_MAX
    async for group in groups:
        size_bytes = sum([part.segment.size_bytes for part in group])
        if window and (size_bytes > room_bytes or room_groups == 0):
            yield window
            size = min(2 * size, READ_WINDOW_BYTES_MAX)
            window, room_bytes, room_groups = [], size, WINDOW_GROUPS_MAX
        window.append(group)
        room_bytes -= size_bytes
        room_groups -= 1
    if window:
        yield window


def runs_of(window: Iterable[list[SegmentRange]]) -> list[list[SegmentRange]]:
    """The ranges of a window by ledger, in the order of their entries, cut where entries that
    nobody committed lie between."""
    ledgers: dict[LedgerId, list[SegmentRange]] = {}
    for group in window:
        ledgers.setdefault(group[0].segment.ledger_id, []).extend(group)
    runs: list[list[SegmentRange]] = []
    for parts in ledgers.values():
        parts.sort(key=lambda part: part.first_entry)
        following = None
        for part in parts:
            if part.first_entry != following:
                runs.append([])
            runs[-1].append(part)
            following = part.last_entry + 1
    return runs


def in_stream_order(
    window: Iterable[list[SegmentRange]], fetched: Mapping[tuple[LedgerId, EntryId], Entry]
) -> Sequence[Chunk]:
    """The entries of a window with their ranges, in lists of about four MiB."""
    chunks: list[list[tuple[SegmentRange | PackedRange, Entry]]] = []
    room_bytes = 0
    for group in window:
        ledger_id = group[0].segment.ledger_id
        for part in group:
            for entry_id in range(part.first_entry, part.last_entry + 1):
                entry = fetched[ledger_id, EntryId(entry_id)]
                if room_bytes <= 0:
                    chunks.append([])
                    room_bytes = READ_CHUNK_BYTES_TARGET
                chunks[-1].append((part, entry))
                room_bytes -= len(entry.payload)
    return chunks


async def _iterate(items: AsyncIterator[T] | Iterable[T]) -> AsyncIterator[T]:
    if isinstance(items, Iterable):
        for item in items:
            yield item
    else:
        async for item in items:
            yield item
