"""Reads by event time and key, compared with a scan of all rows; what they skip and refuse."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import ConfigurationError, CorruptionError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format import codec
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.stream.statistics import (
    EntryFacts,
    Statistics,
    fitted,
    folded,
    key_hash,
    of_entries,
)
from spark_ledger.stream.stream import Stream
from spark_ledger.stream.where import Where, where
from spark_ledger.types import Dlsn
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import another, run, small_manifests

COLUMNS: dict[str, pa.DataType] = {
    "user": pa.string(),
    "at": pa.timestamp("us", tz="UTC"),
    "day": pa.date32(),
}
SCHEMA = pa.schema(COLUMNS)
WIDER = pa.schema([*SCHEMA, pa.field("more", pa.int64())])
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def rows_of(draw: random.Random, count: int, *, wide: bool = False) -> pa.Table:
    first = draw.randrange(40)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        hours = first + draw.randrange(4)
        rows.append(
            {
                "user": draw.choice([None, "", *(f"u{first // 4 + n}" for n in range(3))]),
                "at": None if draw.random() < 0.2 else BEGIN + timedelta(hours=hours),
                "day": date(2026, 1, 1 + hours // 4),
                **({"more": hours} if wide else {}),
            }
        )
    return pa.Table.from_pylist(rows, WIDER if wide else SCHEMA)


async def read_rows(stream: Stream, asked: Where | None = None) -> list[dict[str, Any]]:
    return [row async for batch in stream.read(where=asked) for row in batch.to_pylist()]


def meets(row: dict[str, Any], asked: dict[str, Any]) -> bool:
    start, end = asked.get("event_time_from"), asked.get("event_time_until")
    if (start or end) and row["at"] is None:
        return False
    if (start and row["at"] < start) or (end and row["at"] >= end):
        return False
    return all(row[name] == value for name, value in asked.get("key", {}).items())


def some_condition(draw: random.Random) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    if draw.random() < 0.6:
        asked["event_time_from"] = BEGIN + timedelta(hours=draw.randrange(44))
    if draw.random() < 0.6:
        asked["event_time_until"] = BEGIN + timedelta(hours=draw.randrange(44))
    if draw.random() < 0.6:
        day = date(2026, 1, 1 + draw.randrange(11))
        asked["key"] = {"user": draw.choice(["", *(f"u{n}" for n in range(13))]), "day": day}
    return asked


@pytest.mark.parametrize("seed", range(4))
def test_read_with_a_condition_has_the_rows_that_a_scan_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside manifests, packs, new columns, several writers and an overwrite (rules T28 to T30)."""
    small_manifests(monkeypatch)

    async def scenario() -> None:
        draw = random.Random(seed)
        ledgers = FakeLedgers()
        created = await StreamCatalog(ledgers).create(
            "s", SCHEMA, key_columns=["user", "day"], time_column="at", entry_bytes=1024
        )
        for step in range(14):
            stream = await another(ledgers)[1].open("s")
            wide = step > 5 and draw.random() < 0.5
            parts = []
            for _ in range(draw.randrange(1, 4)):
                writer = stream.writer(merge_schema=True)
                await writer.write(rows_of(draw, draw.choice([1, 3, 120]), wide=wide))
                parts += await writer.finish()
                await writer.close()
            await stream.commit_segments(parts, overwrite=step == 3)
            if step in (7, 11):
                await stream.optimizer.run_all(entries_min=2)
            fresh = await another(ledgers)[1].open("s")
            everything = await read_rows(fresh)
            for reader in (fresh, created):
                asked, names = some_condition(draw), reader.schema.names
                found = [
                    {name: row.get(name) for name in names}
                    for row in await read_rows(reader, where(**asked))
                ]
                assert found == [
                    {name: row.get(name) for name in names}
                    for row in everything
                    if meets(row, asked)
                ], f"step {step}: {asked}"

    run(scenario())


def test_read_by_time_or_key_fetches_only_segments_that_may_match() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create(
            "s", SCHEMA, key_columns=["user"], time_column="AT"
        )
        for day in range(20):
            when = BEGIN + timedelta(days=day)
            row = {"user": f"u{day}", "at": when, "day": when.date()}
            await stream.append(pa.Table.from_pylist([row], SCHEMA))
        kept = {
            "time": where(event_time_from=date(2026, 1, 3), event_time_until=date(2026, 1, 5)),
            "key": where(key="u7"),
        }
        ranges = ranges_between(await stream.commits(0, 20), Dlsn(0), Dlsn(20))
        for what, asked in kept.items():
            fetched = [
                (each.position.segment, each.wanted().num_rows, each.row)
                async for each in stream.read_ranges(ranges, where=asked)
            ]
            assert fetched == {"time": [(2, 1, 2), (3, 1, 3)], "key": [(7, 1, 7)]}[what]

    run(scenario())


