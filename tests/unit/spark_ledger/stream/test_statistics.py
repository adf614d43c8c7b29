"""What is known of the times and keys of a segment, at its bounds: nothing that is there is hidden
(rules T28 and T29)."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits import KIB
from spark_ledger.limits.stream import KEY_FILTERS_BYTES_MAX, KEYS_FILTERED_MAX
from spark_ledger.stream import declared, statistics
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_rules import Proposal
from spark_ledger.stream.declared import Describer, declared_columns
from spark_ledger.stream.model import UNPLACED, Segment, StreamConfig
from spark_ledger.stream.row_filter import RowFilter
from spark_ledger.stream.statistics import (
    Bounds,
    EntryFacts,
    KeyPart,
    Statistics,
    fitted,
    folded,
    key_hash,
    of_entries,
)
from spark_ledger.stream.where import Where
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, loose, run, table

SPARSE = b"\x01" + bytes(63)
FULL = b"\xff" * 64


def facts(times: Bounds | None, keys: Bounds | None, *hashes: int) -> EntryFacts:
    return EntryFacts(times, keys, frozenset(hashes))


def test_bounds_are_those_of_all_entries_that_have_some() -> None:
    entries = [
        facts(None, None),
        facts((5, 9), None, 1),
        facts((2, 6), (7, 7)),
        facts(None, (3, 8)),
    ]
    for order in (entries, entries[::-1], entries[2:] + entries[:2]):
        found = of_entries(order)
        assert found is not None and (found.times, found.keys) == ((2, 9), (3, 8))
    assert of_entries([facts(None, None), facts(None, None)]) is None


def test_filter_has_a_byte_for_each_key_and_none_for_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for keys, size in ((1, 8), (8, 8), (9, 16), (100, 128), (128, 128), (129, 256)):
        found = of_entries([facts(None, None, *range(keys))])
        assert found is not None and len(found.key_filter) == size
    monkeypatch.setattr(statistics, "KEYS_FILTERED_MAX", 3)
    two, others, one = facts((1, 1), None, 1, 2), facts((1, 1), None, 3, 4), facts((1, 1), None, 3)
    for entries, has_filter in (
        ([two, one], True),
        ([two, one, two], True),
        ([two, others], False),
        ([two, others, one], False),
        ([one, EntryFacts((1, 1), None, None), one], False),
    ):
        found = of_entries(entries)
        assert found is not None and bool(found.key_filter) == has_filter


def test_writer_keeps_no_more_of_the_keys_of_its_entries_than_a_filter_takes() -> None:
    """A task writes any number of entries, and what is kept of each would add up."""

    async def test() -> None:
        ledgers = FakeLedgers()
        catalog = StreamCatalog(ledgers)
        stream = await catalog.create("s", SCHEMA, entry_bytes=KIB, key_columns=("n",))
        writer = stream.writer()
        before, kept = hashes_in_memory(), []
        for start in range(0, 3 * KEYS_FILTERED_MAX, 64):
            await writer.write(table(start, 64))
            kept.append(hashes_in_memory() - before)
        (segment,) = await writer.finish()
        assert segment.entries > 90
        assert KEYS_FILTERED_MAX // 2 < max(kept) <= KEYS_FILTERED_MAX + 64 and kept[-1] <= 64
        assert segment.statistics == Statistics(keys=(0, segment.rows - 1))
        await writer.close()

    run(test())


def hashes_in_memory() -> int:
    """Of keys, that somebody keeps for a filter."""
    found = [each for each in gc.get_objects() if type(each) is EntryFacts]
    return sum(len(each.hashes or ()) for each in found)


@pytest.mark.parametrize(
    ("filters", "bytes_max", "sizes"),
    [
        ([SPARSE, SPARSE[:32]], 96, [64, 32]),
        ([SPARSE, SPARSE[:32]], 95, [32, 32]),  # the largest first
        ([SPARSE, SPARSE], 64, [32, 32]),
        ([FULL, SPARSE[:32]], 32, [None, 32]),  # one that says yes to all is no use
        ([SPARSE[:8], SPARSE[:8]], 8, [None, None]),
        ([FULL], 0, [None]),
    ],
)
def test_filters_of_a_commit_are_folded_no_more_than_they_have_to_be(
    filters: list[bytes], bytes_max: int, sizes: list[int | None]
) -> None:
    found = fitted([Statistics(key_filter=each) for each in filters], bytes_max)
    # None and not empty: as the stored commit is read, with which it is compared (rule T4).
    assert [each and len(each.key_filter) for each in found] == sizes


COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "text": pa.string(),
    "at": pa.timestamp("us", tz="UTC"),
}
KEYS = pa.schema(COLUMNS)


def config(*key_columns: str, time_column: str | None = None) -> StreamConfig:
    return StreamConfig("s", "i", (KEYS,), key_columns=key_columns, time_column=time_column)


def batch(**columns: list[Any]) -> pa.RecordBatch:
    rows = max(map(len, columns.values()))
    found = {name: columns.get(name, [None] * rows) for name in KEYS.names}
    return pa.record_batch(found, schema=KEYS)


def test_keys_with_a_null_are_left_out_and_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "KEYS_FILTERED_MAX", 3)
    describe = Describer(config("id"))
    assert describe(batch(id=[3, 1, None, 2, 1])) == EntryFacts(
        None, (1, 3), frozenset(key_hash([n]) for n in (1, 2, 3))
    )
    assert describe(batch(id=[1, 2, 3, 4])).hashes is None
    assert describe(batch(id=[None, None])) == EntryFacts(None, None, frozenset())


def test_keys_of_two_columns_have_no_bounds_and_need_both_values() -> None:
    found = Describer(config("id", "text"))(batch(id=[1, 1, None, 2], text=["a", "a", "b", None]))
    assert found == EntryFacts(None, None, frozenset([key_hash([1, b"a"])]))


def test_column_that_is_a_key_twice_in_another_case_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="named twice"):
        declared_columns(KEYS, ("id", "ID"), None)
    assert declared_columns(KEYS, ("TEXT", "Id"), "AT") == (("text", "id"), "at")


def known(**of: Any) -> Segment:
    segment = loose()
    object.__setattr__(segment, "statistics", Statistics(**of))
    return segment


@pytest.mark.parametrize(
    ("start", "end", "may_match"),
    [
        (10, None, True),
        (11, None, False),
        (None, 5, False),
        (None, 6, True),
        (5, 6, True),
        (6, 7, True),  # none of the rows perhaps, but who knows
        (0, 5, False),
    ],
)
def test_segment_is_skipped_by_time_only_where_it_has_no_row_of_it(
    start: int | None, end: int | None, may_match: bool
) -> None:
    rows = RowFilter(Where(start, end), config(time_column="at"))
    assert rows.may_match(known(times=(5, 10))) == may_match
    assert rows.may_match(known(keys=(1, 2))) and rows.may_match(loose())
    times = [4, 5, 6, 9, 10, 11, None]
    found = rows.matching(batch(at=times)).to_pylist()
    wanted = [
        t is not None and (start is None or t >= start) and (end is None or t < end) for t in times
    ]
    assert found == wanted


@pytest.mark.parametrize(("key", "may_match"), [(4, False), (5, True), (9, True), (10, False)])
def test_segment_is_skipped_by_the_bounds_of_its_keys_only_outside_of_them(
    key: int, may_match: bool
) -> None:
    rows = RowFilter(Where(key=key), config("id"))
    assert rows.may_match(known(keys=(5, 9))) == may_match
    assert rows.may_match(known(times=(5, 9)))
    assert rows.matching(batch(id=[key, None, key + 1])).to_pylist() == [True, False, False]


def test_key_of_two_columns_that_names_one_twice_is_refused() -> None:
    for key in ((("id", 1), ("ID", 2), ("text", "a")), (("id", 1),), (("id", 1), ("at", "a"))):
        with pytest.raises(ConfigurationError, match="each of its key columns once"):
            RowFilter(Where(key=key), config("id", "text"))
    rows = RowFilter(Where(key=(("TEXT", "a"), ("Id", 1))), config("id", "text"))
    found = rows.matching(batch(id=[1, 1, 2, None], text=["a", "b", "a", "a"]))
    assert found.to_pylist() == [True, False, False, False]


@pytest.mark.parametrize("keys", list(permutations(KEYS.names)) + list(permutations(KEYS.names, 2)))
def test_keys_of_several_columns_are_those_of_the_rows_whatever_their_order(
    keys: tuple[str, ...],
) -> None:
    """Each column has another number of values, and not every combination is there."""
    rng = random.Random(7)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    of_column: dict[str, list[Any]] = {
        "id": [None, *range(-3, 8)],
        "text": ["", "a", "ab", None, "b"],
        "at": [begin + timedelta(microseconds=n) for n in range(3)],
    }
    rows = {name: rng.choices(values, k=60) for name, values in of_column.items()}
    found = Describer(config(*keys))(batch(**rows))
    stored: dict[str, Callable[[Any], KeyPart]] = {
        "id": int,
        "text": str.encode,
        "at": lambda when: (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
    }
    expected = {
        key_hash([stored[name](value) for name, value in zip(keys, row, strict=True)])
        for row in zip(*(rows[name] for name in keys), strict=True)
        if None not in row
    }
    assert len(expected) > 8
    assert found == EntryFacts(None, None, frozenset(expected))
    known = of_entries([found])
    assert known is not None and all(known.may_have_key(each) for each in expected)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ([b""], 0x402DB780D8E197F7),
        ([b"a"], 0x9524A66F480A89F3),
        ([0], 0x5249A89AF592057B),
        ([-1], 0x245560668EA08EC5),
        ([2**40], 0x39397CE098BC1D4E),
        ([b"ab", b"c"], 0x4024AD5048D711DE),
        ([b"a", b"bc"], 0xC8DD0F99CBB6CE78),
        ([7, b"x"], 0x0E4468F6547F42CE),
        ([b"x", 7], 0x2338CB7CE9604B0B),
    ],
)
def test_hash_of_a_key_never_changes(key: list[KeyPart], hashed: int) -> None:
    """Filters have it that were stored before: with another one they would hide rows."""
    assert key_hash(key) == hashed


def test_bits_of_a_filter_never_change() -> None:
    keys = [key_hash([number]) for number in range(9)]
    known = of_entries([facts(None, None, *keys)])
    assert known is not None
    assert known.key_filter.hex() == "0010408620800e30a61a8035000f5148"
    assert folded(known.key_filter).hex() == "a61ac0b7208f5f78"
    for hashed, bits in ((0, "0f"), (1 << 63, "0f"), (1 << 33 | 5, "2049")):
        one = of_entries([facts(None, None, hashed)])
        assert one is not None and one.key_filter.hex() == bits.ljust(16, "0")


def test_filters_of_a_commit_are_made_to_fit_before_it_is_offered() -> None:
    filters = [SPARSE * 32] * 60
    segments = [
        replace(loose(1), statistics=Statistics((n, n), None, f)) for n, f in enumerate(filters)
    ]
    offered = Proposal((), "q", 1).with_segments(tuple(segments)).segments
    known = [each.statistics for each in offered if each.statistics]
    assert [each.times for each in known] == [(n, n) for n in range(60)]
    assert (
        sum(len(each.key_filter) for each in known) <= KEY_FILTERS_BYTES_MAX < 60 * len(filters[0])
    )
    assert all(each.number == UNPLACED for each in offered)
