"""EntryBatch: verified entries as they came, in one buffer; an object of each only when asked for.

Whoever counts bytes, passes payloads on to Arrow or skips a batch pays nothing for each entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Final, TypeAlias, cast, overload

from spark_ledger.errors import DigestMismatchError
from spark_ledger.runs import EntryRun
from spark_ledger.types import Entry, EntryId, LedgerId
from spark_ledger.wire.frame import HEADER, HEADER_BYTES, Digest, is_intact, open_run

if TYPE_CHECKING:
    import pyarrow as pa

    PayloadArray: TypeAlias = "pa.Array[pa.BinaryScalar]"

_entry_of: Final = cast(
    "Callable[[tuple[LedgerId, int, bytes, int, int]], Entry]", partial(tuple.__new__, Entry)
)
"""``Entry._make`` without its check of the length, which would be half of its cost."""


class EntryBatch(Sequence[Entry]):
    """Entries of one ledger in ascending order, at least one. Nothing of it changes.

    A sequence of ``Entry``, which are made, all at once, when the first is asked for.
    """

    __slots__ = ("_entries", "_head_bytes", "_ids", "_payload_bytes", "_run")

    def __init__(self, run: EntryRun, head_bytes: int) -> None:
        """``run`` is verified; ``head_bytes`` of each frame lie before its payload."""
        assert run.sizes, "a batch has entries"
        self._head_bytes = head_bytes
        self._ids = run.ids()
        self._payload_bytes = len(run.frames) - head_bytes * run.count
        self._run: EntryRun | None = run
        self._entries: list[Entry] = []
        """Instead of the run, once they were asked for: the bytes are not held twice."""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> EntryBatch:
        """A batch of entries that were made already."""
        batch = cls.__new__(cls)
        batch._head_bytes = 0
        batch._ids = [entry.entry_id for entry in entries]
        batch._payload_bytes = sum([len(entry.payload) for entry in entries])
        batch._run = None
        batch._entries = list(entries)
        return batch

    @property
    def entry_ids(self) -> Sequence[int]:
        """The id of each entry."""
        return self._ids

    @property
    def first_entry(self) -> EntryId:
        """The id of the first entry."""
        return EntryId(self._ids[0])

    @property
    def last_entry(self) -> EntryId:
        """The id of the last entry."""
        return EntryId(self._ids[-1])

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads together."""
        return self._payload_bytes

    def payloads(self) -> PayloadArray:
        """The payloads as an Arrow array of binary values, made by one native copy."""
        import pyarrow as pa  # most who read ledgers have no use for it, and it takes long to load
        import pyarrow.compute as pc

        run = self._run
        if run is None:
            return pa.array([entry.payload for entry in self._entries], pa.binary())
        offsets = pa.array(run.offsets(), pa.int32()).buffers()[1]
        buffers = [None, offsets, pa.py_buffer(run.frames)]
        frames = cast("PayloadArray", pa.Array.from_buffers(pa.binary(), run.count, buffers))
        # Arrow 26 needs the end: without it binary_slice fails for all but one frame.
        return pc.binary_slice(frames, self._head_bytes, max(run.sizes))

    def between(self, first: int, last: int) -> EntryBatch:
        """The entries of it from ``first`` to ``last``, both included: at least one."""
        if first <= self._ids[0] and self._ids[-1] <= last:
            return self
        run = self._run
        if run is None:
            return EntryBatch.of([e for e in self._entries if first <= e.entry_id <= last])
        kept = [index for index, each in enumerate(self._ids) if first <= each <= last]
        low, high = kept[0], kept[-1] + 1
        offsets = run.offsets()
        cut = EntryRun(
            run.ledger_id,
            EntryId(self._ids[low]),
            None if run.entry_ids is None else run.entry_ids[low:high],
            run.sizes[low:high],
            run.frames[offsets[low] : offsets[high]],
        )
        return EntryBatch(cut, self._head_bytes)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._made())

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return self._made()[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EntryBatch):
            return self._made() == other._made()
        return self._made() == other

    __hash__ = None  # type: ignore[assignment]  # as a list: batches are compared, never kept in sets

    def __repr__(self) -> str:
        return f"EntryBatch({self.first_entry}..{self.last_entry}, {self._payload_bytes} bytes)"

    def _made(self) -> list[Entry]:
        run = self._run
        if run is not None:
            self._entries = _entries_of(run, self._head_bytes)
            self._run = None
        return self._entries


def _entries_of(run: EntryRun, head_bytes: int) -> list[Entry]:
    frames, ledger_id, size = run.frames, run.ledger_id, run.sizes[0]
    if list(run.sizes).count(size) == run.count:  # as the entries of most programs
        # One by one: values that wait for others make Python's collector look at all of them.
        form = f">8xqqQ{head_bytes - HEADER_BYTES}x{size - head_bytes}s"
        return [
            _entry_of((ledger_id, entry_id, payload, confirmed, length))
            for entry_id, confirmed, length, payload in struct.iter_unpack(form, frames)
        ]
    offsets = run.offsets()
    payloads = [frames[start + head_bytes : end] for start, end in pairwise(offsets)]
    del offsets[-1]
    headers = b"".join([frames[start : start + HEADER_BYTES] for start in offsets])
    _ledgers, ids, confirmed, lengths = zip(*HEADER.iter_unpack(headers), strict=True)
    return list(map(_entry_of, zip(repeat(ledger_id), ids, payloads, confirmed, lengths)))


def open_batch(
    digest: Digest, run: EntryRun
) -> tuple[EntryBatch | None, DigestMismatchError | None]:
    """The entries of a run up to the first that is damaged, None if that is the first of all, and
    what is wrong with it; as ``open_run`` finds them (rule P20)."""
    if is_intact(digest, run):
        return EntryBatch(run, HEADER_BYTES + digest.size), None
    entries, damage = open_run(digest, run)
    return EntryBatch.of(entries) if entries else None, damage
