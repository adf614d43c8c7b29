"""The ``_ledger`` column: the positions of rows, however many a batch has."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from spark_ledger.stream.format import metadata_column
from spark_ledger.stream.format.metadata_column import (
    PositionedBatch,
    ledger_array,
    ledger_type,
    numbers,
)
from spark_ledger.types import Dlsn, LedgerId


def test_numbers_are_right_whatever_was_asked_for_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_column, "_KEPT_MIN", 8)
    monkeypatch.setattr(metadata_column, "_kept", None)
    for first, end in ((0, 0), (0, 3), (7, 8), (8, 9), (3, 40), (39, 41), (100, 103), (0, 500)):
        found = numbers(first, end)
        assert found.to_pylist() == list(range(first, end)) and found.type == pa.int64()


def test_numbers_of_far_rows_keep_no_array_of_all_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_column, "_KEPT_MIN", 8)
    monkeypatch.setattr(metadata_column, "_KEPT_MAX", 16)
    monkeypatch.setattr(metadata_column, "_kept", None)
    for first, end in ((3, 16), (3, 17), (1000, 1005), (5, 2), (1, 21), (0, 20), (19, 22)):
        found = numbers(first, max(first, end))
        assert found.to_pylist() == list(range(first, end)) and found.type == pa.int64()
        assert metadata_column._kept is not None and len(metadata_column._kept) <= 32


@pytest.mark.parametrize("stream", [None, "flights"])
def test_column_has_the_position_of_each_row(stream: str | None) -> None:
    batch = pa.record_batch({"n": [5, 6, 7]})
    positioned = PositionedBatch(Dlsn(4, 3, 20_000), LedgerId(9), 8, 1_500_000_000_123, batch)
    array = ledger_array(positioned, stream)
    assert array.type == ledger_type(names_stream=stream is not None)
    assert array.null_count == 0 and not any(field.nullable for field in array.type)
    at = datetime.datetime(2017, 7, 14, 2, 40, 0, 123_000, tzinfo=datetime.UTC)
    rows = pa.record_batch([array], names=["l"]).column(0)
    assert rows.to_pylist() == [
        {
            **({} if stream is None else {"stream": stream}),
            "segment": 4,
            "entry": 3,
            "slot": 20_000 + n,
            "ledger_id": 9,
            "commit": 8,
            "commit_time": at,
        }
        for n in range(3)
    ]


def test_rows_that_are_wanted_are_those_of_the_batch_that_was_made_from_it() -> None:
    batch, other = pa.record_batch({"n": [5, 6, 7]}), pa.record_batch({"m": ["a", "b", "c"]})
    whole = PositionedBatch(Dlsn(0), LedgerId(9), 0, 0, batch)
    assert whole.wanted() is batch and whole.wanted(other) is other
    some = whole._replace(matching=pa.array([True, False, True]))
    assert some.wanted().to_pydict() == {"n": [5, 7]}
    assert some.wanted(other).to_pydict() == {"m": ["a", "c"]}


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_parts_have_the_places_and_the_rows_of_the_whole(rows: int, is_filtered: bool) -> None:
    batch = pa.record_batch({"n": range(7)})
    matching = pa.array([n % 3 == 1 for n in range(7)]) if is_filtered else None
    whole = PositionedBatch(Dlsn(4, 3, 20), LedgerId(9), 8, 1000, batch, 500, matching)
    parts = list(whole.in_parts(rows))
    assert max(part.batch.num_rows for part in parts) <= rows

    def described(part: PositionedBatch) -> pa.Table:
        offsets = pa.array(range(part.row, part.row + part.batch.num_rows))
        columns = [*part.batch.columns, ledger_array(part), offsets]
        made = pa.RecordBatch.from_arrays(columns, ["n", "_ledger", "offset"])
        return pa.Table.from_batches([part.wanted(made)])

    found = pa.concat_tables([described(part) for part in parts])
    assert found.equals(described(whole)) and found.num_rows == (2 if is_filtered else 7)
