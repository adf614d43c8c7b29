"""Offsets: one spelling for a position, and a clear error for a foreign checkpoint."""

from __future__ import annotations

import json

import pytest

from connector.read.offsets import (
    LastSegment,
    last_segment,
    ledger_offset,
    ledger_position,
    named_start,
    naming_start,
    offsets_by_stream,
    several_offset,
    stream_offset,
    stream_position,
)
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import Dlsn, EntryId, LedgerId


def test_offset_json_has_sorted_keys() -> None:
    plain, in_an_entry = stream_offset(Dlsn(3, 5), "ab"), stream_offset(Dlsn(3, 5, 7), "ab")
    assert json.dumps(plain) == '{"entry": 5, "segment": 3, "stream": "ab"}'
    assert json.dumps(in_an_entry) == '{"entry": 5, "segment": 3, "slot": 7, "stream": "ab"}'
    assert json.dumps(ledger_offset(LedgerId(9), EntryId(4))) == '{"entry": 4, "ledger": 9}'


@pytest.mark.parametrize("position", [Dlsn(0), Dlsn(3, 5), Dlsn(3, 5, 7)])
def test_stream_offset_round_trip_through_json(position: Dlsn) -> None:
    offset = json.loads(json.dumps(stream_offset(position, "ab")))
    assert stream_position(offset) == (position, "ab")


def test_offset_names_the_segment_before_it_if_there_is_one() -> None:
    last = LastSegment(7, EntryId(4), LedgerId(9))
    text = json.dumps(stream_offset(Dlsn(3, 5), "ab", last))
    assert text == (
        '{"entry": 5, "last": {"commit": 7, "entry": 4, "ledger": 9}, "segment": 3, "stream": "ab"}'
    )
    assert stream_position(json.loads(text)) == (Dlsn(3, 5), "ab")
    assert last_segment(json.loads(text)) == last
    assert last_segment(stream_offset(Dlsn(3, 5), "ab")) is None


def test_offset_names_the_start_of_a_first_micro_batch() -> None:
    plain = stream_offset(Dlsn(3, 5, 7), "ab")
    text = json.dumps(naming_start(plain, Dlsn(2)))
    assert text == '{"entry": 5, "segment": 3, "slot": 7, "start": 2, "stream": "ab"}'
    assert stream_position(json.loads(text)) == (Dlsn(3, 5, 7), "ab")
    assert named_start(json.loads(text)) == Dlsn(2)
    assert named_start(naming_start(plain, Dlsn(0))) == Dlsn(0)
    assert named_start(plain) is None


def test_stream_offset_without_id_has_an_empty_id() -> None:
    assert stream_position({"entry": 5, "segment": 3}) == (Dlsn(3, 5), "")


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"entry": 1},
        {"entry": 1, "segment": 2, "x": 3},
        {"entry": "1", "segment": 2},
        {"entry": 1, "segment": 2, "stream": 3},
        {"entry": -1, "segment": 2},
        {"entry": 1, "segment": 2, "slot": -1},
        {"entry": 1, "segment": 2, "start": -1},
        {"entry": 1, "segment": 2, "start": {"segment": 1}},
        {"entry": 4, "ledger": 9},
        {"entry": 1, "segment": 2, "last": 5},
        {"entry": 1, "segment": 2, "last": {"commit": 1, "entry": 1}},
        {"entry": 1, "segment": 2, "last": {"commit": 1, "entry": 1, "ledger": -1}},
        {"entry": 1, "segment": 2, "last": {"commit": 1, "entry": 1, "ledger": "1"}},
        {"entry": 1, "segment": 2, "last": {"commit": 1, "entry": 1, "ledger": 1, "x": 1}},
    ],
)
def test_stream_position_of_foreign_offset_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="use a new checkpoint"):
        stream_position(offset)


def test_offset_of_several_streams_has_one_spelling_whoever_was_served_first() -> None:
    """Spark compares texts: another order would be news, and a micro-batch without rows."""
    offsets = {name: stream_offset(Dlsn(1), name) for name in "ab"}
    turned = {name: offsets[name] for name in "ba"}
    assert json.dumps(several_offset(offsets)) == json.dumps(several_offset(turned))


def test_offsets_of_several_streams_come_back_as_they_were() -> None:
    offsets = {name: stream_offset(Dlsn(1, 2, 3), name) for name in "ab"}
    back = json.loads(json.dumps(several_offset(offsets)))
    assert offsets_by_stream(back) == offsets
    assert offsets_by_stream(offsets["a"]) is None, "it is of one stream"


@pytest.mark.parametrize(
    "offset",
    [
        {"streams": 5},
        {"streams": {"a": 5}},
        {"streams": {"a": {"entry": 0, "segment": 0}, "b": {"entry": 0, "ledger": 9}}},
        {"streams": {"a": {"entry": 0, "segment": -1}}},
        {"streams": {}, "x": 1},
        {"entry": 4, "ledger": 9},
    ],
)
def test_offset_of_no_streams_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="use a new checkpoint"):
        offsets_by_stream(offset)


def test_ledger_position_of_foreign_offset_is_refused() -> None:
    assert ledger_position({"entry": 4, "ledger": 9}, LedgerId(9)) == 4
    with pytest.raises(ConfigurationError, match="belongs to ledger 8"):
        ledger_position({"entry": 4, "ledger": 8}, LedgerId(9))
    with pytest.raises(ConfigurationError, match="use a new checkpoint"):
        ledger_position({"entry": 4, "segment": 9}, LedgerId(9))
