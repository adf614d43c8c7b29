"""``ledger streams append``, over a stream in memory: what is a row, what is committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from spark_ledger.cli import appending
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.portal import BlockingPortal
from spark_ledger.stream.blocking import Stream, StreamConnection
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers

COLUMNS: list[pa.Field[pa.DataType]] = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("name", pa.string()),
    pa.field("raw", pa.binary()),
    pa.field("small", pa.int32()),
    pa.field("price", pa.decimal128(10, 2)),
    pa.field("share", pa.float64()),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("local", pa.timestamp("us")),
    pa.field("ok", pa.bool_()),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("where", pa.struct([pa.field("city", pa.string())])),
    pa.field("counts", pa.map_(pa.string(), pa.int64())),
    pa.field("rough", pa.float32()),
]
SCHEMA = pa.schema(COLUMNS)


class Client(FakeLedgers):
    async def close(self) -> None:
        await self.store.close()


@pytest.fixture
def stream(client: FakeClient) -> Iterator[Stream]:
    """An empty stream ``s`` with a column of each kind."""
    with StreamConnection(BlockingPortal.get(), cast(LedgerClient, Client())) as connection:
        client.streams["s"] = connection.create_stream("s", SCHEMA)  # type: ignore[assignment]
        yield connection.stream("s")


def lines(*rows: dict[str, object]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


FULL = {
    "id": 1,
    "name": "grüße",
    "raw": {"payload_base64": "/w=="},
    "small": -5,
    "price": "12.50",
    "share": "NaN",
    "day": "2026-02-28",
    "at": "2026-02-28 12:00:00.000001+00:00",
    "local": "2026-02-28 12:00:00",
    "ok": True,
    "tags": ["a", None],
    "where": {"city": "Berlin"},
    "counts": [["x", 1]],
    "rough": 3.4028234663852886e38,  # the largest that is none of infinity
}


def test_what_read_prints_can_be_appended_and_is_the_same(stream: Stream, run: Run) -> None:
    assert run("streams", "append", "s", stdin=lines(FULL, {"id": 2})).status == 0
    printed = run("streams", "read", "s", "--json").out
    outcome = run("streams", "append", "s", stdin=printed.encode())
    assert outcome.out == "stream s: 2 rows in 1 commits\n"
    assert run("streams", "read", "s", "--json").out == printed * 2
    assert json.loads(printed.splitlines()[0]) == FULL


def test_all_rows_are_one_commit_or_as_many_as_asked_for(
    stream: Stream, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(appending, "_BLOCK_BYTES", 20)
    file = tmp_path / "rows"
    file.write_bytes(b"\n".join(b'{"id": %d}' % n for n in range(7)) + b"\n\n  \n")
    assert json.loads(run("streams", "append", "s", "--file", str(file), "--json").out) == {
        "stream": "s", "rows": 7, "commits": 1, "applied": True
    }  # fmt: skip
    outcome = run("streams", "append", "s", "--file", str(file), "--commit-rows", "3")
    assert outcome.out == "stream s: 7 rows in 3 commits\n"
    assert [stream.commit(n).rows for n in range(4)] == [7, 3, 3, 1]
    read = pa.Table.from_batches(list(stream.read()))
    assert read.column("id").to_pylist() == [*range(7), *range(7)]


def test_transaction_that_was_made_before_changes_nothing(stream: Stream, run: Run) -> None:
    once = ("streams", "append", "s", "--sink-id", "job", "--transaction", "4")
    assert run(*once, stdin=b'{"id": 1}').out == "stream s: 1 rows in 1 commits\n"
    again = run(*once, stdin=b'{"id": 1}')
    assert (again.status, again.out) == (0, "stream s: transaction 4 of job was there already\n")
    scripted = json.loads(run(*once, "--json", stdin=b'{"id": 1}').out)
    assert scripted == {"stream": "s", "rows": 0, "commits": 0, "applied": False}
    first = ("streams", "append", "s", "--sink-id", "other", "--transaction", "0")
    assert run(*first, stdin=b"").status == 0, "transactions count from 0"
    assert stream.head().rows == 1
    assert run(*once, "--commit-rows", "1").status == 2
    assert run("streams", "append", "s", "--sink-id", "job").status == 2


def test_numbers_of_a_rough_column_are_rounded_and_infinity_is_one_that_is_named(
    stream: Stream, run: Run
) -> None:
    values: list[object] = [0.1, 16777217, "-Infinity", "NaN"]
    rows: list[dict[str, object]] = [{"id": 1, "rough": value} for value in values]
    assert run("streams", "append", "s", stdin=lines(*rows)).status == 0
    printed = run("streams", "read", "s", "--json").out.splitlines()
    found = [json.loads(line)["rough"] for line in printed]
    assert found == [pytest.approx(0.1), 16777216, "-Infinity", "NaN"]


def test_empty_input_makes_no_commit(stream: Stream, run: Run) -> None:
    assert run("streams", "append", "s", stdin=b"\n").out == "stream s: 0 rows in 0 commits\n"
    assert stream.head().next_commit == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "no JSON object"),
        ("null", "no JSON object"),
        ('{"id": 1', "no JSON object"),
        ('{"id": 1} {"id": 2}', "no JSON object"),
        ("[" * 5000, "no JSON object"),
        ('{"idd": 1}', "unknown column 'idd'; there are id, name"),
        ('{"name": "x"}', "column 'id' is missing, and may not be null"),
        ('{"id": null}', "column 'id' is missing"),
        ('{"id": "1"}', "column 'id' is int64, which \"1\" is not"),
        ('{"id": 1.5}', "column 'id' is int64, which 1.5 is not"),
        ('{"id": true}', "column 'id' is int64, which true is not"),
        ('{"id": 1, "small": 5000000000}', "column 'small'"),
        ('{"id": 1, "rough": 3.41e38}', "column 'rough': 3.41e38 is beyond the range of float"),
        ('{"id": 1, "rough": -1e300}', "column 'rough': -1e300 is beyond the range of float"),
        ('{"id": 1, "rough": 1' + "0" * 39 + "}", "is beyond the range of float"),
        ('{"id": 1, "share": 1' + "0" * 400 + "}", "column 'share'"),
        ('{"id": 1, "price": "12.505"}', "column 'price'"),
        ('{"id": 1, "price": "x"}', "column 'price'"),
        ('{"id": 1, "day": "soon"}', "column 'day'"),
        ('{"id": 1, "local": "2026-02-28T12:00:00Z"}', "column 'local'"),
        ('{"id": 1, "raw": {"payload_base64": "?"}}', "column 'raw'"),
        ('{"id": 1, "tags": "a"}', "column 'tags' is list<element: string>"),
        ('{"id": 1, "where": {"town": "x"}}', "unknown column 'where.town'"),
        ('{"id": 1, "counts": [["x"]]}', "no pair"),
        ('{"id": 1, "counts": {"x": "y"}}', "column 'counts' is int64"),
        ('{"id": 1, "name": ["long ' + "x" * 100 + '"]}', "…"),
    ],
)
def test_line_that_is_no_row_is_named_and_nothing_is_appended(
    stream: Stream, run: Run, line: str, says: str
) -> None:
    outcome = run("streams", "append", "s", stdin=b'\n{"id": 1}\n' + line.encode() + b"\n")
    assert outcome.status == 2
    assert "line 3: " in outcome.err, "as editors count, with lines that are empty"
    assert says in " ".join(outcome.err.split())
    assert stream.head().next_commit == 0
