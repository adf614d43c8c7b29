"""CommitCache: consecutive commits of a stream that a source has fetched and not passed yet."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from spark_ledger.client.caches import watch_cache
from spark_ledger.limits.connector import COMMITS_CACHED_BYTES_MAX
from spark_ledger.stream.model import Commit, Head, Segment
from spark_ledger.types import Dlsn

if TYPE_CHECKING:
    from spark_ledger.stream.blocking import Stream


class CommitCache:
    """Consecutive commits of a stream, fetched once."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._commits: list[Commit] = []
        self._bytes = 0
        watch_cache("plan", self, lambda each: each.memory_bytes, COMMITS_CACHED_BYTES_MAX)

    def between(self, first_segment: int, end_segment: int) -> list[Commit]:
        """The commits that hold segments ``first_segment`` .. ``end_segment - 1``, in order."""
        if first_segment >= end_segment:
            return []
        known = self._commits
        if known and not known[0].first_segment <= first_segment <= known[-1].end_segment:
            self._drop(len(known))
        if not known:
            self._read(first_segment, end_segment)
        elif known[-1].end_segment < end_segment:
            self._read(known[-1].end_segment, end_segment)
        if self._bytes > COMMITS_CACHED_BYTES_MAX:
            known = list(known)  # the result is held by the caller alone
            self._drop_oldest()
        low = bisect_left(known, first_segment + 1, key=lambda commit: commit.end_segment)
        high = bisect_left(known, end_segment, key=lambda commit: commit.first_segment)
        return known[low:high]

    @property
    def memory_bytes(self) -> int:
        """What the commits take, about."""
        return self._bytes

    def _read(self, first_segment: int, end_segment: int) -> None:
        more = self._stream.commits_between(first_segment, end_segment)
        self._commits += more
        self._bytes += sum(commit.memory_bytes for commit in more)

    def _drop_oldest(self) -> None:
        """Until the rest is within the bound; the newest stays."""
        over, count = self._bytes - COMMITS_CACHED_BYTES_MAX, 0
        while over > 0 and count < len(self._commits) - 1:
            over -= self._commits[count].memory_bytes
            count += 1
        self._drop(count)

    def _drop(self, count: int) -> None:
        self._bytes -= sum(commit.memory_bytes for commit in self._commits[:count])
        del self._commits[:count]

    def segments(self, first_segment: int, end_segment: int) -> list[Segment]:
        """Segments ``first_segment`` .. ``end_segment - 1``."""
        return [
            segment
            for commit in self.between(first_segment, end_segment)
            for segment in commit.segments
            if first_segment <= segment.number < end_segment
        ]

    def canonical(self, position: Dlsn, head: Head) -> Dlsn:
        """The one spelling of a position: the end of an entry is the start of the next entry, the
        end of a segment that of the next segment."""
        if position.segment >= head.next_segment or position < head.earliest:
            return position
        (segment,) = self.segments(position.segment, position.segment + 1)
        entry, slot = position.entry, position.slot
        if entry < segment.entries and slot >= segment.entry_rows[entry]:
            entry, slot = entry + 1, 0
        if entry >= segment.entries:
            return Dlsn(position.segment + 1)
        return Dlsn(position.segment, entry, slot)

    def known(self, segment: int) -> Commit | None:
        """The commit that holds a segment, if it was fetched and is kept."""
        place = bisect_left(self._commits, segment + 1, key=lambda commit: commit.end_segment)
        found = self._commits[place] if place < len(self._commits) else None
        return found if found is not None and found.first_segment <= segment else None

    def forget_before(self, segment: int) -> None:
        """Drop commits that end at or before a segment."""
        keep = bisect_left(self._commits, segment + 1, key=lambda commit: commit.end_segment)
        self._drop(keep)
