"""Packs of a stream: which commits they hold, and which commits are worth one. Pure.

A pack is a ledger that holds the rows of consecutive commits once more, in stream order, as few
large entries. Commits stay as they are and still name the former ledgers (rule T5): a pack says
where the same rows are as well (rule T23).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.limits.entries import ENTRY_PAYLOAD_BYTES_MAX
from spark_ledger.limits.stream import (
    PACK_COMMITS_MAX,
    PACK_GAIN_MIN,
    PACK_SEGMENTS_MAX,
)
from spark_ledger.stream.model import ENTRY_BYTES_MIN, Commit, SegmentRange
from spark_ledger.types import LedgerId


class Pack(NamedTuple):
    """The rows of commits ``first`` .. ``end - 1``, in entries 0 .. ``entries - 1`` of a ledger.

    The entry behind them is the pack's index. ``is_freed``: no former ledger waits to be deleted
    that only these commits named (rule T25).
    """

    first: int
    end: int
    first_segment: int
    end_segment: int
    ledger_id: LedgerId
    entries: int
    rows: int
    size_bytes: int
    is_freed: bool = False


@dataclass(frozen=True, slots=True)
class Packs:
    """The packs of a stream, in order of their commits. No two hold the same commit."""

    packs: tuple[Pack, ...] = ()
    made: int = 0
    """How many packs the stream was ever given."""
    waiting: tuple[tuple[LedgerId, int], ...] = ()
    """The ledgers of those that are not freed, each with how many there were with it."""

    def of_segment(self, segment: int) -> Pack | None:
        """The pack that holds a segment's rows, or None."""
        index = bisect_right(self.packs, segment, key=_first_segment) - 1
        if index < 0 or segment >= self.packs[index].end_segment:
            return None
        return self.packs[index]

    def numbers_outside(self, first: int, end: int) -> list[int]:
        """Those of commits ``first`` .. ``end - 1`` that are in no pack, ascending."""
        found: list[int] = []
        for pack in self.packs:
            found += range(first, min(pack.first, end))
            first = max(first, pack.end)
        return [*found, *range(first, end)]

    def overlaps(self, first: int, end: int) -> bool:
        """Whether a pack holds one of commits ``first`` .. ``end - 1``."""
        return any(pack.first < end and first < pack.end for pack in self.packs)

    def with_pack(self, pack: Pack) -> Packs:
        """These packs and one more, of commits that none of them holds."""
        assert not self.overlaps(pack.first, pack.end), "a commit is in one pack (rule T24)"
        made = self.made + 1
        waiting = (*self.waiting, (pack.ledger_id, made))
        return Packs(tuple(sorted((*self.packs, pack))), made, waiting)

    def of_first(self, made: int) -> Packs:
        """Those of the packs that were among the first so many, and those that are freed."""
        later = {ledger_id for ledger_id, number in self.waiting if number > made}
        return Packs(tuple(pack for pack in self.packs if pack.ledger_id not in later))

    def freed(self, pack: Pack) -> Packs:
        """The same packs; of one of them no former ledger is left."""
        packs = tuple(p._replace(is_freed=True) if p == pack else p for p in self.packs)
        return Packs(packs, self.made, self._waiting_but({pack.ledger_id}))

    def without(self, gone: Iterable[Pack]) -> Packs:
        """The packs but some."""
        left = {pack.ledger_id for pack in gone}
        packs = tuple(pack for pack in self.packs if pack.ledger_id not in left)
        return Packs(packs, self.made, self._waiting_but(left))

    def _waiting_but(self, gone: Collection[LedgerId]) -> tuple[tuple[LedgerId, int], ...]:
        return tuple(each for each in self.waiting if each[0] not in gone)

    def sections(
        self, parts: Iterable[SegmentRange]
    ) -> Iterator[tuple[Pack | None, list[SegmentRange]]]:
        """Ranges in stream order, cut where a pack begins or ends."""
        section: list[SegmentRange] = []
        pack: Pack | None = None
        end = -1
        """The pack, or what lies between two, holds segments up to this one."""
        for part in parts:
            number = part.segment.number
            if number >= end:
                if section:
                    yield pack, section
                section, pack = [], self.of_segment(number)
                end = self._end_of(number, pack)
            section.append(part)
        if section:
            yield pack, section

    def _end_of(self, segment: int, pack: Pack | None) -> int:
        if pack is not None:
            return pack.end_segment
        index = bisect_right(self.packs, segment, key=_first_segment)
        return self.packs[index].first_segment if index < len(self.packs) else 1 << 62


NO_PACKS: Final = Packs()
"""Those of a stream that was never optimized."""


def _first_segment(pack: Pack) -> int:
    return pack.first_segment


