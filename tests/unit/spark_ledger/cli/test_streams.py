"""``ledger streams``: positions and rows as text. Whole commands run in tests/integration."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_ledger.cli.streams import CELL_CHARS_MAX, cell_text, print_rows
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient, FakeStream


@pytest.fixture
def stream(client: FakeClient) -> FakeStream:
    batches = [
        pa.RecordBatch.from_pydict({"id": [1, 2], "raw": [b"a", b"\xff"]}),
        pa.RecordBatch.from_pydict({"id": [3], "raw": [None]}),
    ]
    client.streams["s"] = FakeStream(batches)
    return client.streams["s"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("3", (3, 0, 0)),
        ("3:4", (3, 4, 0)),
        ("3:4:5", (3, 4, 5)),
        ('{"segment": 3, "slot": 5}', (3, 0, 5)),
    ],
)
def test_positions(stream: FakeStream, run: Run, text: str, expected: object) -> None:
    assert run("streams", "read", "s", "--start", text).status == 0
    assert stream.asked == [(expected, "latest")]


@pytest.mark.parametrize(
    "text",
    ["", "first", "-1", "1:2:3:4", '{"entry": 3}', '{"seg": 1}', '{"segment": -1}', "9" * 5000],
)
def test_wrong_positions(stream: FakeStream, run: Run, text: str) -> None:
    outcome = run("streams", "read", "s", "--end", text)
    assert outcome.status == 2
    assert "earliest" in outcome.err
    assert stream.asked == []


def test_rows_as_json_lines(stream: FakeStream, run: Run) -> None:
    outcome = run("streams", "read", "s", "--json")
    assert [json.loads(line) for line in outcome.out.splitlines()] == [
        {"id": 1, "raw": {"payload": "a"}},
        {"id": 2, "raw": {"payload_base64": "/w=="}},
        {"id": 3, "raw": None},
    ]


@pytest.mark.parametrize(("limit", "ids"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (9, [1, 2, 3])])
def test_limit(stream: FakeStream, run: Run, limit: int, ids: list[int]) -> None:
    outcome = run("streams", "read", "s", "--json", "--limit", str(limit))
    assert [json.loads(line)["id"] for line in outcome.out.splitlines()] == ids


def test_table_has_one_header_a_batch(stream: FakeStream, run: Run) -> None:
    lines = run("streams", "read", "s").out.splitlines()
    assert [line.split()[0] for line in lines] == ["id", "1", "2", "id", "3"]


def test_markup_in_data_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_rows([pa.RecordBatch.from_pydict({"a": ["[red]x[/red]"]})], as_json=False) == 1
    assert "[red]x[/red]" in capsys.readouterr().out


def test_long_cells_are_cut() -> None:
    assert len(cell_text("x" * 1000)) == CELL_CHARS_MAX
    assert cell_text(None) == ""


def test_unknown_stream_names_the_next_step(client: FakeClient, run: Run) -> None:
    outcome = run("streams", "read", "nothing")
    assert outcome.status == 1
    assert "ledger streams list" in outcome.err


def test_bad_schema_creates_nothing(client: FakeClient, run: Run) -> None:
    outcome = run("streams", "create", "s", "--schema", "id bigit")
    assert outcome.status == 2
    assert "bigit" in outcome.err
    assert client.uris == []
