"""Reads the commits of a stream: by number, range, segment or time. Keeps what it has read.

A commit never changes, so what was read once stays true (rule T5). Commits are found by number,
never by listing: their segment numbers and times ascend, so a search needs few reads. The pages of
manifests narrow it down to a hundred commits or so (``ManifestStore.narrow``).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from spark_ledger.client.caches import watch_cache
from spark_ledger.errors import CorruptionError, DataLossError, NoSuchStreamError, NotFoundError
from spark_ledger.limits.stream import COMMITS_KEPT_BYTES_MAX
from spark_ledger.stream.commit.commit_nodes import CommitNodes
from spark_ledger.stream.commit.history import History
from spark_ledger.stream.concurrency import prefetch, run_all
from spark_ledger.stream.format import codec
from spark_ledger.stream.format.codec import SegmentListPointer
from spark_ledger.stream.ledgers import Ledgers
from spark_ledger.stream.manifest.store import ManifestStore
from spark_ledger.stream.manifest.tree import ManifestRoot, PagePointer
from spark_ledger.stream.model import Commit, CommitMark, Head, Segment, SinkRecord
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.types import Dlsn, EntryId, LedgerId

_DECODED_AT_ONCE_MAX: Final = COMMITS_PER_BUCKET
"""Commits that ``range`` reads and decodes at a time, those of one bucket: the loop is free again
after some 10 ms."""

_LISTS_AT_ONCE_MAX: Final = 8
"""Long segment lists that are read at once: each is 200 KiB to some MB."""

_WINDOW_FIRST: Final = 16
_WINDOW_MAX: Final = 1024
"""A read with a limit fetches this many commits first, then twice as many each time."""


class StoredCommit(NamedTuple):
    """A commit with the pointer that its node has if the segment list is kept elsewhere."""

    commit: Commit
    pointer: SegmentListPointer | None


class StoredNode(NamedTuple):
    """A commit with its node."""

    commit: Commit
    node: bytes


class NamedLedgers(NamedTuple):
    """The ledgers that a commit names: those of its rows, and that of its segment list."""

    rows: set[LedgerId]
    segment_list: LedgerId | None


class CommitLog:
    """The commits of one stream. Bound to one event loop."""

    def __init__(self, ledgers: Ledgers, nodes: StreamNodes, stream_id: str) -> None:
        self._ledgers = ledgers
        self._nodes = nodes
        self._cache: OrderedDict[int, StoredCommit] = OrderedDict()
        self._cache_bytes = 0
        self.manifests = ManifestStore(ledgers, nodes, stream_id)
        self._lists = asyncio.Semaphore(_LISTS_AT_ONCE_MAX)
        self.history = History(ledgers, nodes, stream_id, self._forget)
        self._stored_nodes = CommitNodes(nodes, self.manifests, stream_id, self.history.check)
        watch_cache("commits", self, lambda log: log._cache_bytes, COMMITS_KEPT_BYTES_MAX)

    def remember(self, commit: Commit, pointer: SegmentListPointer | None = None) -> None:
        """Put a commit that is known to be stored, and its node's pointer, into the cache."""
        self.history.knows(commit, pointer)
        if commit.number in self._cache:
            return
        if not commit.applied:
            commit = replace(commit, applied=True)
        self._cache[commit.number] = StoredCommit(commit, pointer)
        self._cache_bytes += commit.memory_bytes
        while self._cache_bytes > COMMITS_KEPT_BYTES_MAX and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._cache_bytes -= oldest.commit.memory_bytes

    def _forget(self) -> None:
        self._cache.clear()
        self._cache_bytes = 0
        self.manifests.forget_all()

    @property
    def memory_bytes(self) -> int:
        """What commits and pages of manifests that are kept take, about."""
        return self._cache_bytes + self.manifests.memory_bytes

    async def get(self, number: int) -> Commit:
        """A commit by number. Raises as ``CommitNodes.get``, CorruptionError if it is damaged."""
        await self.history.check()
        known = self._cache.get(number)
        if known is None:
            node = await self._stored_nodes.get(number)
            known = (await self._decode({number: node}))[number]
        else:
            self._cache.move_to_end(number)
        return known.commit

    async def _decode(self, nodes: Mapping[int, bytes]) -> dict[int, StoredCommit]:
        """The commits in nodes, with their segment lists where those are kept elsewhere."""
        found: dict[int, StoredCommit] = {}
        for number, node in nodes.items():
            path = self._nodes.commit_path(number)
            found[number] = StoredCommit(*codec.decode_commit(node, number, path))
        elsewhere = [stored for stored in found.values() if stored.pointer is not None]
        for stored in await run_all(map(self._with_list, elsewhere)):
            found[stored.commit.number] = stored
        for stored in found.values():
            self.remember(*stored)
        return found

    async def _with_list(self, stored: StoredCommit) -> StoredCommit:
        commit, pointer = stored
        assert pointer is not None, "its list is elsewhere"
        async with self._lists:
            segments = await self._segment_list(commit, pointer)
        return StoredCommit(replace(commit, segments=segments), pointer)

    async def range(self, first: int, end: int) -> list[Commit]:
        """Commits ``first`` .. ``end - 1``, in order; those that are not cached read in parallel.

        Raises as ``get``, and CorruptionError if their segments are not numbered without gaps.
        """
        commits: list[Commit] = []
        async with aclosing(prefetch(self._parts(first, end), 1)) as parts:
            async for known, nodes in parts:
                known.update(await self._decode(nodes))
                commits += [known[number].commit for number in sorted(known)]
        for before, after in pairwise(commits):
            if before.end_segment != after.first_segment:
                raise self._gap(before, before.end_segment)
        return commits

    async def _parts(
        self, first: int, end: int
    ) -> AsyncGenerator[tuple[dict[int, StoredCommit], dict[int, bytes]], None]:
        """What is cached of commits ``first`` .. ``end - 1``, and the nodes of the rest: some at a
        time, so that one part is decoded while bookies bring the next."""
        start = first
        while start < end:
            behind = start - start % _DECODED_AT_ONCE_MAX + _DECODED_AT_ONCE_MAX
            numbers = range(start, min(behind, end))
            start = behind
            await self.history.check()
            known = {number: self._cache[number] for number in numbers if number in self._cache}
            missing = [number for number in numbers if number not in known]
            yield known, await self._stored_nodes.get_all(missing)

    async def stored(self, numbers: Sequence[int]) -> dict[int, StoredNode]:
        """Ascending commits with their nodes as they are stored, to be sealed (rule T6). Without
        segments where their list is kept elsewhere. Keeps nothing."""
        await self.history.check()
        kept = {number: self._cache[number] for number in numbers if number in self._cache}
        found = {n: StoredNode(each.commit, codec.encode_commit(*each)) for n, each in kept.items()}
        missing = [number for number in numbers if number not in found]
        for number, node in (await self._stored_nodes.get_all(missing)).items():
            path = self._nodes.commit_path(number)
            found[number] = StoredNode(codec.decode_commit(node, number, path)[0], node)
        return found

    async def marks(self, first: int, end: int) -> list[CommitMark]:
        """Where every hundredth commit between two begins, both excluded: the first of each leaf.

        They are the same before and after the commits are sealed, so what is planned by them stays
        as it is (rule T5). Those of leaves are in the pages above, and no leaf is read.
        """

        async def look(root: ManifestRoot) -> list[CommitMark]:
            pages = await self.manifests.leaves(root, first + 1, end)
            found = [_mark(page.first, page.pointer) for page in pages if page.first > first]
            step = root.leaf_commits
            rest = range(max(root.sealed, first // step * step + step), end, step)
            for number, node in (await self._stored_nodes.get_all(rest)).items():
                path = self._nodes.commit_path(number)
                found.append(_mark(number, codec.decode_commit(node, number, path)[0]))
            return sorted(found)

        await self.manifests.read_root()
        return await self.manifests.search(look)

    async def ledgers(self, numbers: Sequence[int]) -> dict[int, NamedLedgers]:
        """The ledgers that each of ascending commits names. Keeps nothing."""
        return {
            number: await self._ledgers_in(number, node)
            for number, node in (await self._stored_nodes.get_all(numbers)).items()
        }

    async def _ledgers_in(self, number: int, node: bytes) -> NamedLedgers:
        path = self._nodes.commit_path(number)
        named = codec.ledgers_named_in(node, path)
        if named:
            return NamedLedgers(named, None)
        # It has no rows, or its list is elsewhere.
        stored = StoredCommit(*codec.decode_commit(node, number, path))
        if stored.pointer is None:
            return NamedLedgers(set(), None)
        try:
            segments = (await self._with_list(stored)).commit.segments
        except NotFoundError:
            segments = ()  # a deletion of before took the list, and before that what it names
        return NamedLedgers({segment.ledger_id for segment in segments}, stored.pointer.ledger_id)

    async def at_segment(self, head: Head, segment: int) -> Commit:
        """The commit that holds a segment, which must be below ``head.next_segment``.

        Raises DataLossError if the segment was truncated, CorruptionError if no commit holds it.
        """
        assert 0 <= segment < head.next_segment, (segment, head.next_segment)
        number = await self._last_at_or_below(
            (head.earliest_commit, head.next_commit), segment, _first_segment, head.next_segment
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
        for part in reversed(ascending_parts(head)):
            number = await self.last_before(head, part, time_ms)
            if number is not None:
                following = number + 1
                break
        assert head.earliest_commit <= following <= head.next_commit, (following, head)
        return await self.get(following) if following < head.next_commit else None

    async def position_since(self, head: Head, time_ms: int) -> Dlsn:
        """The first row committed at this time or later; the end of the stream without one."""
        commit = await self.first_since(head, time_ms)
        return head.end if commit is None else max(Dlsn(commit.first_segment), head.earliest)

    async def last_before(self, head: Head, part: tuple[int, int], time_ms: int) -> int | None:
        """The last commit made before a time, of a part in which times ascend, or None."""
        high = part[1]
        last_ms = head.time_ms if high == head.next_commit else (await self.get(high - 1)).time_ms
        return await self._last_at_or_below(part, time_ms - 1, _time_ms, last_ms + 1)

    async def last_leaving(self, head: Head, *, rows: int = 0, size_bytes: int = 0) -> int:
        """The last commit from which on there are so many rows (or bytes); the earliest one if all
        of them are fewer."""
        assert (rows > 0) != (size_bytes > 0), (rows, size_bytes)
        among = (head.earliest_commit, head.next_commit)
        total, key = (head.rows, _rows_before) if rows else (head.size_bytes, _bytes_before)
        found = await self._last_at_or_below(among, total - (rows or size_bytes), key, total + 1)
        return head.earliest_commit if found is None else found

    async def last_followed_by(
        self, among: tuple[int, int], end_bytes: int, size_bytes: int
    ) -> int | None:
        """The last of some commits from which on there are so many bytes, or None. ``end_bytes``:
        those before the commit behind them."""
        target = end_bytes - size_bytes
        return await self._last_at_or_below(among, target, _bytes_before, end_bytes + 1)

    async def position_of_row(self, head: Head, row: int) -> Dlsn:
        """Where the row is before which so many were committed; without it, the stream's end.

        Raises DataLossError if the row was truncated.
        """
        if row >= head.rows:
            return head.end
        among = (head.earliest_commit, head.next_commit)
        number = await self._last_at_or_below(among, row, _rows_before, head.rows)
        if number is None:
            is_empty = head.earliest_commit == head.next_commit
            kept = head.rows if is_empty else (await self.get(head.earliest_commit)).rows_before
            raise DataLossError(
                f"stream {self._nodes.name!r}: the row with the offset {row} was truncated; the "
                f"first row kept has the offset {kept}"
            )
        return (await self.get(number)).position_of_row(row)

    async def of_record(self, record: SinkRecord) -> Commit:
        """The commit of a sink's newest transaction; without segments if it was truncated."""
        try:
            return await self.get(record.commit)
        except (DataLossError, NotFoundError) as error:  # the node may outlive its segment list
            head = (await self._nodes.head(latest=True)).value
            if isinstance(error, NoSuchStreamError) or record.commit >= head.earliest_commit:
                raise
            return Commit(
                number=record.commit,
                time_ms=0,
                first_segment=0,
                segments=(),
                sink_id=record.sink_id,
                transaction_id=record.transaction_id,
                run_id=record.run_id,
                truncated=True,
            )

    async def first_of_sink(
        self, head: Head, last: SinkRecord, transaction_id: int
    ) -> Commit | None:
        """The commit of a sink's first transaction from this one on, or None.

        ``last`` is the newest. Transactions of a sink ascend (rule T3), and pages above leaves name
        those of a few sinks: then one leaf is read, otherwise those of which nothing is known.
        """
        if last.transaction_id < transaction_id:
            return None

        def is_wanted(commit: Commit) -> bool:
            return commit.sink_id == last.sink_id and commit.transaction_id >= transaction_id

        async def look(root: ManifestRoot) -> tuple[int, int]:
            first = head.earliest_commit
            leaves = self.manifests.leaves_of_sink(root, first, last.sink_id, transaction_id)
            async with aclosing(leaves):
                async for page in leaves:
                    nodes = enumerate(await self.manifests.nodes_of(root, page), page.first)
                    for number, node in nodes:
                        path = self._nodes.commit_path(number)
                        if number >= first and is_wanted(
                            codec.decode_commit(node, number, path)[0]
                        ):
                            return number, number + 1
            return max(first, root.sealed), max(last.commit + 1, first, root.sealed)

        await self.manifests.read_root()
        low, high = await self.manifests.search(look)
        # Those that have nodes are some hundred. Of a sink that alone writes the stream, with
        # transactions without gaps, the number tells the commit.
        likely = last.commit - (last.transaction_id - transaction_id)
        if low <= likely < high:
            commit = await self.get(likely)
            if (commit.sink_id, commit.transaction_id) == (last.sink_id, transaction_id):
                return commit
        found = await self.range(low, high)
        return next((commit for commit in found if is_wanted(commit)), None)

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
        self,
        among: tuple[int, int],
        target: int,
        key: Callable[[Commit | PagePointer], int],
        key_at_end: int,
    ) -> int | None:
        """The last commit from one number up to another whose key is at most ``target``, or None.
        Keys ascend there.

        The manifests leave a leaf, or the commits behind them. There it alternates between a guess
        by proportion, because keys often grow evenly, and halving, so that an uneven stream costs
        at most twice a binary search.
        """
        low, high = among
        if low >= high:
            return None
        among = low, high = await self.manifests.narrow(among, target, key)
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
        return codec.decode_segment_list(
            b"".join(parts), commit.first_segment, path, pointer.versions
        )


def _mark(number: int, begins: Commit | PagePointer) -> CommitMark:
    return CommitMark(number, begins.first_segment, begins.rows_before, begins.bytes_before)


def _first_segment(commit: Commit | PagePointer) -> int:
    return commit.first_segment


def _time_ms(commit: Commit | PagePointer) -> int:
    return commit.time_ms


def _rows_before(commit: Commit | PagePointer) -> int:
    return commit.rows_before


def _bytes_before(commit: Commit | PagePointer) -> int:
    return commit.bytes_before


def ascending_parts(head: Head) -> list[tuple[int, int]]:
    """The parts of a stream, from a commit up to another, in which times ascend (rule T10)."""
    ends = [n for n in head.time_resets if n > head.earliest_commit] + [head.next_commit]
    return list(pairwise([head.earliest_commit, *ends]))


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
