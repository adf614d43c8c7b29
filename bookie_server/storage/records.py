"""Framing of records in journal and entry log files: what makes damage visible. Pure.

A record is a header and a body:

    offset  bytes  field
    0       1      type (never zero: preallocated space is no record)
    1       3      zero
    4       4      body length, big endian, as all numbers here
    8       8      sequence: of the batch (journal), or log id << 32 | offset (entry log)
    16      4      CRC32C of the body
    20      4      CRC32C of the 20 bytes above, started with the file's seed
    24      n      body

In the journal the records of one synced batch share its sequence and end with a trailer record:

    0       8      bytes of the batch before the trailer
    8       4      records of the batch before the trailer
    12      4      chain: CRC32C of all headers of the batch before the trailer, started with the
                   chain of the batch before; the headers hold the CRC32C of their bodies

A WITNESS says what other logs had made durable when the batch was begun, see ``witness``.

Behind its last batch a file that was left in order has one record of type FILE_END, in a block of
its own. Its sequence is one above that of the last batch, its body the number of the next file (8
bytes), or 0 when the journal was closed. It is no batch, has no trailer and takes no sequence.

Batches start at multiples of 4096 bytes, zeros fill the space between: a write never touches a
sector that holds an acknowledged byte (rule S11), and a search for later batches (rule S5) looks at
few offsets.

A journal file starts with one block of 4096 bytes, zeros at its end:

    0       8      magic "SLJRNL\\r\\n"
    8       4      format version, 1
    12      4      chain of the batch before this file
    16      8      file number
    24      8      salt: the seed of all headers in the file is the CRC32C of these 8 bytes, so
                   that neither old bytes nor bytes a client chose can pass for a record (rule S4)
    32      8      sequence of the first batch in this file
    40      8      bytes of the file when this was written; a file never gets shorter, so one that
                   is was cut, and batches may be missing at its end
    48      4      CRC32C of the 48 bytes above
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c_value

from bookie_server.storage.blocks import BLOCK_BYTES_MAX

_HEADER = struct.Struct(">BxxxIQI")
_CRC = struct.Struct(">I")
_TRAILER = struct.Struct(">QII")
_FILE_END = struct.Struct(">Q")
_FILE_HEADER = struct.Struct(">8sIIQQQQ")
_FILE_MAGIC: Final = b"SLJRNL\r\n"
_FILE_VERSION: Final = 1

RECORD_HEADER_BYTES: Final = _HEADER.size + _CRC.size
BATCH_ALIGNMENT: Final = 4096
FILE_HEADER_BYTES: Final = BATCH_ALIGNMENT
TRAILER_BYTES: Final = RECORD_HEADER_BYTES + _TRAILER.size
"""The trailer of a batch, header included."""
BODY_BYTES_MAX: Final = BLOCK_BYTES_MAX
"""Longest body of any record; a larger length is damage, and nothing is allocated for it."""


class RecordType(IntEnum):
    """What a record holds. Zero is not a type, numbers are never reused: 16 was at the end of entry
    logs."""

    RUN = 1
    FENCE = 2
    ACCESS_KEY = 3
    LAST_ADD_CONFIRMED = 4
    WITNESS = 5
    FILE_END = 17
    TRAILER = 127


_TYPES: Final = frozenset(int(member) for member in RecordType)


class RecordHeader(NamedTuple):
    """A header that was read and whose own checksum is right."""

    record_type: int
    length: int
    sequence: int
    body_crc: int


class Trailer(NamedTuple):
    """End of a batch."""

    batch_bytes: int
    records: int
    chain: int


class JournalFileHeader(NamedTuple):
    """First block of a journal file."""

    number: int
    salt: int
    first_sequence: int
    chain: int
    size_bytes: int

    @property
    def seed(self) -> int:
        """Start value of all header checksums in the file."""
        return int(crc32c_value(self.salt.to_bytes(8, "big")))


def pack_header(record_type: int, length: int, sequence: int, body_crc: int, seed: int) -> bytes:
    """The header of a record."""
    assert record_type in _TYPES, f"{record_type} is not a type of record"
    assert 0 <= length <= BODY_BYTES_MAX, f"a body of {length} bytes would be read back as damage"
    assert sequence > 0, "batches count from 1: sequence 0 stands for no batch"
    head = _HEADER.pack(record_type, length, sequence, body_crc)
    return head + _CRC.pack(crc32c_extend(seed, head))


def parse_header(data: bytes, seed: int) -> RecordHeader | None:
    """The header at the start of ``data``, or None when there is none, or a damaged one.

    The length is believed only after the checksum and its bound, so nothing is allocated for a
    damaged one.
    """
    if len(data) < RECORD_HEADER_BYTES or data[0] not in _TYPES:
        return None
    head = data[: _HEADER.size]
    (stored,) = _CRC.unpack_from(data, _HEADER.size)
    if crc32c_extend(seed, head) != stored:
        return None
    header = RecordHeader._make(_HEADER.unpack(head))
    if header.length > BODY_BYTES_MAX:
        return None
    return header


def pack_trailer(trailer: Trailer, sequence: int, seed: int) -> bytes:
    """The trailer record, header included."""
    assert trailer.records > 0, "a batch without records is not written"
    assert trailer.batch_bytes >= trailer.records * RECORD_HEADER_BYTES, f"{trailer} cannot be"
    body = _TRAILER.pack(*trailer)
    crc = crc32c_value(body)
    return pack_header(RecordType.TRAILER, len(body), sequence, crc, seed) + body


def parse_trailer(body: bytes) -> Trailer | None:
    """The trailer in a body whose checksum is right; None when the length is wrong."""
    if len(body) != _TRAILER.size:
        return None
    return Trailer._make(_TRAILER.unpack(body))


def pack_file_end(next_number: int, sequence: int, seed: int) -> bytes:
    """The block behind the last batch of a journal file: file ``next_number`` follows, 0: none."""
    assert next_number >= 0, f"journal file {next_number}"
    body = _FILE_END.pack(next_number)
    head = pack_header(RecordType.FILE_END, len(body), sequence, crc32c_value(body), seed)
    return (head + body).ljust(BATCH_ALIGNMENT, b"\0")


def parse_file_end(data: bytes, sequence: int, seed: int) -> int | None:
    """The next file's number in a block behind a file's last batch; None if it is no such block."""
    header = parse_header(data, seed)
    body = data[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + _FILE_END.size]
    expected = (RecordType.FILE_END, _FILE_END.size, sequence, crc32c_value(body))
    if header != expected or len(body) != _FILE_END.size:
        return None
    return int(_FILE_END.unpack(body)[0])


def batch_room(records_bytes: int) -> int:
    """Bytes of a file that a batch needs, with the block that stays free for the file's end."""
    batch = records_bytes + TRAILER_BYTES
    return batch + padding(batch) + BATCH_ALIGNMENT


