"""The bytes of manifests: what is written is read, and nothing else."""

from __future__ import annotations

import json
import zlib

import msgspec
import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.stream.manifest.format import (
    decode_index,
    decode_leaf,
    decode_root,
    encode_index,
    encode_leaf,
    encode_root,
    former_ledgers,
    leaf_count,
)
from spark_ledger.stream.manifest.tree import ManifestRoot, PagePointer, SinkSpan
from spark_ledger.types import LedgerId

NODES = tuple(b'{"v":1,"n":%d}' % number for number in range(7))
POINTERS = (
    PagePointer(2**40, 0, 0, 5, 0, 0, (SinkSpan("q", 1, 9),)),
    PagePointer(7, 3, 4, 4, 2, 2, None),
    PagePointer(7, 4, 4, 9, 2, 3, ()),
)
ROOT = ManifestRoot("abc", ((POINTERS[2],), (), (POINTERS[0], POINTERS[1])), 10, 4)


def resealed(data: bytes, old: bytes, new: bytes) -> bytes:
    """The bytes with something else in them, under the right checksum."""
    assert old in data
    body = data[4:].replace(old, new)
    return zlib.crc32(body).to_bytes(4, "big") + body


def test_bytes_of_manifests_are_unchanged() -> None:
    """What is stored stays readable: these names and values do not change."""
    header, _ = encode_leaf("abc", 300, NODES)[4:].split(b"\n", 1)
    assert json.loads(header) == {"v": 1, "stream_id": "abc", "first": 300, "count": 7, "bytes": 97}
    header, _ = encode_index("abc", 2, 0, POINTERS)[4:].split(b"\n", 1)
    assert json.loads(header) == {
        "v": 1, "stream_id": "abc", "level": 2, "first": 0, "count": 3, "bytes": 75,
    }  # fmt: skip
    assert json.loads(encode_root(ROOT)) == {
        "v": 1,
        "stream_id": "abc",
        "leaf": 10,
        "fan_out": 4,
        "levels": [
            [[7, 4, 4, 9, 2, 3, []]],
            [],
            [[2**40, 0, 0, 5, 0, 0, [["q", 1, 9]]], [7, 3, 4, 4, 2, 2, None]],
        ],
    }


def test_pages_and_roots_are_read_as_written() -> None:
    assert decode_leaf(encode_leaf("abc", 300, NODES), "abc", 300, "here") == NODES
    assert decode_index(encode_index("abc", 2, 0, POINTERS), "abc", 2, 0, "here") == POINTERS
    assert decode_root(encode_root(ROOT), "here") == ROOT
    assert decode_root(encode_root(ROOT._replace(levels=())), "here").sealed == 0


@pytest.mark.parametrize(("first", "dropped"), [(0, 3), (0, 10), (10, 10), (20, 29)])
def test_root_whose_first_pages_are_gone_says_so(first: int, dropped: int) -> None:
    """Programs that do not know it stop there: also where all pages are left (rule T18)."""
    root = ROOT._replace(first=first, dropped=dropped)
    says = json.loads(encode_root(root))
    assert (says["v"], says.get("first", 0), says["dropped"]) == (2, first, dropped)
    assert decode_root(encode_root(root), "here") == root


@pytest.mark.parametrize(
    ("first", "dropped", "change"),
    [
        (10, 10, {"first": 11}),
        (10, 10, {"first": -1}),
        (10, 10, {"v": 1}),
        (10, 10, {"v": 3}),
        (10, 10, {"dropped": 0}),
        (0, 0, {"v": 2}),
        (0, 0, {"dropped": 1}),
        (0, 0, {"first": 1}),
    ],
)
def test_root_that_says_otherwise_what_was_dropped_is_refused(
    first: int, dropped: int, change: dict[str, int]
) -> None:
    data = json.loads(encode_root(ROOT._replace(first=first, dropped=dropped)))
    with pytest.raises(CorruptionError, match="node here"):
        decode_root(json.dumps({**data, **change}).encode(), "here")


def test_page_above_leaves_says_which_ledgers_these_have_left() -> None:
    former = (LedgerId(3), LedgerId(70))
    plain = encode_index("abc", 1, 0, POINTERS)
    data = encode_index("abc", 1, 0, POINTERS, former)
    assert decode_index(data, "abc", 1, 0, "page") == decode_index(plain, "abc", 1, 0, "page")
    assert former_ledgers(data, "abc", 0, "page") == former
    assert former_ledgers(plain, "abc", 0, "page") == ()
    for first, page in (
        (1, data),
        (0, encode_index("abc", 2, 0, POINTERS, former)),
        (0, data[:-1]),
    ):
        with pytest.raises(CorruptionError):
            former_ledgers(page, "abc", first, "page")
    with pytest.raises(CorruptionError, match="former ledgers"):
        former_ledgers(encode_index("abc", 1, 0, POINTERS, (LedgerId(-1),)), "abc", 0, "page")


