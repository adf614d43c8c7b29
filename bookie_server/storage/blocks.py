"""The one stored form of an entry run: body of a journal record and of an entry log block.

    offset  bytes  field
    0       8      ledger id, big endian, as all numbers of the header
    8       8      first entry id
    16      8      last add confirmed known with the run (-1: none)
    24      4      count of entries
    28      4      flags: bit 0 = entry ids follow (they are not consecutive); others are zero
    32      4      frames length in bytes
    36      8 * n  entry ids, little endian, only with flag bit 0
    ..      4 * n  sizes of the frames, little endian
    ..      f      frames, one behind the other

Journal and entry log frame this body with ``records``, which checks its length and CRC32C. So the
same bytes, with the checksum computed once, go into the journal and later into the entry log.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c_value

from spark_ledger.limits import MIB
from spark_ledger.limits.entries import MESSAGE_BYTES_MAX
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId

_HEADER = struct.Struct(">qqqIII")
_ONE_SIZE = struct.Struct("<I")
"""The sizes of a run of one entry: of many ledgers each entry comes alone."""
HEADER_BYTES: Final = _HEADER.size
_FLAG_IDS: Final = 1
_ID_BYTES: Final = 8
_SIZE_BYTES: Final = 4

RUN_FRAMES_BYTES_MAX: Final = MESSAGE_BYTES_MAX
"""Frames of one run: it came in one message."""

RUN_ENTRIES_MAX: Final = 512 * 1024
"""Entries of one run: more than a largest message of empty entries holds (36 bytes a frame)."""

BLOCK_BYTES_MAX: Final = 32 * MIB
"""One block: frames and the numbers around them; a length above this is damage."""

assert HEADER_BYTES + RUN_ENTRIES_MAX * (_ID_BYTES + _SIZE_BYTES) + RUN_FRAMES_BYTES_MAX <= (
    BLOCK_BYTES_MAX
), "the largest run fits into a block"


class BlockFormatError(ValueError):
    """Bytes that are no block. The container that read them says where they are."""


class Block(NamedTuple):
    """An encoded run: ``buffers`` one behind the other are ``length`` bytes of CRC32C ``crc``."""

    buffers: tuple[bytes, ...]
    length: int
    crc: int


class BlockHeader(NamedTuple):
    """The numbers before the frames."""

    ledger_id: LedgerId
    first_entry: EntryId
    last_add_confirmed: EntryId
    entries: int
    has_ids: bool
    frames_bytes: int

    @property
    def frames_offset(self) -> int:
        """Where the frames start in the block."""
        return HEADER_BYTES + self.entries * (_SIZE_BYTES + (_ID_BYTES if self.has_ids else 0))


def encode_run(run: EntryRun, last_add_confirmed: EntryId) -> Block:
    """The block of a well-formed run (see ``runs.run_error``). Frames are not copied."""
    sizes, frames = run.sizes, run.frames
    count, frames_bytes = len(sizes), len(frames)
    whole = sum(sizes) if count > 1 else sizes[0]  # of many ledgers each entry comes alone
    assert whole == frames_bytes > 0, "a malformed run was let in"
    assert count <= RUN_ENTRIES_MAX, "a run of too many entries was let in"
    assert frames_bytes <= RUN_FRAMES_BYTES_MAX, "a run of too many bytes was let in"
    ids = run.entry_ids
    header = _HEADER.pack(
        run.ledger_id,
        run.first_entry,
        last_add_confirmed,
        count,
        0 if ids is None else _FLAG_IDS,
        frames_bytes,
    )
    packed = _ONE_SIZE.pack(frames_bytes) if count == 1 else _pack("I", sizes)
    numbers = header + packed if ids is None else header + _pack("q", ids) + packed
    crc = crc32c_extend(crc32c_value(numbers), frames)
    return Block((numbers, frames), len(numbers) + frames_bytes, crc)


def consecutive_numbers_bytes(entries: int) -> int:
    """Bytes before the frames in a block of that many entries with consecutive ids."""
    return HEADER_BYTES + _SIZE_BYTES * entries


def decode_header(prefix: bytes, block_length: int) -> BlockHeader:
    """The header at the start of a block of ``block_length`` bytes.

    Every number is checked before anything is allocated for it: the bytes may be of a damaged
    disk. Raises BlockFormatError if one of them cannot be.
    """
    if block_length > BLOCK_BYTES_MAX or len(prefix) < HEADER_BYTES:
        raise BlockFormatError(f"block of {block_length} bytes, {len(prefix)} are readable")
    ledger_id, first, last_add_confirmed, count, flags, frames_bytes = _HEADER.unpack_from(prefix)
    if ledger_id < 0 or first < 0 or last_add_confirmed < -1:
        raise BlockFormatError(f"ledger {ledger_id} entry {first} LAC {last_add_confirmed}")
    if not 1 <= count <= RUN_ENTRIES_MAX or flags & ~_FLAG_IDS:
        raise BlockFormatError(f"count {count} flags {flags}")
    header = BlockHeader(
        LedgerId(ledger_id),
        EntryId(first),
        EntryId(last_add_confirmed),
        count,
        bool(flags & _FLAG_IDS),
        frames_bytes,
    )
    if header.frames_offset + frames_bytes != block_length:
        raise BlockFormatError(f"{count} entries of {frames_bytes} bytes in {block_length} bytes")
    return header


def decode_run(header: BlockHeader, numbers: bytes, frames: bytes) -> EntryRun:
    """The run of a block: ``numbers`` are its bytes before the frames, header included.

    Raises BlockFormatError if entry ids or sizes do not fit the header.
    """
    assert len(numbers) == header.frames_offset, f"{len(numbers)} bytes before the frames"
    assert len(frames) == header.frames_bytes, f"{len(frames)} bytes of frames"
    ids: array[int] | None = None
    start = HEADER_BYTES
    if header.has_ids:
        ids = _unpack("q", numbers[start : start + _ID_BYTES * header.entries])
        start += _ID_BYTES * header.entries
        if ids[0] != header.first_entry or any(left >= right for left, right in pairwise(ids)):
            raise BlockFormatError("entry ids are not ascending from the first")
    sizes = _unpack("I", numbers[start:])
    if sum(sizes) != header.frames_bytes or min(sizes) == 0:
        raise BlockFormatError("frame sizes do not add up")
    return EntryRun(header.ledger_id, header.first_entry, ids, sizes, frames)


def decode_block(block: bytes) -> tuple[EntryRun, EntryId]:
    """The run of a whole block, and the last add confirmed that is stored with it.

    Raises BlockFormatError if the bytes are no block.
    """
    header = decode_header(block, len(block))
    start = header.frames_offset
    return decode_run(header, block[:start], block[start:]), header.last_add_confirmed


def _pack(code: str, numbers: Sequence[int]) -> bytes:
    packed = array(code, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: str, data: bytes) -> array[int]:
    numbers: array[int] = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
