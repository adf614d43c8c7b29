"""Records, trailers, file headers, marks and changes: fixed bytes, and damage is seen."""

from __future__ import annotations

import struct

import pytest
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c_value
from hypothesis import given
from hypothesis import strategies as st

from bookie_server.core.ledger_record import Change
from bookie_server.storage.journal.changes import (
    access_key_body,
    decode_change,
    encode_change,
    fence_body,
    last_add_confirmed_body,
)
from bookie_server.storage.journal.mark import MARK_BYTES, Mark, pack_mark, unpack_mark
from bookie_server.storage.records import (
    BATCH_ALIGNMENT,
    BODY_BYTES_MAX,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    JournalFileHeader,
    RecordHeader,
    RecordType,
    Trailer,
    extend_chain,
    find_later_batch,
    pack_file_header,
    pack_header,
    pack_trailer,
    padding,
    parse_file_header,
    parse_header,
    parse_trailer,
)
from spark_ledger.types import EntryId, LedgerId

SEED = 0x1234


def test_golden_record_header() -> None:
    packed = pack_header(RecordType.RUN, 258, 7, 0xAABBCCDD, SEED)
    assert packed.hex() == "01000000000001020000000000000007aabbccdd3f90d977"
    assert parse_header(packed, SEED) == RecordHeader(1, 258, 7, 0xAABBCCDD)
    assert parse_header(packed, SEED + 1) is None, "another file's"


def test_golden_trailer() -> None:
    packed = pack_trailer(Trailer(300, 2, 0x01020304), 9, SEED)
    body = packed[RECORD_HEADER_BYTES:]
    assert body.hex() == "000000000000012c0000000201020304"
    header = parse_header(packed, SEED)
    assert header is not None
    assert (header.record_type, header.length, header.sequence) == (RecordType.TRAILER, 16, 9)
    assert parse_trailer(body) == Trailer(300, 2, 0x01020304)
    assert parse_trailer(body + b"x") is None


def test_golden_file_header() -> None:
    header = JournalFileHeader(3, 0x1122334455667788, 40, 5, 65536)
    packed = pack_file_header(header)
    assert len(packed) == FILE_HEADER_BYTES == BATCH_ALIGNMENT
    assert packed[:52].hex() == (
        "534c4a524e4c0d0a" "00000001" "00000005" "0000000000000003" "1122334455667788"
        "0000000000000028" "0000000000010000" "38949d7b"
    )  # fmt: skip
    assert not any(packed[52:])
    assert parse_file_header(packed) == header
    assert parse_file_header(packed[:48]) is None
    assert header.seed != JournalFileHeader(3, 1, 40, 5, 65536).seed
    assert header.seed == 0xD441A37D, "records of older files stay readable"


@pytest.mark.parametrize("place", [0, 11])
def test_an_intact_header_of_another_format_is_none(place: int) -> None:
    data = bytearray(pack_file_header(JournalFileHeader(3, 1, 40, 5, 65536)))
    data[place] ^= 0x04
    data[48:52] = struct.pack(">I", crc32c_value(bytes(data[:48])))
    assert parse_file_header(bytes(data)) is None


