"""Reads the commits of a stream: by number, range, segment or time. Keeps what it has read.

A commit never changes, so what was read once stays true (rule T5). Commits are found by number,
never by listing: their segment numbers and times ascend, so a search needs a few gets. Many at
once are taken from the summaries of their buckets (``summary_store``), and those that a summary
lacks from their own nodes (rule T6).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from spark_ledger.errors import CorruptionError, DataLossError, LedgerError, NotFoundError
from spark_ledger.stream.commit.summary_store import EXTEND_TIMEOUT_S, SummaryStore
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.codec import SegmentListPointer
from spark_ledger.stream.ledgers import Ledgers
from spark_ledger.stream.model import Commit, Head, Segment
from spark_ledger.stream.nodes import (
    COMMITS_PER_BUCKET,
    COMMITS_PER_SUMMARY_STEP,
    StreamNodes,
    bucket_of,
)
from spark_ledger.types import EntryId

CACHE_WEIGHT_MAX: Final = 1 << 20
"""Bounds the cache to about 50 MB: 60,000 small commits, or commits with a million entries."""

_COMMIT_WEIGHT: Final = 16
"""What a commit weighs besides its entries, which weigh 1 each."""

GETS_IN_FLIGHT_MAX: Final = 64
"""Parallel metadata reads: enough to hide the round trip, few enough to be polite."""

_TASKS_MAX: Final = 1024
"""Commits that ``range`` asks for at a time; of these, ``GETS_IN_FLIGHT_MAX`` are in flight."""

_WINDOW_FIRST: Final = 16
_WINDOW_MAX: Final = 1024
"""A read with a limit fetches this many commits first, then twice as many each time."""

logger = logging.getLogger(__name__)


class StoredCommit(NamedTuple):
    """A commit with the pointer that its node has if the segment list is kept elsewhere."""

    commit: Commit
    pointer: SegmentListPointer | None


class CommitLog:
    """The commits of one stream. Bound to one event loop."""

    def __init__(self, ledgers: Ledgers, nodes: StreamNodes, stream_id: str) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self._cache: OrderedDict[int, StoredCommit] = OrderedDict()
        self._cache_weight = 0
        self._gets = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)
        self._summary_store = SummaryStore(nodes, stream_id)

    def remember(self, commit: Commit, pointer: SegmentListPointer | None = None) -> None:
        """Put a commit that is known to be stored, and its node's pointer, into the cache."""
        if commit.number in self._cache:
            return
        if not commit.applied:
            commit = replace(commit, applied=True)
        self._cache[commit.number] = StoredCommit(commit, pointer)
        self._cache_weight += _weight(commit)
        while self._cache_weight > CACHE_WEIGHT_MAX and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._cache_weight -= _weight(oldest.commit)

    async def get(self, number: int) -> Commit:
        """A commit by number.

        Raises NoSuchStreamError if the stream was deleted, DataLossError if the commit was
        truncated, NotFoundError if it is not made yet, CorruptionError if its node is damaged.
        """
        return (await self._stored(number)).commit

    async def _stored(self, number: int) -> StoredCommit:
        known = self._cache.get(number)
        if known is not None:
            self._cache.move_to_end(number)
            return known
        async with self._gets:
            try:
                commit, pointer = await self._nodes.commit(number)
            except NotFoundError as error:
                raise await self._why_missing(number) from error
            return await self._complete(commit, pointer)

    async def _complete(self, commit: Commit, pointer: SegmentListPointer | None) -> StoredCommit:
        if pointer is not None:
            commit = replace(commit, segments=await self._segment_list(commit, pointer))
        self.remember(commit, pointer)
        return StoredCommit(commit, pointer)

    async def range(self, first: int, end: int) -> list[Commit]:
        """Commits ``first`` .. ``end - 1``, in order; those that are not cached read in parallel.

        Raises as ``get``, and CorruptionError if their segments are not numbered without gaps.
        """
        found: dict[int, StoredCommit] = {}
        missing: defaultdict[int, list[int]] = defaultdict(list)
        for number in range(first, end):
            known = self._cache.get(number)
            if known is not None:
                found[number] = known
            else:
                missing[bucket_of(number)].append(number)
        await run_all(
            self._take_from_summary(bucket, numbers, found) for bucket, numbers in missing.items()
        )
        rest = [number for numbers in missing.values() for number in numbers if number not in found]
        for start in range(0, len(rest), _TASKS_MAX):
            window = rest[start : start + _TASKS_MAX]
            for stored in await run_all(self._stored(number) for number in window):
                found[stored.commit.number] = stored
        if len(rest) >= COMMITS_PER_SUMMARY_STEP:
            await run_all(self._extend_summary(bucket, found) for bucket in missing)
        commits = [found[number].commit for number in range(first, end)]
        for before, after in pairwise(commits):
            if before.end_segment != after.first_segment:
                raise self._gap(before, before.end_segment)
        return commits

    async def _take_from_summary(
        self, bucket: int, numbers: list[int], found: dict[int, StoredCommit]
    ) -> None:
        """Add to ``found`` those commits that the summary of their bucket has (rule T6)."""
        async with self._gets:
            summary = await self._summary_store.find(bucket, numbers)
        if summary is None:
            return
        for number in numbers:
            node = summary.node(number)
            if not node:
                continue
            try:
                commit, pointer = codec.decode_commit(node, number, self._nodes.commit_path(number))
            except CorruptionError:
                continue  # its own node decides, and if that is damaged too the error names it
            if pointer is None:
                self.remember(commit)
                found[number] = StoredCommit(commit, None)

    async def _extend_summary(self, bucket: int, read: Mapping[int, StoredCommit]) -> None:
        """Extend the summary of a bucket by the commits that are known, in whole steps."""
        summary = self._summary_store.kept(bucket)
        if summary is None:
            return
        more: list[bytes] = []
        for number in range(summary.end, summary.first + COMMITS_PER_BUCKET):
            known = read.get(number) or self._cache.get(number)
            if known is None:
                break
            more.append(codec.encode_commit(*known))
        whole_steps = len(more) - len(more) % COMMITS_PER_SUMMARY_STEP
        if whole_steps:
            await self._summary_store.extend(bucket, summary, more[:whole_steps])

    async def summarize(self, end: int) -> None:
        """Extend the summary up to commit ``end - 1``, which was made just now. Best effort: if
        it fails, whoever reads the commits extends it."""
        bucket = bucket_of(end - 1)
        try:
            async with asyncio.timeout(EXTEND_TIMEOUT_S):
                summary = await self._summary_store.load(bucket)
                if summary is not None:
                    numbers = range(summary.end, end)
                    stored = await run_all(self._stored(number) for number in numbers)
                    await self._extend_summary(bucket, dict(zip(numbers, stored, strict=True)))
        except (LedgerError, TimeoutError) as error:
            logger.debug(
                "stream %r: the summary of bucket %d is left to readers: %s",
                self._nodes.name,
                bucket,
                error,
            )

    async def at_segment(self, head: Head, segment: int) -> Commit:
        """The commit that holds a segment, which must be below ``head.next_segment``.

        Raises DataLossError if the segment was truncated, CorruptionError if no commit holds it.
        """
        assert 0 <= segment < head.next_segment, (segment, head.next_segment)
        number = await self._last_at_or_below(
            (head.earliest_commit, head.next_commit),
            segment,
            lambda commit: commit.first_segment,
            head.next_segment,
        )
        if number is None:
            raise DataLossError(
                f"stream {self._nodes.name!r}: segment {segment} was truncated; the earliest "
                f"position is {tuple(head.earliest)}"
            )
        commit = await self.get(number)
        if segment >= commit.end_segment:
            raise self._gap(commit, segment)
        return commit

    async def first_since(self, head: Head, time_ms: int) -> Commit | None:
        """The first commit behind the last one that was made before ``time_ms``, or None.

        Times ascend between the commits at which they were set back (rule T10). The newest of these
        parts that begins before the time has the last such commit.
        """
        following = head.earliest_commit
        ends = [n for n in head.time_resets if n > head.earliest_commit] + [head.next_commit]
        for low, high in reversed(list(pairwise([head.earliest_commit, *ends]))):
            last_ms = head.time_ms
            if high != head.next_commit:
                last_ms = (await self.get(high - 1)).time_ms
            number = await self._last_at_or_below(
                (low, high), time_ms - 1, lambda commit: commit.time_ms, last_ms + 1
            )
            if number is not None:
                following = number + 1
                break
        assert head.earliest_commit <= following <= head.next_commit, (following, head)
        return await self.get(following) if following < head.next_commit else None

    async def between(
        self,
        head: Head,
        first_segment: int,
        end_segment: int,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> list[Commit]:
        """The commits that hold segments ``first_segment`` .. ``end_segment - 1``, in order.

        Commits without segments are left out. With a limit the list ends with the commit in which
        the rows (or bytes), counted from the start of the first commit, reach it; commits are then
        read in growing windows, so that a reader far behind does not fetch the whole backlog.
        Raises as ``at_segment``.
        """
        end_segment = min(end_segment, head.next_segment)
        if first_segment >= end_segment:
            return []
        first = await self.at_segment(head, first_segment)
        if max_rows is None and max_bytes is None:
            end = head.next_commit
            if end_segment < head.next_segment:
                end = (await self.at_segment(head, end_segment - 1)).number + 1
            commits = await self.range(first.number, end)
            if commits[-1].end_segment < end_segment:
                raise self._gap(commits[-1], end_segment - 1)
        else:
            limits = _Limits(max_rows, max_bytes)
            commits = await self._commits_until(limits, first, end_segment, head.next_commit)
        return [commit for commit in commits if commit.segments]

    def _gap(self, commit: Commit, segment: int) -> CorruptionError:
        return CorruptionError(
            f"stream {self._nodes.name!r}: no commit holds segment {segment}; commit "
            f"{commit.number} ends before {commit.end_segment}"
        )

    async def _commits_until(
        self, limits: _Limits, first: Commit, end_segment: int, next_commit: int
    ) -> list[Commit]:
        """The commits from ``first`` on up to a segment, or until a limit is reached."""
        commits, window = [first], _WINDOW_FIRST
        while commits[-1].end_segment < end_segment and not limits.reached(first, commits[-1]):
            following = commits[-1].number + 1
            if following >= next_commit:
                raise self._gap(commits[-1], end_segment - 1)
            for commit in await self.range(following, min(following + window, next_commit)):
                if commit.first_segment >= end_segment or limits.reached(first, commits[-1]):
                    return commits
                commits.append(commit)
            window = min(2 * window, _WINDOW_MAX)
        return commits

    async def _last_at_or_below(
        self, among: tuple[int, int], target: int, key: Callable[[Commit], int], key_at_end: int
    ) -> int | None:
        """The last commit from one number up to another whose key is at most ``target``, or None.
        Keys ascend there.

        It alternates between a guess by proportion, because keys often grow evenly, and halving,
        so that an uneven stream costs at most twice a binary search.
        """
        low, high = among
        if low >= high:
            return None
        low_key = key(await self.get(low))
        if low_key > target:
            return None
        high_key, guesses = key_at_end, True
        while high - low > 1:
            assert low_key <= target < high_key or high == among[1], "low is a lower bound"
            middle = (low + high) // 2
            if guesses and high_key > low_key:
                share = (target - low_key) * (high - low) // (high_key - low_key)
                middle = min(max(low + share, low + 1), high - 1)
            guesses = not guesses
            found = key(await self.get(middle))
            if found <= target:
                low, low_key = middle, found
            else:
                high, high_key = middle, found
        return low

    async def _segment_list(
        self, commit: Commit, pointer: SegmentListPointer
    ) -> tuple[Segment, ...]:
        """Fetch a segment list that was too long for its node; it is confirmed (rule T9)."""
        reader = await self._ledgers.open_unconfirmed(pointer.ledger_id)
        parts: list[bytes] = []
        async for entries in reader.read_batches(
            EntryId(0), EntryId(pointer.entries - 1), unconfirmed=True
        ):
            parts += [entry.payload for entry in entries]
        path = self._nodes.commit_path(commit.number)
        return codec.decode_segment_list(b"".join(parts), commit.first_segment, path)

    async def _why_missing(self, number: int) -> Exception:
        """The error that says why a commit's node is not there."""
        name = self._nodes.name
        config = await self._nodes.config()
        if config.value.deleted:
            return self._nodes.no_such_stream()
        head = (await self._nodes.head()).value
        if number < head.earliest_commit:
            return DataLossError(
                f"stream {name!r}: commit {number} was truncated; the earliest is "
                f"{head.earliest_commit}"
            )
        if number >= head.next_commit:
            return NotFoundError(f"stream {name!r}: commit {number} is not made yet")
        return CorruptionError(
            f"stream {name!r}: metadata node {self._nodes.commit_path(number)} is missing, "
            f"although the stream has commits up to {head.next_commit - 1}"
        )


def _weight(commit: Commit) -> int:
    return _COMMIT_WEIGHT + sum([segment.entries for segment in commit.segments])


class _Limits(NamedTuple):
    """When enough commits were read. The totals in each commit tell it without adding up."""

    max_rows: int | None
    max_bytes: int | None

    def reached(self, first: Commit, last: Commit) -> bool:
        rows = last.rows_before + last.rows - first.rows_before
        size_bytes = last.bytes_before + last.size_bytes - first.bytes_before
        return (self.max_rows is not None and rows >= self.max_rows) or (
            self.max_bytes is not None and size_bytes >= self.max_bytes
        )
