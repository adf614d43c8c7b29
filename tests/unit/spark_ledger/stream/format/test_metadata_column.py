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
