"""The node of holds: what is written is read, and nothing that no program writes."""

from __future__ import annotations

import json

import pytest

from spark_ledger.errors import CorruptionError
from spark_ledger.stream.retention.format import decode_holds, encode_holds
from spark_ledger.stream.retention.rules import Hold
from spark_ledger.types import Dlsn

LATER = Hold("b", 4, Dlsn(9, 8, 7), 60, 1000, 2000, 50)
FIRST = Hold("a", 0, Dlsn(0, 0, 0), 0, 5, 6)
ITEM = {
    "name": "b",
    "commit": 4,
    "position": [9, 8, 7],
    "bytes_before": 60,
    "made_ms": 1000,
    "expires_ms": 2000,
    "bytes_max": 50,
}


def test_holds_are_read_as_written_by_name() -> None:
    """What is stored stays readable: these names and values do not change."""
    data = encode_holds([LATER, FIRST])
    assert json.loads(data)["holds"][1] == ITEM
    assert decode_holds(data, "p") == (FIRST, LATER)
    assert decode_holds(encode_holds([]), "p") == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit": -1}, "hold 'b': negative number"),
        ({"bytes_before": -1}, "hold 'b': negative number"),
        ({"position": [-1, 8, 7]}, "hold 'b': negative number"),
        ({"position": [9, -1, 7]}, "hold 'b': negative number"),
        ({"position": [9, 8, -1]}, "hold 'b': negative number"),
        ({"position": [9, 8]}, "node p"),
        ({"name": "a"}, "two holds of one name"),
        ({"name": "a/b"}, "hold 'a/b'"),
        ({"expires_ms": 1000}, "hold 'b'"),
        ({"bytes_max": 0}, "hold 'b'"),
        ({"more": 1}, "node p"),
    ],
)
def test_hold_that_no_program_writes_is_refused(change: dict[str, object], message: str) -> None:
    node = json.loads(encode_holds([LATER, FIRST]))
    node["holds"][1] = {**ITEM, **change}
    with pytest.raises(CorruptionError, match=f"node p.*{message}|{message}"):
        decode_holds(json.dumps(node).encode(), "p")
