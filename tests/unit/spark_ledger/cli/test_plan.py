"""``ledger streams plan``, over a stream in memory."""

from __future__ import annotations

import json

import pytest

from spark_ledger.stream.blocking import Stream
from spark_ledger.stream.plan import read_plan
from tests.unit.spark_ledger.cli.conftest import Run
from tests.unit.spark_ledger.cli.test_retention import stream
from tests.unit.spark_ledger.stream.world import table

__all__ = ["stream"]


def test_plan_shows_rows_bytes_fragments_and_bookies(stream: Stream, run: Run) -> None:
    outcome = run("streams", "plan", "s", "--partitions", "3")
    assert outcome.status == 0, outcome
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["partition", "from", "rows", "size", "fragments", "asks", "first"]
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["0", "0:0:0", "2"],
        ["1", "2:0:0", "2"],
        ["2", "4:0:0", "2"],
    ]
    assert all("100:0" in line for line in lines[1:4]), "the fragment"
    assert "bookie" in lines[5] and len(lines) > 6


def test_plan_as_json_adds_up(stream: Stream, run: Run) -> None:
    outcome = run("streams", "plan", "s", "--partitions", "2", "--start", "1", "--json")
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["partition"] for row in rows] == [0, 1]
    assert sum(row["rows"] for row in rows) == 5
    assert rows[0]["start"] == {"segment": 1, "entry": 0, "slot": 0}
    assert (rows[0]["commits"][0], rows[-1]["commits"][-1]) == (1, 5)
    for row in rows:
        assert sum(row["bookies"].values()) == row["bytes"]
        assert sum(part["bytes"] for part in row["fragments"]) == row["bytes"]


def test_plan_of_a_long_read_counts_by_commits(
    stream: Stream, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_plan, "SEGMENTS_PLANNED_MAX", 3)
    (row,) = [json.loads(line) for line in run("streams", "plan", "s", "--json").out.splitlines()]
    assert (row["rows"], row["commits"]) == (6, [0, 5])
    ((_, asked),) = row["bookies"].items()
    assert asked == row["bytes"], "reckoned from the first commit"
    assert "of commits 0..5" in run("streams", "plan", "s").out


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [("0", "6:0:4", 10), ("6:0:4", "13", 12), ("6:0:2", "13:0:4", 18), ("5", "12", 16)],
)
def test_plan_of_a_long_read_counts_what_it_has_of_its_first_and_last_commit(
    stream: Stream, run: Run, monkeypatch: pytest.MonkeyPatch, start: str, end: str, rows: int
) -> None:
    """And whole entries as bytes, as other plans do."""
    for number in (10, *range(20, 26), 30):
        stream.append(table(number, 10 if number in (10, 30) else 1))
    words = ("streams", "plan", "s", "--start", start, "--end", end, "--json")
    (short,) = [json.loads(line) for line in run(*words).out.splitlines()]
    monkeypatch.setattr(read_plan, "SEGMENTS_PLANNED_MAX", 3)
    (row,) = [json.loads(line) for line in run(*words).out.splitlines()]
    assert (row["rows"], row["bytes"]) == (short["rows"], short["bytes"])
    assert row["rows"] == rows
    assert sum(row["bookies"].values()) == row["bytes"]


def test_plan_of_packed_commits_names_the_bookies_of_the_pack(stream: Stream, run: Run) -> None:
    assert run("streams", "optimize", "s", "--min-entries", "6").status == 0
    (pack,) = stream.retention.packs().packs
    rows = [
        json.loads(line)
        for line in run("streams", "plan", "s", "--partitions", "2", "--json").out.splitlines()
    ]
    assert len(rows) == 2
    for row in rows:
        assert {part["ledger_id"] for part in row["fragments"]} == {pack.ledger_id}
        assert row["bookies"]
    assert sum(part["bytes"] for row in rows for part in row["fragments"]) <= pack.size_bytes


def test_plan_of_nothing_and_of_nonsense(stream: Stream, run: Run) -> None:
    assert run("streams", "plan", "s", "--start", "latest", "--json").out == ""
    assert run("streams", "plan", "s", "--start", "latest").status == 0
    assert run("streams", "plan", "s", "--end", "99").status == 2
    assert run("streams", "plan", "s", "--max-bytes", "1k").status == 2
    assert run("streams", "plan", "s", "--partitions", "0").status == 2
