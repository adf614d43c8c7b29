"""``ledger streams``: positions and rows as text. Whole commands run in tests/integration."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_ledger.cli.show.cells import CELL_CHARS_MAX, cell_text
from spark_ledger.cli.streams import print_rows, stream_fields
from spark_ledger.stream.model import Head, StreamConfig
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


def test_table_has_one_header_over_all_batches(stream: FakeStream, run: Run) -> None:
    lines = run("streams", "read", "s").out.splitlines()
    assert [line.split()[0] for line in lines] == ["id", "1", "2", "3"]


def test_columns_of_later_batches_are_below_those_of_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    batches = [pa.record_batch({"a": [text], "b": [1]}) for text in ("xxx", "y", "zzzzz", "q")]
    assert print_rows(batches, as_json=False) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["a    b", "xxx  1", "y    1", "zzzzz  1", "q      1"]


def test_stream_is_shown_with_the_id_that_a_query_s_progress_names() -> None:
    config = StreamConfig("s", "6f1c", (pa.schema({"a": pa.int64()}),))
    assert stream_fields(config, Head("6f1c"), [])["stream_id"] == "6f1c"


def test_markup_in_data_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_rows([pa.RecordBatch.from_pydict({"a": ["[red]x[/red]"]})], as_json=False) == 1
    assert "[red]x[/red]" in capsys.readouterr().out


def test_a_row_is_one_line_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    batch = pa.record_batch({"a": ["x\ny", "\x1b[31m", "東京", ""], "b": [1, 22, 3, None]})
    assert print_rows([batch], as_json=False) == 4
    lines = capsys.readouterr().out.split("\n")
    assert lines == ["a         b", r"x\ny      1", r"\x1b[31m  22", "東京      3", "", ""]


def test_long_cells_are_cut() -> None:
    assert len(cell_text("x" * 1000)) == CELL_CHARS_MAX
    assert cell_text(None) == ""


MICROS = pa.timestamp("us")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([b"caf\xe9"]).view(pa.string()), "caf\ufffd"),
        (pa.array([1 << 62], MICROS), "4611686018427387904 us since 1970"),
        (pa.array([-(1 << 62)], pa.timestamp("us", "UTC")), "-4611686018427387904 us since 1970"),
        (pa.array([(1 << 31) - 1], pa.date32()), "2147483647 days since 1970"),
        (
            pa.array([[1 << 62, None]], pa.list_(MICROS)),
            ["4611686018427387904 us since 1970", None],
        ),
        (
            pa.array([[("k", 1 << 62)]], pa.map_(pa.string(), MICROS)),
            [["k", "4611686018427387904 us since 1970"]],
        ),
        (pa.array([float("nan")]), "NaN"),
        (pa.array([[float("-inf"), 1.5]]), ["-Infinity", 1.5]),
        (
            pa.array([{"raw": b"\xff", "text": b"t"}]),
            {"raw": {"payload_base64": "/w=="}, "text": {"payload": "t"}},
        ),
    ],
)
def test_values_without_python_or_json_form_are_printed_as_text(
    capsys: pytest.CaptureFixture[str], column: pa.Array[pa.Scalar[pa.DataType]], expected: object
) -> None:
    batch = pa.record_batch({"x": column, "n": [7]})
    assert print_rows([batch], as_json=True) == 1

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    line = capsys.readouterr().out
    assert json.loads(line, parse_constant=refuse) == {"x": expected, "n": 7}
    assert print_rows([batch], as_json=False) == 1
    assert "7" in capsys.readouterr().out


def test_unknown_stream_names_the_next_step(client: FakeClient, run: Run) -> None:
    outcome = run("streams", "read", "nothing")
    assert outcome.status == 1
    assert "ledger streams list" in outcome.err


def test_bad_schema_creates_nothing(client: FakeClient, run: Run) -> None:
    outcome = run("streams", "create", "s", "--schema", "id bigit")
    assert outcome.status == 2
    assert "bigit" in outcome.err
    assert client.uris == []
