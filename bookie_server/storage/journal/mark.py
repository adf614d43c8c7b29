"""The checkpoint mark: up to where a ledger directory has checkpointed the journal. Pure.

offset  bytes  field
0       8      journal file number, big endian
8       8      offset in that file of the first batch that is not checkpointed
16      8      sequence of the last batch that is checkpointed (0: none)
24      4      chain behind that batch
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_MARK = struct.Struct(">QQQI")
MARK_BYTES: Final = _MARK.size


class Mark(NamedTuple):
    """A position between two batches of the journal: all before it is checkpointed.

    Sequences order marks. The number of the file decides between two marks of one sequence: the
    end of a full file, and the start of the file after it.
    """

    file_number: int
    offset: int
    sequence: int
    chain: int

    def is_behind(self, other: Mark) -> bool:
        """Whether ``other`` lies further on: a later batch, or the same one in a later file."""
        return (self.sequence, self.file_number) < (other.sequence, other.file_number)


def pack_mark(mark: Mark) -> bytes:
    """The stored form."""
    assert mark.offset >= 0 and mark.sequence >= 0, f"{mark} is before every journal"
    return _MARK.pack(*mark)


def unpack_mark(data: bytes) -> Mark:
    """The mark in its stored form; ValueError when the length is wrong."""
    if len(data) != MARK_BYTES:
        raise ValueError(f"a mark has {MARK_BYTES} bytes, not {len(data)}")
    return Mark._make(_MARK.unpack(data))


def later(now: Mark | None, other: Mark | None) -> Mark | None:
    """The other mark if it is further on, or the first; None if it is not."""
    if other is None or (now is not None and not now.is_behind(other)):
        return None
    return other


Marks = tuple[Mark | None, Mark | None]
"""Of the journal and of a directory's run log; None where no file was ever begun."""
