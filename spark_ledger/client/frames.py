"""FrameStore: the frames of entries that are not confirmed yet, cut into runs for each slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_ledger.limits import APPEND_MESSAGE_BYTES_TARGET
from spark_ledger.protocol.quorum import slot_entries
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerMetadata
from spark_ledger.wire.frame import Digest, seal


class FrameStore:
    """Frames by entry id, from the first one that is not confirmed.

    Sent runs live on in the transport until they are acknowledged; frames are kept here because
    an ensemble change sends everything behind the last add confirmed once more.
    """

    def __init__(self, metadata: LedgerMetadata, digest: Digest, *, first_entry: int = 0) -> None:
        self._ledger_id = metadata.ledger_id
        self._quorums = metadata.quorums
        self._digest = digest
        self._frames: list[bytes] = []
        self._released = 0
        """How many frames at the front of the list are of no more use."""
        self._first = first_entry
        """The entry of the first frame of use."""
        self._length = 0
        self._cached: tuple[int, int] | None = None
        self._cached_runs: list[EntryRun] = []

    def seal(self, payloads: Sequence[bytes], last_add_confirmed: EntryId) -> list[int]:
        """Make the frames of the next entries; their payload sizes."""
        digest, ledger_id, length = self._digest, self._ledger_id, self._length
        entry_id = self._first + len(self._frames) - self._released
        sizes = []
        for payload in payloads:
            size = len(payload)
            length += size
            self._frames.append(
                seal(digest, ledger_id, entry_id, last_add_confirmed, length, payload)
            )
            sizes.append(size)
            entry_id += 1
        self._length = length
        return sizes

    def add(self, frames: Sequence[bytes]) -> None:
        """Keep frames that another writer made (recovery), for the next entry ids."""
        self._frames.extend(frames)

    def release(self, last: EntryId) -> int:
        """Forget frames up to ``last``; how many there were."""
        count = last + 1 - self._first
        self._released += count
        assert count >= 0 and self._released <= len(self._frames), "only kept entries are released"
        if 2 * self._released >= len(self._frames):
            del self._frames[: self._released]
            self._released = 0
        self._first = last + 1
        return count

    def runs(self, slot: int, first: int, last: int) -> list[EntryRun]:
        """The slot's entries from ``first`` to ``last`` as runs of about a message's size.

        With E == WQ every slot gets the same runs: they are made once.
        """
        assert first >= self._first, "confirmed entries are never sent again"
        if self._quorums.ensemble_size != self._quorums.write_quorum:
            ids = slot_entries(slot, first, last, self._quorums)
            base = self._first - self._released
            frames = [self._frames[entry_id - base] for entry_id in ids]
            return list(self._cut(ids, frames))
        if self._cached != (first, last):
            start = first - self._first + self._released
            kept = self._frames[start : start + last + 1 - first]
            self._cached_runs = list(self._cut(range(first, last + 1), kept))
            self._cached = (first, last)
        return self._cached_runs

    def _cut(self, ids: Sequence[int], frames: list[bytes]) -> Iterator[EntryRun]:
        sizes = list(map(len, frames))
        start = 0
        while start < len(frames):
            end, total = start, 0
            while end < len(frames) and (
                end == start or total + sizes[end] <= APPEND_MESSAGE_BYTES_TARGET
            ):
                total += sizes[end]
                end += 1
            part = ids[start:end]
            consecutive = isinstance(part, range) or part[-1] - part[0] == len(part) - 1
            yield EntryRun(
                ledger_id=self._ledger_id,
                first_entry=EntryId(part[0]),
                entry_ids=None if consecutive else list(part),
                sizes=sizes[start:end],
                frames=b"".join(frames[start:end]) if end - start > 1 else frames[start],
            )
            start = end
