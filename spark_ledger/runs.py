"""EntryRun: frames of one ledger, ascending by entry id, in one buffer: what is sent and stored.

Python handles runs, never single entries, on every hot path: one network message, one journal
record and one index row carry many entries. ``sizes`` delimits the frames inside ``frames``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, final

from spark_ledger.types import EntryId, LedgerId


@final
class EntryRun:
    """Entries of one ledger in ascending order. Never changed.

    ``entry_ids`` is None when ids are consecutive from ``first_entry``; otherwise it lists all.
    No frozen dataclass: to make one of those takes three times as long, and of many ledgers each
    entry comes in a run of its own.
    """

    __slots__ = ("entry_ids", "first_entry", "frames", "last_entry", "ledger_id", "sizes")

    def __init__(
        self,
        ledger_id: LedgerId,
        first_entry: EntryId,
        entry_ids: Sequence[int] | None,
        sizes: Sequence[int],
        frames: bytes,
    ) -> None:
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.entry_ids = entry_ids
        self.sizes = sizes
        self.frames = frames
        # Kept, because a run on its way is asked for it a dozen times. Of a malformed run there may
        # be no ids.
        last = entry_ids[-1] if entry_ids else first_entry + len(sizes) - 1
        self.last_entry: EntryId = last  # type: ignore[assignment]  # the name of a type is a call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntryRun) and self._fields() == other._fields()

    def __repr__(self) -> str:
        return f"EntryRun{self._fields()!r}"

    def _fields(self) -> tuple[object, ...]:
        return self.ledger_id, self.first_entry, self.entry_ids, self.sizes, self.frames

    @property
    def count(self) -> int:
        return len(self.sizes)

    def ids(self) -> Sequence[int]:
        """All entry ids, ascending."""
        if self.entry_ids is not None:
            return self.entry_ids
        return range(self.first_entry, self.first_entry + len(self.sizes))

    def offsets(self) -> list[int]:
        """Where each frame starts in ``frames``, and behind them the end: ``count + 1`` numbers."""
        return list(accumulate(self.sizes, initial=0))

    def split(self) -> Iterator[tuple[EntryId, memoryview]]:
        """Each entry id with its frame."""
        view = memoryview(self.frames)
        start = 0
        for entry_id, size in zip(self.ids(), self.sizes, strict=True):
            yield EntryId(entry_id), view[start : start + size]
            start += size


ENTRY_ID_END: Final = 2**63 - 1
"""Above every entry id, so that the id behind the last one fits into 64 bits as well."""


def run_error(run: EntryRun) -> str | None:
    """Why a run that a peer sent is malformed, or None."""
    if run.ledger_id < 0 or run.first_entry < 0:
        return f"negative ledger id {run.ledger_id} or entry id {run.first_entry}"
    if not run.sizes:
        return "no entries"
    if min(run.sizes) == 0 or sum(run.sizes) != len(run.frames):
        return f"frame sizes do not add up to {len(run.frames)} bytes"
    ids = run.entry_ids
    if ids is not None:
        if len(ids) != len(run.sizes) or ids[0] != run.first_entry:
            return "entry ids do not match the frames"
        if any(a >= b for a, b in pairwise(ids)):
            return "entry ids are not ascending"
    if run.last_entry >= ENTRY_ID_END:
        return f"entry id {run.last_entry}: ids end below {ENTRY_ID_END}"
    return None