def extend_chain(chain: int, headers: bytes) -> int:
    """The chain value behind a batch: ``headers`` are its record headers one behind the other.

    The chain runs through all batches of a journal, over the files. So a batch that is intact but
    of another time, or a file of another journal, does not fit between its neighbours.
    """
    return int(crc32c_extend(chain, headers))


def padding(length: int) -> int:
    """How many zeros follow ``length`` bytes up to the next batch boundary."""
    return -length % BATCH_ALIGNMENT


def pack_file_header(header: JournalFileHeader) -> bytes:
    """The first block of a journal file."""
    assert header.number > 0, "journal files count from 1"
    assert header.first_sequence > 0, "batches count from 1"
    assert header.size_bytes >= FILE_HEADER_BYTES, "a journal file holds its header"
    head = _FILE_HEADER.pack(
        _FILE_MAGIC,
        _FILE_VERSION,
        header.chain,
        header.number,
        header.salt,
        header.first_sequence,
        header.size_bytes,
    )
    return (head + _CRC.pack(crc32c_value(head))).ljust(FILE_HEADER_BYTES, b"\0")


def parse_file_header(data: bytes) -> JournalFileHeader | None:
    """The header in a file's first block, or None when it is damaged or of another format."""
    size = _FILE_HEADER.size
    if len(data) < size + _CRC.size:
        return None
    magic, version, chain, number, salt, first, size_bytes = _FILE_HEADER.unpack_from(data)
    (stored,) = _CRC.unpack_from(data, size)
    if magic != _FILE_MAGIC or version != _FILE_VERSION or crc32c_value(data[:size]) != stored:
        return None
    return JournalFileHeader(number, salt, first, chain, size_bytes)


def find_later_batch(data: bytes, sequence: int, seed: int) -> int | None:
    """Offset in ``data`` of a record header above ``sequence`` at a batch boundary, or None.

    ``data`` starts at a batch boundary. A batch is begun only after the one before it is durable:
    such a header proves that batch ``sequence`` was synced, and perhaps acknowledged (rule S5).
    """
    assert sequence >= 0, "batches count from 1"
    for offset in range(0, len(data), BATCH_ALIGNMENT):
        if data[offset] == 0:
            continue
        header = parse_header(data[offset : offset + RECORD_HEADER_BYTES], seed)
        if header is not None and header.sequence > sequence:
            return offset
    return None