class PackIndex:
    """Which rows are where in a pack: those of each entry, and those of each segment."""

    def __init__(
        self, entry_rows: Sequence[int], versions: Sequence[int], segment_rows: Sequence[int]
    ) -> None:
        self.entry_rows = tuple(entry_rows)
        self.versions = tuple(versions)
        self.segment_rows = tuple(segment_rows)
        self.entry_starts = tuple(accumulate(entry_rows, initial=0))
        """The first row of each entry, counted from the start of the pack, and all rows."""
        self.segment_starts = tuple(accumulate(segment_rows, initial=0))

    def check(self, pack: Pack, where: str) -> None:
        """Raises CorruptionError if this is not the index of a pack."""
        facts = (
            len(self.versions) == len(self.entry_rows) == pack.entries,
            len(self.segment_rows) == pack.end_segment - pack.first_segment,
            self.entry_starts[-1] == self.segment_starts[-1] == pack.rows,
            min(self.entry_rows, default=0) > 0 and min(self.segment_rows, default=0) > 0,
        )
        if not all(facts):
            raise CorruptionError(
                f"{where}: the index of the pack in ledger {pack.ledger_id} does not fit the pack"
            )


@dataclass(frozen=True, slots=True)
class Choice:
    """How small commits have to be to be packed, and how large packs become.

    Raises ConfigurationError if a number is out of its bounds.
    """

    entry_bytes: int
    """Arrow bytes of a pack's entry. Commits whose entries are smaller than a sixteenth of it, as
    stored, are small: no others gain by being read together."""
    pack_bytes: int
    """Payload bytes of the commits of one pack, about."""
    entries_min: int
    """Entries of former segments that are worth a ledger of their own."""

    def __post_init__(self) -> None:
        if not ENTRY_BYTES_MIN <= self.entry_bytes <= ENTRY_PAYLOAD_BYTES_MAX // 2:
            raise ConfigurationError(
                f"optimize: entry_bytes {self.entry_bytes}: use {ENTRY_BYTES_MIN} to "
                f"{ENTRY_PAYLOAD_BYTES_MAX // 2}"
            )
        if self.pack_bytes < self.entry_bytes or self.entries_min < 1:
            raise ConfigurationError(
                f"optimize: pack_bytes {self.pack_bytes} must be at least entry_bytes, "
                f"{self.entry_bytes}, and entries_min {self.entries_min} at least 1"
            )

    def is_small(self, commit: Commit) -> bool:
        """Whether reading a commit costs more for its entries than for its bytes."""
        entries = sum(segment.entries for segment in commit.segments)
        return commit.size_bytes * PACK_GAIN_MIN < entries * self.entry_bytes or not entries


class Chooser:
    """Makes lists of consecutive small commits, each for one pack, of commits as they come."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._commits: list[Commit] = []
        self._bytes = self._entries = self._segments = 0

    def add(self, commit: Commit) -> list[Commit] | None:
        """Take the next commit that is in no pack; the list that it ends, if it ends one."""
        ended = None
        follows = not self._commits or self._commits[-1].number + 1 == commit.number
        is_full = (
            self._bytes >= self._choice.pack_bytes
            or self._segments + len(commit.segments) > PACK_SEGMENTS_MAX
            or len(self._commits) >= PACK_COMMITS_MAX
        )
        is_small = self._choice.is_small(commit)
        if not follows or is_full or not is_small:
            ended = self.end()
        if is_small and len(commit.segments) <= PACK_SEGMENTS_MAX:
            self._commits.append(commit)
            self._bytes += commit.size_bytes
            self._segments += len(commit.segments)
            self._entries += sum(segment.entries for segment in commit.segments)
        return ended

    def end(self) -> list[Commit] | None:
        """The last list, if it is worth a pack."""
        commits, entries = self._commits, self._entries
        self._commits, self._bytes, self._entries, self._segments = [], 0, 0, 0
        return commits if entries >= self._choice.entries_min else None


def check_order(packs: Sequence[Pack]) -> str | None:
    """What is wrong with these as the packs of a stream, or None."""
    for pack in packs:
        if not (0 <= pack.first < pack.end and 0 <= pack.first_segment < pack.end_segment):
            return f"pack of commits {pack.first}..{pack.end - 1}"
        if min(pack.ledger_id, pack.entries - 1, pack.rows - 1, pack.size_bytes - 1) < 0:
            return f"pack of commits {pack.first}..{pack.end - 1} has a bad number"
    for one, other in pairwise(packs):
        if one.end > other.first or one.end_segment > other.first_segment:
            return f"the packs of commits {one.first} and {other.first} overlap"
    return None
