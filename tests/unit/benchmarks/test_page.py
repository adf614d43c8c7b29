"""The page of figures: what stands around them stays, ratios are of the same work."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.curves import cases
from benchmarks.page import BEGIN, END, write_page
from benchmarks.rows import Row, System
from spark_ledger.errors import ConfigurationError


def _row(system: System, per_second: float, in_flight: int, ledgers: int | None = None) -> Row:
    return Row(
        bench="raw",
        system=system,
        op="append",
        entry_bytes=1024,
        in_flight=in_flight,
        ledgers=ledgers,
        per_second=per_second,
        p50_ms=None if ledgers else 2.0,
    )


ROWS = [
    _row("spark-ledger", 300.0, 1),
    _row("kafka", 100.0, 1),
    _row("spark-ledger", 5000.0, 10),
    _row("spark-ledger", 900.0, 10, ledgers=100),
]


def test_page_written_again_keeps_its_text_and_replaces_its_figures(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text(f"# Speed\n{BEGIN}\nold\n{END}\nWhy.\n")
    for _ in range(2):
        write_page(ROWS, page, "bench it")
    text = page.read_text()
    assert text.startswith("# Speed\n") and text.endswith(f"{END}\nWhy.\n") and "old" not in text
    assert text.count("`bench it`") == 1
    assert "| append | 1 KiB | 1 |  | 300/s, p50 2 ms | 100/s, p50 2 ms (3.0x) |" in text
    assert "| append | 1 KiB | 10 |  | 5,000/s, p50 2 ms |  |" in text
    assert "| append | 1 KiB | 10 | 100 | 900/s |  |" in text
    for name in ("latency", "ledgers"):
        assert f"![{name}](speed/{name}.png)" in text
        assert (tmp_path / "speed" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "![read]" not in text  # nothing was read


def test_page_has_both_ways_to_read_beside_the_one_of_a_peer(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    ways: list[tuple[System, str, float]] = [
        ("spark-ledger", "read", 300.0),
        ("spark-ledger", "read batches", 600.0),
        ("kafka", "read", 200.0),
    ]
    rows = [
        Row(bench="raw", system=system, op=op, entry_bytes=1024, per_second=per_second)
        for system, op, per_second in ways
    ]
    write_page(rows, page, "bench it")
    text = page.read_text()
    assert "| read | 1 KiB |  |  | 300/s | 200/s (1.5x) |" in text
    assert "| read batches | 1 KiB |  |  | 600/s | 200/s (3.0x) |" in text


def test_page_without_marks_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n")
    with pytest.raises(ConfigurationError, match="has no lines <!-- figures: begin"):
        write_page(ROWS, page, "bench it")
    assert page.read_text() == "# Speed\n"


def test_cases_of_the_curves_are_measured_once_each() -> None:
    found = [(case.entry_bytes, case.in_flight) for case in cases(quick=True)]
    assert len(found) == len(set(found)) and (1024, 2000) in found and (1024, 1) in found