def test_segment_of_several_entries_has_the_bounds_of_all() -> None:
    async def scenario() -> None:
        columns: dict[str, pa.DataType] = {"at": pa.timestamp("us"), "day": pa.date32()}
        schema = pa.schema(columns)
        stream = await StreamCatalog(FakeLedgers()).create(
            "s", schema, key_columns=["day"], time_column="at", entry_bytes=1024
        )
        times = [datetime(2026, 1, 1) + timedelta(hours=n) for n in range(1000)]
        rows: dict[str, list[Any]] = {"at": times, "day": [when.date() for when in times]}
        (segment,) = (await stream.append(pa.table(rows, schema))).segments
        assert segment.entries > 2
        for end in (times[1], times[500]):
            found = await read_rows(stream, where(event_time_until=end))
            assert [row["at"] for row in found] == [when for when in times if when < end]
        assert len(await read_rows(stream, where(key=times[0].date()))) == 24
        assert len(await read_rows(stream, where(event_time_from=times[-2]))) == 2

    run(scenario())


def test_days_that_no_microseconds_reach_lie_at_the_end_of_all_times() -> None:
    """A date has 32 bits of days, which are more than 64 bits of microseconds."""

    async def scenario() -> None:
        schema = pa.schema({"day": pa.date32()})
        stream = await StreamCatalog(FakeLedgers()).create("s", schema, time_column="day")
        for days in ([2**31 - 1, None], [-(2**31), 20_000], [106_751_992, -106_751_992]):
            column = pa.array(days, pa.int32()).cast(pa.date32())
            await stream.append(pa.table({"day": column}))
        year = date(2026, 1, 1)
        for asked, wanted in (
            (where(event_time_from=year), [2**31 - 1, 106_751_992]),
            (where(event_time_until=year), [-(2**31), 20_000, -106_751_992]),
        ):
            found = [
                day
                async for batch in stream.read(where=asked)
                for day in batch.column("day").cast(pa.int32()).to_pylist()
            ]
            assert found == wanted

    run(scenario())


@pytest.mark.parametrize("zone", ["UTC", None])
@pytest.mark.parametrize(
    "key",
    [
        "2026-07-01T12:00:00",
        "2026-07-01T12:00:00Z",
        "2026-07-01T14:00:00+02:00",
        datetime(2026, 7, 1, 12),
        datetime(2026, 7, 1, 12, tzinfo=UTC),
    ],
)
def test_time_as_key_is_utc_unless_it_says_otherwise(key: str | datetime, zone: str | None) -> None:
    async def scenario() -> None:
        columns: dict[str, pa.DataType] = {"at": pa.timestamp("us", tz=zone), "n": pa.int64()}
        schema = pa.schema(columns)
        stream = await StreamCatalog(FakeLedgers()).create("s", schema, key_columns=["at"])
        begin = datetime(2026, 7, 1, tzinfo=UTC if zone else None)
        for hour in range(24):
            rows: dict[str, list[Any]] = {"at": [begin + timedelta(hours=hour)], "n": [hour]}
            await stream.append(pa.table(rows, schema))
        assert [row["n"] for row in await read_rows(stream, where(key=key))] == [12]

    run(scenario())


def test_bounds_of_a_number_as_key_skip_segments_with_too_many_keys_for_a_filter() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create(
            "s", pa.schema([("n", pa.int64())]), key_columns=["n"]
        )
        for first in (0, 5000):
            await stream.append(pa.table({"n": pa.array(range(first, first + 5000), pa.int64())}))
        known = [(await stream.commit(number)).segments[0].statistics for number in (0, 1)]
        assert known == [Statistics(keys=(0, 4999)), Statistics(keys=(5000, 9999))]
        assert await read_rows(stream, where(key=7000)) == [{"n": 7000}]
        assert await read_rows(stream, where(key="7000")) == [{"n": 7000}]

    run(scenario())


def test_folded_filter_still_has_every_key() -> None:
    hashes = {key_hash([b"key", number]) for number in range(600)}
    whole = of_entries([EntryFacts(None, None, frozenset(hashes))])
    assert whole is not None
    assert len(whole.key_filter) == 1024
    absent = [key_hash([b"other", number]) for number in range(2000)]
    assert sum(whole.may_have_key(each) for each in absent) < 100, "one in forty"
    (smaller, *others) = fitted([whole] * 8, 4096)
    assert smaller is not None
    assert [smaller] * 7 == others
    assert smaller.key_filter == folded(whole.key_filter)
    assert all(smaller.may_have_key(each) for each in hashes)
    assert fitted([whole] * 500, 4096) == [None] * 500, "a filter that says yes to all is dropped"