@given(st.integers(0, RECORD_HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_header_is_none(place: int, flip: int) -> None:
    packed = bytearray(pack_header(RecordType.RUN, 258, 7, 1, SEED))
    packed[place] ^= flip
    assert parse_header(bytes(packed), SEED) is None


@given(st.integers(0, 51), st.integers(1, 255))
def test_a_changed_file_header_is_none(place: int, flip: int) -> None:
    packed = bytearray(pack_file_header(JournalFileHeader(3, 4, 40, 5, FILE_HEADER_BYTES)))
    packed[place] ^= flip
    assert parse_file_header(bytes(packed)) is None


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_parsed_or_none(data: bytes) -> None:
    assert parse_header(data, SEED) is None
    assert parse_file_header(data) is None


def test_zeros_unknown_types_and_long_bodies_are_no_record() -> None:
    assert parse_header(bytes(RECORD_HEADER_BYTES), SEED) is None
    assert parse_header(header_of(99, 1), SEED) is None
    assert parse_header(header_of(1, BODY_BYTES_MAX), SEED) is not None
    assert parse_header(header_of(1, BODY_BYTES_MAX + 1), SEED) is None


def header_of(record_type: int, length: int) -> bytes:
    """A header with a right checksum, also of what no bookie writes."""
    head = struct.pack(">BxxxIQI", record_type, length, 1, 1)
    return head + struct.pack(">I", crc32c_extend(SEED, head))


@pytest.mark.parametrize(
    ("record_type", "length", "sequence"),
    [(99, 1, 1), (1, -1, 1), (1, BODY_BYTES_MAX + 1, 1), (1, 1, 0)],
)
def test_header_that_could_not_be_read_back_is_never_packed(
    record_type: int, length: int, sequence: int
) -> None:
    with pytest.raises(AssertionError):
        pack_header(record_type, length, sequence, 1, SEED)


def test_later_batches_are_found_at_boundaries_only() -> None:
    data = bytearray(4 * BATCH_ALIGNMENT)
    header = pack_header(RecordType.RUN, 1, 8, 1, SEED)
    data[100 : 100 + len(header)] = header
    assert find_later_batch(bytes(data), 7, SEED) is None, "not at a boundary"
    at = 2 * BATCH_ALIGNMENT
    data[at : at + len(header)] = header
    assert find_later_batch(bytes(data), 7, SEED) == at
    assert find_later_batch(bytes(data), 8, SEED) is None, "not later"
    assert find_later_batch(bytes(data), 7, SEED + 1) is None, "of another file"


def test_chain_and_padding() -> None:
    assert extend_chain(extend_chain(1, b"a"), b"b") == extend_chain(1, b"ab")
    assert extend_chain(1, b"a") != extend_chain(2, b"a")
    assert [padding(n) for n in (0, 1, 4095, 4096)] == [0, 4095, 1, 0]


def test_marks() -> None:
    mark = Mark(1, 4096, 2, 3)
    golden = "00000000000000010000000000001000000000000000000200000003"
    assert pack_mark(mark).hex() == golden
    assert unpack_mark(pack_mark(mark)) == mark
    with pytest.raises(ValueError, match=f"{MARK_BYTES} bytes, not 3"):
        unpack_mark(b"abc")
    assert mark.is_behind(Mark(1, 8192, 3, 0))
    assert mark.is_behind(Mark(2, 4096, 2, 3)), "the same batch, seen from the next file"
    assert not mark.is_behind(mark)
    assert not Mark(2, 4096, 2, 3).is_behind(mark)


def test_changes() -> None:
    key_hash = bytes(range(32))
    fence = fence_body(LedgerId(5))
    key = access_key_body(LedgerId(5), key_hash)
    lac = last_add_confirmed_body(LedgerId(5), EntryId(6))
    assert b"".join(fence.buffers).hex() == "0000000000000005"
    assert b"".join(key.buffers).hex() == "0000000000000005" + key_hash.hex()
    assert b"".join(lac.buffers).hex() == "00000000000000050000000000000006"
    assert decode_change(RecordType.FENCE, fence.buffers[0]) == Change(LedgerId(5), fenced=True)
    assert decode_change(RecordType.ACCESS_KEY, key.buffers[0]) == Change(
        LedgerId(5), access_key_hash=key_hash
    )
    assert decode_change(RecordType.LAST_ADD_CONFIRMED, lac.buffers[0]) == Change(
        LedgerId(5), last_add_confirmed=EntryId(6)
    )
    assert decode_change(RecordType.FENCE, b"short") is None
    assert decode_change(RecordType.RUN, fence.buffers[0]) is None
    for record_type in set(RecordType) | {99}:
        found = [
            decode_change(record_type, body.buffers[0]) is not None for body in (fence, key, lac)
        ]
        assert found == [
            record_type == RecordType.FENCE,
            record_type == RecordType.ACCESS_KEY,
            record_type == RecordType.LAST_ADD_CONFIRMED,
        ]
    with pytest.raises(AssertionError, match="not empty"):
        access_key_body(LedgerId(5), b"")


@pytest.mark.parametrize(
    "change",
    [
        Change(LedgerId(5), fenced=True),
        Change(LedgerId(5), access_key_hash=bytes(range(32))),
        Change(LedgerId(5), last_add_confirmed=EntryId(0)),
    ],
    ids=["fence", "key", "lac"],
)
def test_encoded_change_is_read_back(change: Change) -> None:
    record_type, body = encode_change(change)
    assert decode_change(record_type, b"".join(body.buffers)) == change


def test_change_that_sets_nothing_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="sets something"):
        encode_change(Change(LedgerId(5)))
