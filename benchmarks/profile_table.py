"""Draws the profile of Spark jobs: one table of processor seconds, one of micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.cpu_time import BOOKIES, CLIENT, DRIVER, JVM, MAIN_THREAD
from benchmarks.rows import Row

_COMPONENTS = {
    JVM: "JVM",
    MAIN_THREAD: "Python, main thread",
    CLIENT: "its other threads",
    BOOKIES: "bookies",
    DRIVER: "driver",
}
_PHASES = ("latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets")
PROFILE_OPS = frozenset({"processor", "micro-batch"})


def print_profile(rows: Sequence[Row], console: Console) -> None:
    """Nothing if there is no profile among the rows."""
    for op, title, unit in (
        ("processor", "processor seconds for a million rows", "rows/s"),
        ("micro-batch", "processor milliseconds for a micro-batch of one row", "ms"),
    ):
        found = [row for row in rows if row.op == op]
        if not found:
            continue
        phases = _PHASES if op == "micro-batch" else ()
        table = Table(title=title)
        for name in ("work", "system"):
            table.add_column(name)
        for name in (*_COMPONENTS.values(), "all", unit, *phases):
            table.add_column(name, justify="right")
        work: str | None = None
        for row in found:
            if work is not None and row.of != work:
                table.add_section()
            table.add_row(row.of if row.of != work else "", row.system, *_figures(row, phases))
            work = row.of
        console.print(table)
    for row in rows:
        if row.calls_ms:
            console.print(_calls(row.calls_ms, f"{row.system}, {row.of}: milliseconds of"))


def _figures(row: Row, phases: Sequence[str]) -> list[str]:
    used = row.cpu_seconds or row.cpu_ms or {}
    speed = row.per_second if row.op == "processor" else row.elapsed_ms
    took = row.phases_ms or {}
    figures = [*(used.get(name, 0.0) for name in _COMPONENTS), sum(used.values())]
    text = "{:.2f}" if row.op == "processor" else "{:.0f}"
    return [
        *map(text.format, figures),
        f"{speed or 0:,.0f}",
        *(f"{took.get(name, 0):.0f}" for name in phases),
    ]


def _calls(calls_ms: Mapping[str, float], title: str) -> Table:
    """What calls take, and beside each what it waits for."""
    calls = [name for name in calls_ms if ": " not in name]
    waits = sorted({name.partition(": ")[2] for name in calls_ms} - {""})
    table = Table(title=title)
    for name in ("call", *waits, "all of it"):
        table.add_column(name, justify="left" if name == "call" else "right")
    for call in calls:
        parts = (calls_ms.get(f"{call}: {wait}") for wait in waits)
        cells = ("" if part is None else f"{part:.1f}" for part in parts)
        table.add_row(call, *cells, f"{calls_ms[call]:.1f}")
    return table
