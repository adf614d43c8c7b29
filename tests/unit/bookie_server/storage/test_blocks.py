"""Blocks: the stored bytes never change, every run survives, no bytes do harm."""

from __future__ import annotations

import sys
from array import array

import pytest
from google_crc32c import value as crc32c_value
from hypothesis import given
from hypothesis import strategies as st

from bookie_server.storage import blocks
from bookie_server.storage.blocks import (
    BLOCK_BYTES_MAX,
    HEADER_BYTES,
    BlockFormatError,
    decode_block,
    decode_header,
    encode_run,
)
from spark_ledger.runs import EntryRun
from spark_ledger.types import EntryId, LedgerId

GOLDEN_CONSECUTIVE = bytes.fromhex(
    "0000000000000007" "0000000000000102" "ffffffffffffffff" "00000002" "00000000" "00000005"
    "02000000" "03000000" "6162" "636465"
)  # fmt: skip
GOLDEN_SPARSE = bytes.fromhex(
    "0000000000000007" "0000000000000003" "0000000000000001" "00000002" "00000001" "00000005"
    "0300000000000000" "0500000000000000" "02000000" "03000000" "6162" "636465"
)  # fmt: skip


def run(first: int, ids: list[int] | None) -> EntryRun:
    return EntryRun(LedgerId(7), EntryId(first), ids, [2, 3], b"abcde")


@pytest.mark.parametrize(
    ("source", "lac", "golden"),
    [(run(258, None), -1, GOLDEN_CONSECUTIVE), (run(3, [3, 5]), 1, GOLDEN_SPARSE)],
)
def test_golden_bytes(source: EntryRun, lac: int, golden: bytes) -> None:
    block = encode_run(source, EntryId(lac))
    assert b"".join(block.buffers) == golden
    assert (block.length, block.crc) == (len(golden), crc32c_value(golden))
    found, found_lac = decode_block(golden)
    assert found_lac == lac
    assert (found.ledger_id, found.first_entry) == (source.ledger_id, source.first_entry)
    assert list(found.ids()) == list(source.ids())
    assert (list(found.sizes), found.frames) == (list(source.sizes), source.frames)


def test_frames_are_not_copied() -> None:
    source = run(0, None)
    assert encode_run(source, EntryId(-1)).buffers[-1] is source.frames


ids_strategy = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20, unique=True)


@given(ids=ids_strategy, data=st.data(), lac=st.integers(-1, 2**63 - 1))
def test_every_run_comes_back(ids: list[int], data: st.DataObject, lac: int) -> None:
    ids.sort()
    frames = [data.draw(st.binary(min_size=1, max_size=9)) for _ in ids]
    source = EntryRun(LedgerId(1), EntryId(ids[0]), ids, [len(f) for f in frames], b"".join(frames))
    found, found_lac = decode_block(b"".join(encode_run(source, EntryId(lac)).buffers))
    assert found_lac == lac
    assert [(e, bytes(f)) for e, f in found.split()] == list(zip(ids, frames, strict=True))


@given(st.binary(max_size=120))
def test_any_bytes_are_refused_or_a_block(data: bytes) -> None:
    try:
        found, lac = decode_block(data)
    except BlockFormatError:
        return
    assert b"".join(encode_run(found, lac).buffers) == data


@given(
    golden=st.sampled_from([GOLDEN_CONSECUTIVE, GOLDEN_SPARSE]),
    place=st.integers(0, 200),
    bit=st.integers(0, 7),
)
def test_changed_bytes_are_refused_or_another_block(golden: bytes, place: int, bit: int) -> None:
    data = bytearray(golden)
    data[place % len(data)] ^= 1 << bit
    try:
        found, lac = decode_block(bytes(data))
    except BlockFormatError:
        return
    assert b"".join(encode_run(found, lac).buffers) == bytes(data)


def test_hostile_numbers_are_refused_before_anything_is_allocated() -> None:
    header = bytearray(GOLDEN_CONSECUTIVE[:HEADER_BYTES])
    header[24:28] = b"\xff\xff\xff\xff"
    with pytest.raises(BlockFormatError, match="count 4294967295"):
        decode_header(bytes(header), len(GOLDEN_CONSECUTIVE))
    with pytest.raises(BlockFormatError, match="block of"):
        decode_header(GOLDEN_CONSECUTIVE, BLOCK_BYTES_MAX + 1)
    with pytest.raises(BlockFormatError):
        decode_block(GOLDEN_CONSECUTIVE[:-1])
    with pytest.raises(BlockFormatError):
        decode_block(GOLDEN_CONSECUTIVE + b"x")


@pytest.mark.parametrize(
    ("place", "number", "message"),
    [
        (0, "ffffffffffffffff", "ledger -1"),
        (8, "ffffffffffffffff", "entry -1"),
        (16, "fffffffffffffffe", "LAC -2"),
        (24, "00000000", "count 0"),
        (28, "00000003", "flags 3"),
        (36, "0200000000000000", "not ascending from the first"),
        (36, "0400000000000000", "not ascending from the first"),
        (44, "0300000000000000", "not ascending from the first"),
        (44, "0200000000000000", "not ascending from the first"),
        (52, "0000000005000000", "do not add up"),
        (52, "0500000000000000", "do not add up"),
        (52, "0100000003000000", "do not add up"),
        (52, "0200000004000000", "do not add up"),
    ],
)
def test_each_number_that_cannot_be_is_refused(place: int, number: str, message: str) -> None:
    data = bytearray(GOLDEN_SPARSE)
    part = bytes.fromhex(number)
    data[place : place + len(part)] = part
    with pytest.raises(BlockFormatError, match=message):
        decode_block(bytes(data))


def test_malformed_run_fails_an_assertion() -> None:
    with pytest.raises(AssertionError, match="malformed"):
        encode_run(EntryRun(LedgerId(1), EntryId(0), None, [2, 2], b"abcde"), EntryId(-1))


class BigEndianArray(array):  # type: ignore[type-arg]
    """Arrays as a big-endian machine has them: their bytes are the other way round."""

    def tobytes(self) -> bytes:
        swapped = array(self.typecode, self)
        swapped.byteswap()
        return swapped.tobytes()

    def frombytes(self, data: bytes) -> None:  # type: ignore[override]
        super().frombytes(data)
        self.byteswap()


def test_a_big_endian_machine_stores_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "array", BigEndianArray)
    monkeypatch.setattr(sys, "byteorder", "big")
    for source, lac, golden in (
        (run(258, None), -1, GOLDEN_CONSECUTIVE),
        (run(3, [3, 5]), 1, GOLDEN_SPARSE),
    ):
        assert b"".join(encode_run(source, EntryId(lac)).buffers) == golden
        found, found_lac = decode_block(golden)
        assert (list(found.ids()), list(found.sizes)) == (list(source.ids()), [2, 3])
        assert found_lac == lac
