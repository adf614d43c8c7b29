"""FrameStore: frames of entries that are not confirmed yet, cut into runs for each bookie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from spark_ledger.limits.entries import APPEND_MESSAGE_BYTES_TARGET, FIRST_MESSAGE_BYTES_TARGET
from spark_ledger.protocol.quorum import entries_of_index
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerMetadata
from spark_ledger.wire.frame import HEADER_BYTES, Digest, seal_heads


class FrameStore:
    """Frames by entry id, from the first one that is not confirmed, or that a bookie still owes.

    Sent runs live on in the transport until they are acknowledged; frames are kept here because
    an ensemble change sends everything behind the last add confirmed once more, and a bookie that
    was busy everything that it has not acknowledged.
    """

    def __init__(self, metadata: LedgerMetadata, digest: Digest, *, first_entry: int = 0) -> None:
        self._ledger_id = metadata.ledger_id
        self._quorums = metadata.quorums
        self._digest = digest
        self._parts: list[bytes] = []
        """Two for each frame: header with digest, and payload. They are joined once, into a run."""
        self._sizes: list[int] = []
        """Of the frames."""
        self._released = 0
        """How many frames at the front of the lists are of no more use."""
        self._began = self._first = first_entry
        """The entry of the first frame of use."""
        self._length = 0
        self._cached: tuple[int, int] | None = None
        self._cached_runs: list[EntryRun] = []

    def seal(self, payloads: Sequence[bytes], last_add_confirmed: EntryId) -> list[int]:
        """Make the frames of the next entries; their payload sizes."""
        first_entry = self._first + len(self._sizes) - self._released
        sizes = list(map(len, payloads))
        heads = seal_heads(
            self._digest, self._ledger_id, first_entry, last_add_confirmed, self._length, payloads
        )
        self._length += sum(sizes)
        self._parts.extend(chain.from_iterable(zip(heads, payloads, strict=True)))
        overhead = HEADER_BYTES + self._digest.size
        self._sizes.extend([size + overhead for size in sizes])
        return sizes

    def add(self, frames: Sequence[bytes]) -> None:
        """Keep frames that another writer made (recovery), for the next entry ids."""
        self._parts.extend(chain.from_iterable((frame, b"") for frame in frames))
        self._sizes.extend(map(len, frames))

    def release(self, last: int) -> None:
        """Forget frames up to ``last``, if they are still kept."""
        count = last + 1 - self._first
        if count <= 0:
            return
        self._released += count
        assert self._released <= len(self._sizes), "only kept entries are released"
        if 2 * self._released >= len(self._sizes):
            del self._parts[: 2 * self._released]
            del self._sizes[: self._released]
            self._released = 0
            self._cached, self._cached_runs = None, []  # memory: nobody asks for them again
        self._first = last + 1

    def runs(self, bookie_index: int, first: int, last: int) -> list[EntryRun]:
        """The entries ``first..last`` of one bookie as runs of about a message's size.

        With E == WQ every bookie gets the same runs: they are made once.
        """
        assert first >= self._first, "what every bookie holds is never sent again"
        start = first - self._first + self._released
        if self._quorums.ensemble_size != self._quorums.write_quorum:
            ids = entries_of_index(bookie_index, first, last, self._quorums)
            offsets = [start + entry_id - first for entry_id in ids]
            sizes = [self._sizes[offset] for offset in offsets]
            parts = [part for o in offsets for part in self._parts[2 * o : 2 * o + 2]]
            return list(self._cut(ids, sizes, parts))
        if self._cached == (first, last):
            return self._cached_runs
        if first == last:  # of many ledgers each entry comes alone
            frame = self._parts[2 * start] + self._parts[2 * start + 1]
            run = EntryRun(self._ledger_id, EntryId(first), None, [len(frame)], frame)
            self._cached_runs = [run]
        else:
            end = start + last + 1 - first
            sizes, parts = self._sizes[start:end], self._parts[2 * start : 2 * end]
            self._cached_runs = list(self._cut(range(first, last + 1), sizes, parts))
        self._cached = (first, last)
        return self._cached_runs

    def _cut(self, ids: Sequence[int], sizes: list[int], parts: list[bytes]) -> Iterator[EntryRun]:
        begins = self._first == self._began
        bytes_max = FIRST_MESSAGE_BYTES_TARGET if begins else APPEND_MESSAGE_BYTES_TARGET
        start = 0
        while start < len(sizes):
            end, total = start, 0
            while end < len(sizes) and (end == start or total + sizes[end] <= bytes_max):
                total += sizes[end]
                end += 1
            part = ids[start:end]
            consecutive = isinstance(part, range) or part[-1] - part[0] == len(part) - 1
            yield EntryRun(
                ledger_id=self._ledger_id,
                first_entry=EntryId(part[0]),
                entry_ids=None if consecutive else list(part),
                sizes=sizes[start:end],
                frames=b"".join(parts[2 * start : 2 * end]),
            )
            start = end