def test_commit_with_many_writers_keeps_its_filters_within_the_bound() -> None:
    facts = EntryFacts((1, 2), None, frozenset(key_hash([n]) for n in range(2000)))
    fitting = fitted([of_entries([facts])] * 100)
    assert sum(len(each.key_filter) for each in fitting if each) <= 4096
    assert all(each is not None and each.times == (1, 2) for each in fitting)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"time_column": "user"}, "time column 'user' is string"),
        ({"time_column": "when"}, "no such column"),
        ({"key_columns": ["user", "USER"]}, "named twice"),
        ({"key_columns": ["x"]}, "key column 'x' is double"),
    ],
)
def test_column_that_cannot_be_declared_is_refused(declared: dict[str, Any], message: str) -> None:
    schema = pa.schema([*SCHEMA, ("x", pa.float64())])
    with pytest.raises(ConfigurationError, match=message):
        run(StreamCatalog(FakeLedgers()).create("s", schema, **declared))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (where(event_time_from=BEGIN), "declares no time column"),
        (where(event_time_until=BEGIN), "declares no time column"),
        (where(key={"user": "a", "at": "b"}), "names each of its key columns once"),
        (where(key={"day": "2026-01-01"}), "names each of its key columns once"),
        (where(key={"user": "a", "day": "someday"}), "'day' is date32.*which 'someday' is not"),
        (where(key="a"), "names each of its key columns once"),
    ],
)
def test_condition_that_does_not_fit_the_stream_is_refused(asked: Where, message: str) -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA, key_columns=["user", "day"])
        await read_rows(stream, asked)

    with pytest.raises(ConfigurationError, match=message):
        run(scenario())


def test_declared_columns_need_a_program_that_knows_them() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA, time_column="at")
        data = codec.encode_config(stream.config)
        assert b'"v":5' in data
        assert codec.decode_config(data, "p") == stream.config
        for damaged in (
            data.replace(b'"v":5', b'"v":4'),
            data.replace(b'"level":2', b'"level":5'),
            data.replace(b'"time_column":"at"', b'"time_column":"user"'),
        ):
            with pytest.raises(CorruptionError):
                codec.decode_config(damaged, "p")

    run(scenario())


def test_damaged_statistics_are_refused() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA, time_column="at")
        commit = await stream.append(rows_of(random.Random(1), 50))
        data = codec.encode_commit(commit)
        again, _ = codec.decode_commit(data, commit.number, "p")
        assert again == commit
        start = data.index(b'"times":[') + 9
        with pytest.raises(CorruptionError, match="above the largest"):
            codec.decode_commit(data[:start] + b"9" + data[start:], commit.number, "p")

    run(scenario())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_segment_with_an_entry_of_too_many_keys_may_have_any_key(place: int) -> None:
    """A filter of the other entries alone would leave the rows of that one out."""
    facts = [EntryFacts(None, (1, 9), frozenset(key_hash([n]) for n in (1, 2)))] * 2
    facts.insert(place, EntryFacts(None, (1, 9), None))
    found = of_entries(facts)
    assert found is not None and not found.key_filter


@pytest.mark.parametrize("key", [b"k\xff", "k", b""])
def test_key_of_bytes_may_be_asked_for_as_bytes_or_text(key: str | bytes) -> None:
    async def scenario() -> None:
        columns: dict[str, pa.DataType] = {"key": pa.binary(), "n": pa.int64()}
        schema = pa.schema(columns)
        stream = await StreamCatalog(FakeLedgers()).create("s", schema, key_columns=["key"])
        for n, value in enumerate([b"k", b"k\xff", b"", None]):
            rows: dict[str, list[Any]] = {"key": [value], "n": [n]}
            await stream.append(pa.table(rows, schema))
        wanted = {b"k\xff": 1, "k": 0, b"": 2}[key]
        assert [row["n"] for row in await read_rows(stream, where(key=key))] == [wanted]

    run(scenario())


@pytest.mark.parametrize(
    ("when", "hours"),
    [
        (datetime(2026, 1, 2, 3), 27),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), 27),
        (datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))), 25),
        (datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=-5))), 32),
        (date(2026, 1, 2), 24),
    ],
)
def test_time_of_a_condition_is_utc_unless_it_says_otherwise(
    when: datetime | date, hours: int
) -> None:
    begin_us = round(BEGIN.timestamp()) * 1_000_000
    expected = begin_us + hours * 3600 * 1_000_000
    assert where(event_time_from=when) == Where(start_us=expected)
    assert where(event_time_until=when) == Where(end_us=expected)