@pytest.mark.parametrize("freed", [0, 5, 12, -1, 13])
def test_root_says_up_to_where_former_ledgers_are_gone(freed: int) -> None:
    root = ManifestRoot("abc", ((POINTERS[1],), (POINTERS[0],)), 4, 2, freed=freed)
    if 0 <= freed <= root.sealed:
        assert decode_root(encode_root(root), "root") == root and root.merged_upto == 8
    else:
        with pytest.raises(CorruptionError, match=f"{freed} of 12 sealed commits are merged"):
            decode_root(encode_root(root), "root")


def test_leaf_is_counted_without_a_look_at_what_it_holds() -> None:
    """It is copied as it is: only that it is this leaf, and not damaged, is looked at."""
    leaf = encode_leaf("abc", 300, NODES)
    assert leaf_count(leaf, "abc", 300, "here") == len(NODES)
    for stream_id, first in (("abd", 300), ("abc", 299)):
        with pytest.raises(CorruptionError, match="here: version, stream id"):
            leaf_count(leaf, stream_id, first, "here")
    for damaged in (leaf[:-1], leaf[:3], b"", b"\0" + leaf[1:], leaf[:-1] + b"\0\0"):
        with pytest.raises(CorruptionError, match="here: its checksum"):
            leaf_count(damaged, "abc", 300, "here")
    with pytest.raises(CorruptionError, match="here: version, stream id"):
        leaf_count(encode_index("abc", 1, 300, POINTERS), "abc", 300, "here")


def test_page_of_another_place_is_refused() -> None:
    leaf, index = encode_leaf("abc", 300, NODES), encode_index("abc", 1, 0, POINTERS)
    for stream_id, first in (("abd", 300), ("abc", 299)):
        with pytest.raises(CorruptionError, match="here: version, stream id"):
            decode_leaf(leaf, stream_id, first, "here")
    with pytest.raises(CorruptionError, match="here: version, stream id"):
        decode_leaf(index, "abc", 0, "here")
    with pytest.raises(CorruptionError, match="here: version, stream id"):
        decode_index(index, "abc", 2, 0, "here")


def test_every_damaged_byte_of_a_page_is_found() -> None:
    data = encode_leaf("abc", 300, NODES)
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(CorruptionError, match="here"):
            decode_leaf(damaged, "abc", 300, "here")
        with pytest.raises(CorruptionError, match="here"):
            decode_leaf(data[:place], "abc", 300, "here")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"v":1', b'"v":2'),
        (b'"count":7', b'"count":8'),
        (b'"bytes":97', b'"bytes":96'),
        (b'"bytes":97', b'"bytes":98'),
        (b'"bytes":97', b'"bytes":-1'),
        (b'"bytes":97', b'"bytes":9999999999'),
        (b'"bytes":97', b'"extra":97'),
        (b'{"v"', b'["v"'),
        (b"\n", b"\nx"),
    ],
)
def test_leaf_that_contradicts_itself_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(CorruptionError, match="here"):
        decode_leaf(resealed(encode_leaf("abc", 300, NODES), old, new), "abc", 300, "here")


def test_pages_that_are_not_in_order_are_refused() -> None:
    for wrong in (
        (POINTERS[1], POINTERS[0]),
        (POINTERS[0], msgspec.structs.replace(POINTERS[1], ledger_id=-1)),
        (msgspec.structs.replace(POINTERS[0], entry_id=-1),),
        (POINTERS[2], POINTERS[1]),
        (POINTERS[1], msgspec.structs.replace(POINTERS[2], rows_before=1)),
        (POINTERS[1], msgspec.structs.replace(POINTERS[2], bytes_before=1)),
        (POINTERS[1], msgspec.structs.replace(POINTERS[2], first_segment=3)),
    ):
        with pytest.raises(CorruptionError, match="order"):
            decode_index(encode_index("abc", 1, 0, wrong), "abc", 1, 0, "here")
        with pytest.raises(CorruptionError, match="order"):
            decode_root(encode_root(ROOT._replace(levels=(wrong,))), "here")


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"leaf": 0},
        {"fan_out": 1},
        {"levels": [[]] * 17},
        {"levels": [[[1, 2, 3]]]},
        {"levels": [[[1, 2, 3, 4, 5, 6, [], 7]]]},
        {"extra": 1},
    ],
)
def test_root_with_other_fields_or_sizes_is_refused(change: dict[str, object]) -> None:
    data = json.dumps({**json.loads(encode_root(ROOT)), **change}).encode()
    with pytest.raises(CorruptionError, match="node here"):
        decode_root(data, "here")
