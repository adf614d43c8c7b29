"""Rows, rounds and the table: what is selected, written and compared."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.cases import Case, failover_case, throughput_cases
from benchmarks.cpu_time import BOOKIES, JVM, shares
from benchmarks.drivers import CpuTime, Line, Profiled, Writing, parse_lines
from benchmarks.rows import (
    NOOP,
    OURS,
    Round,
    Row,
    System,
    read_json,
    row_of_rounds,
    write_json,
)
from benchmarks.spans import FILE_VARIABLE, Span, span, spans_since
from benchmarks.spark_floor_job import calls_of
from benchmarks.spark_profile import profile_rows
from benchmarks.table import print_rows, ratio_of, size_text


def _rounds(*per_second: float) -> list[Round]:
    return [Round("append", int(speed), 1.0, p50_ms=1e3 / speed) for speed in per_second]


def _row(system: System, *per_second: float) -> Row:
    return row_of_rounds(
        _rounds(*per_second),
        bench="raw",
        system=system,
        entry_bytes=1000,
        in_flight=7,
        ensemble=(3, 3, 2),
    )


def test_our_row_is_the_median_round_and_a_peer_row_the_best() -> None:
    assert _row("spark-ledger", 100, 300, 200).per_second == 200
    assert _row("kafka", 100, 300, 200).per_second == 300


def test_median_of_an_even_number_of_rounds_is_the_worse_middle_one() -> None:
    assert _row("spark-ledger", 400, 300, 200, 100).per_second == 200


def test_row_has_the_latency_of_its_own_round() -> None:
    row = _row("spark-ledger", 100, 400, 200)
    assert row.p50_ms == 5.0
    assert row.mb_per_second == pytest.approx(0.2)


def test_median_of_failover_rounds_has_a_gap_and_no_speed() -> None:
    rounds = [Round("failover", 10, 1.0, longest_gap_ms=gap) for gap in (30.0, 10.0, 20.0)]
    row = row_of_rounds(rounds, bench="raw", system="spark-ledger", entry_bytes=1)
    assert row.longest_gap_ms == 20.0
    assert row.per_second is None and row.mb_per_second is None


def test_json_has_only_the_fields_that_are_set(tmp_path: Path) -> None:
    rows = [
        _row("spark-ledger", 100),
        row_of_rounds([Round("read", 10, 2.0)], bench="spark", system="kafka"),
    ]
    path = tmp_path / "rows.json"
    write_json(rows, path)
    assert json.loads(path.read_text()) == [
        {
            "bench": "raw",
            "system": "spark-ledger",
            "op": "append",
            "entry_bytes": 1000,
            "in_flight": 7,
            "ensemble": [3, 3, 2],
            "per_second": 100.0,
            "mb_per_second": 0.1,
            "p50_ms": 10.0,
        },
        {"bench": "spark", "system": "kafka", "op": "read", "per_second": 5.0},
    ]
    assert read_json(path) == rows


def test_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"bench": "raw", "system": "kafka", "op": "read", "speed": 1}]')
    with pytest.raises(msgspec.ValidationError, match="speed"):
        read_json(path)


def test_ratio_is_above_one_when_ours_is_better() -> None:
    assert ratio_of(_row("spark-ledger", 300), _row("kafka", 100)) == 3.0
    short = Row(bench="raw", system="spark-ledger", op="failover", longest_gap_ms=10.0)
    long = Row(bench="raw", system="kafka", op="failover", longest_gap_ms=40.0)
    assert ratio_of(short, long) == 4.0
    assert ratio_of(short, _row("kafka", 100)) is None


def test_the_table_compares_the_same_work_only() -> None:
    other = msgspec.structs.replace(_row("kafka", 1000), in_flight=8)
    rows = [_row("spark-ledger", 300), _row("bookkeeper", 100), other]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        print_rows(rows, console)
    text = console.export_text()
    ours = next(line for line in text.splitlines() if "spark-ledger" in line)
    assert "3.00" in ours
    assert "0.30" not in text


def test_the_table_has_a_row_for_every_system_and_ratios_beside_all_but_ours() -> None:
    systems = [system for system in get_args(System) if system != NOOP]
    rows = [_row(system, 100.0 * (number + 1)) for number, system in enumerate(systems)]
    text = io.StringIO()
    print_rows(rows, Console(file=text, width=200))
    for system in systems:
        assert system in text.getvalue()
    for number in range(1, len(systems)):
        assert f"{1 / (number + 1):.2f}" in text.getvalue()


def test_the_table_has_both_ways_to_read_beside_the_one_of_a_peer() -> None:
    ways: list[tuple[System, str, float]] = [
        ("spark-ledger", "read batches", 600.0),
        ("spark-ledger", "read", 300.0),
        ("kafka", "read", 200.0),
    ]
    rows = [
        Row(bench="raw", system=system, op=op, entry_bytes=1024, per_second=per_second)
        for system, op, per_second in ways
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    print_rows(rows, console)
    ours = [line for line in console.export_text().splitlines() if "spark-ledger" in line]
    assert ["1.50" in ours[0], "3.00" in ours[1]] == [True, True]


def test_case_roundtrips_through_the_command_line() -> None:
    for case in [*throughput_cases(quick=True), failover_case(quick=False)]:
        assert Case.from_arguments(case.arguments()) == case


def test_result_lines_are_found_in_a_driver_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "a warning\n"
        '{"op":"append","entries":5,"seconds":0.5,"p50_ms":null}\n'
        '{"writing":["bookie-1"]}\n'
        '{"cpu_of":"read","cpu_seconds":{"client":1.5}}\n'
        '{"something":"else"}\n'
        '{"op":"read","entr'
    )
    assert parse_lines(log) == [
        Round("append", 5, 0.5),
        Writing(["bookie-1"]),
        CpuTime("read", {"client": 1.5}),
    ]


def test_shares_add_up() -> None:
    assert shares({"a": 3.0, "b": 1.0}) == {"a": 0.75, "b": 0.25}
    assert shares({"a": 0.0}) == {}


def test_sizes_are_written_with_units() -> None:
    sizes = {None: "", 100: "100 B", 1024: "1 KiB", 65536: "64 KiB", 1 << 20: "1 MiB"}
    assert {size: size_text(size) for size in sizes} == sizes


def _profiled(system: System, *processor_s: float) -> list[Line]:
    return [Profiled("write", system, 500_000, 2.0, {JVM: used}) for used in processor_s]


def test_profile_has_the_median_of_each_component_for_a_million_rows() -> None:
    lines = [*_profiled(NOOP, 1.0), *_profiled(OURS, 3.0, 1.0, 2.0)]
    calls = {"commit": 7.5, "commit: metadata writes": 3.25}
    small = Profiled("sink", OURS, 10, 1.5, {BOOKIES: 0.02}, {"addBatch": 80}, calls)
    noop, ours, batch = profile_rows([*lines, small])
    assert (noop.op, noop.of, noop.cpu_seconds, noop.per_second) == (
        "processor",
        "write",
        {JVM: 2.0},
        250_000,
    )
    assert ours.cpu_seconds == {JVM: 4.0}
    assert (batch.op, batch.elapsed_ms, batch.cpu_ms) == ("micro-batch", 150, {BOOKIES: 2.0})
    console = Console(width=200, record=True, file=io.StringIO())
    print_rows([noop, ours, batch], console)
    text = console.export_text()
    assert "for a million rows" in text and "250,000" in text
    assert " 4.00 " in text and " 150 " in text and " 80 " in text
    assert "metadata writes" in text and " 3.2 " in text and " 7.5 " in text


@pytest.mark.parametrize("other", ["--profile", "--peers", "--limit"])
def test_profiles_go_one_at_a_time(other: str) -> None:
    outcome = CliRunner().invoke(main, ["spark", "--floor", other])
    assert outcome.exit_code == 2 and "one at a time" in outcome.output


def test_spans_of_one_process_are_parts_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "spans"))
    with span("commit"), span("metadata writes"):
        pass
    inner, outer = spans_since(tmp_path / "spans", 0)
    assert (outer.part, outer.holds(inner), inner.holds(outer)) == ("commit", True, False)
    assert not outer._replace(pid=-1).holds(inner)
    assert spans_since(tmp_path / "spans", outer.began_ns + 1) == [inner]


def test_calls_are_medians_and_waits_at_once_count_once() -> None:
    def made(part: str, began_ms: float, took_ms: float, pid: int = 1) -> Span:
        return Span(part, pid, int(began_ms * 1e6), int((began_ms + took_ms) * 1e6))

    batches = [made("commit", 100 * n, took) for n, took in enumerate((10, 30, 20))]
    reads = [made("metadata reads", 1, 4), made("metadata reads", 3, 4)]
    reads += [made("metadata reads", 101, 9), made("metadata reads", 203, 2, pid=2)]
    again = [made("prepare", 99, 0.5), made("prepare", 90, 3, pid=2)]
    found = calls_of([*batches, *reads, *again])
    assert found == {"commit": 20, "commit: metadata reads": 6, "prepare": 3}
