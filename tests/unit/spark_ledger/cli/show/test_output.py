"""What commands print: times in UTC wherever they run, sizes, rows up to a limit and no further."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_ledger.cli.ledgers import pieces
from spark_ledger.cli.show.output import payload_fields, print_table, size_text, time_text
from spark_ledger.cli.streams import print_rows
from spark_ledger.stream.model import Head, Retention, StreamConfig
from spark_ledger.stream.retention.handle import Extent
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.fakes import FakeClient, FakeStream


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Pacific/Kiritimati"])
def test_times_are_shown_in_utc_in_every_zone(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        found = time_text(1767225599999), time_text(1751328000000), time_text(0)
    time.tzset()
    assert found == ("2025-12-31 23:59:59Z", "2025-07-01 00:00:00Z", "")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 40, "1.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes_change_their_unit_at_its_multiple(size: int, text: str) -> None:
    assert size_text(size) == text


def test_payloads_are_text_or_base64() -> None:
    assert payload_fields("ü".encode()) == {"payload": "ü"}
    assert payload_fields(b"\xff") == {"payload_base64": "/w=="}


WHY = "ZooKeeper does not hold the last note of this bookie, so nothing is collected"


def test_table_on_a_narrow_terminal_puts_its_sentences_over_lines_and_cuts_no_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_table(("bookie", "outcome", "why..."), [("bookie-17", "ended early", WHY)])
    out = capsys.readouterr().out
    assert "bookie-17" in out and "ended early" in out and "…" not in out
    body = out.splitlines()[1:]  # the title has escapes for bold letters
    assert len(body) > 1 and max(map(len, body)) <= 60


def test_table_in_a_file_has_each_row_in_one_line_whatever_its_length(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("bookie", "why..."), [("bookie-17", WHY * 4)])
    assert capsys.readouterr().out.splitlines()[1].rstrip() == f"bookie-17  {WHY * 4}"


@pytest.mark.parametrize(("limit", "batches_asked"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_rows_end_at_the_limit_and_no_batch_is_waited_for(
    capsys: pytest.CaptureFixture[str], limit: int, batches_asked: int
) -> None:
    asked: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 100, 2):
            asked.append(first)
            yield pa.record_batch({"n": [first, first + 1]})

    assert print_rows(batches(), as_json=True, limit=limit) == limit
    assert capsys.readouterr().out.splitlines() == [f'{{"n":{n}}}' for n in range(limit)]
    assert len(asked) == batches_asked


def test_lines_lose_their_ends_and_nothing_else() -> None:
    source = io.BytesIO(b" a \t\r\nb \n\n\x0c\nlast ")
    assert list(pieces(source, None)) == [b" a \t", b"b ", b"", b"\x0c", b"last "]


def test_show_asks_for_no_commit_that_was_truncated(client: FakeClient, run: Run) -> None:
    class Stream(FakeStream):
        config = StreamConfig(name="s", stream_id="id", schemas=(pa.schema({"a": pa.int64()}),))

        @property
        def retention(self) -> Stream:
            return self

        def extent(self) -> Extent:
            head = Head(stream_id="id", next_commit=12, next_segment=12, earliest_commit=9)
            return Extent(head, Retention(), (), 0, 0, 3, 30, 9, 90, 0)

        def commits(self, first: int, end: int) -> list[object]:
            self.asked.append((first, end))
            return []

    stream = client.streams["s"] = Stream([])
    assert run("streams", "show", "s").status == 0
    assert run("streams", "show", "s", "--commits", "2").status == 0
    assert stream.asked == [(9, 12), (10, 12)]
