"""Draws the curves of a run: one PNG for each, with every system that was measured."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.cases import KIB
from benchmarks.rows import READ, READ_BATCHES, Row
from benchmarks.table import size_text
from spark_ledger.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: Final = {
    "spark-ledger": "#c8401e",
    "bookkeeper": "#2b6cb0",
    "kafka": "#3c3c3c",
    "bare gRPC": "#b0a080",
}
_Point = Callable[[Row], float | None]
_Lines = list[list[Row]]
_SIZE_AND_RATE: Final[tuple[_Point, _Point]] = (
    lambda row: row.entry_bytes,
    lambda row: row.mb_per_second,
)
_Picture = Callable[[Sequence[Row], "Axes"], _Lines]
"""Draws into the axes. Returns the rows of each line; none if there is nothing to draw."""


def require_matplotlib() -> None:
    """Raises ConfigurationError if it is not installed: before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigurationError(
            "pictures need matplotlib: pip install 'spark-ledger[lab]', or leave --page out"
        )


def draw(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Draw what the rows allow. Returns the files."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw_one in _PICTURES.items():
        figure = Figure(figsize=(6.4, 4.2), dpi=110, layout="constrained")
        axes = figure.subplots()
        if not draw_one(rows, axes):
            continue
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:,g}")
        if name in ("latency", "ledgers"):
            axes.xaxis.set_major_formatter("{x:,g}")
        axes.grid(visible=True, color="#e4e4e4")
        axes.legend(frameon=False)
        path = directory / f"{name}.png"
        figure.savefig(path, metadata={"Software": None})
        drawn.append(path)
    return drawn


def _latency(rows: Sequence[Row], axes: Axes) -> _Lines:
    found = [row for row in rows if row.op == "append" and row.entry_bytes == KIB]
    found = [row for row in found if row.ledgers is None]
    lines = _lines(found, axes, lambda row: row.per_second, lambda row: row.p50_ms)
    for line in lines:
        for row in line:
            assert row.per_second and row.p50_ms
            at = (row.per_second, row.p50_ms)
            axes.annotate(f"{row.in_flight}", at, textcoords="offset points", xytext=(4, 4), size=7)
    axes.set(xlabel="entries of 1 KiB appended a second")
    axes.set(ylabel="p50 of an append, ms", title="Rate and latency, by entries in flight")
    return lines


def _sizes(op: str) -> _Picture:
    def draw_sizes(rows: Sequence[Row], axes: Axes) -> _Lines:
        found = [row for row in rows if row.op == op and row.ledgers is None]
        # Of the loads of one size the largest: the others are of the curve over loads.
        found.sort(key=lambda row: row.in_flight or 0)
        best = {(row.system, row.entry_bytes): row for row in found}
        lines = _lines(list(best.values()), axes, *_SIZE_AND_RATE)
        if op == READ:
            batches = [row for row in rows if row.op == READ_BATCHES]
            lines += _lines(batches, axes, *_SIZE_AND_RATE, of=", batches", style="--")
        sizes = sorted({row.entry_bytes or 0 for line in lines for row in line})
        axes.set(xlabel="entry", ylabel="MB a second")
        axes.set(title=f"{op.capitalize()}s, by size of the entry")
        axes.set_xticks(sizes, [size_text(size) for size in sizes])
        return lines

    return draw_sizes


def _ledgers(rows: Sequence[Row], axes: Axes) -> _Lines:
    found = [row for row in rows if row.ledgers is not None]
    lines = _lines(found, axes, lambda row: row.ledgers, lambda row: row.per_second)
    axes.set(xlabel="ledgers that one client appends to in turn")
    axes.set(ylabel="entries of 1 KiB a second", title="Many ledgers, 2,000 entries in flight")
    return lines


def _lines(
    rows: Sequence[Row], axes: Axes, x: _Point, y: _Point, *, of: str = "", style: str = "-"
) -> _Lines:
    """A line for each system, of the rows that have both figures."""
    lines = []
    for system, colour in _COLOURS.items():
        line = [row for row in rows if row.system == system and x(row) and y(row)]
        line.sort(key=lambda row: x(row) or 0.0)
        if line:
            axes.plot(
                [x(row) or 0.0 for row in line],
                [y(row) or 0.0 for row in line],
                marker="o",
                markersize=4,
                color=colour,
                linestyle=style,
                label=system + of,
            )
            lines.append(line)
    if lines:
        axes.set(xscale="log", yscale="log")
    return lines


_PICTURES: Final[dict[str, _Picture]] = {
    "latency": _latency,
    "append": _sizes("append"),
    "read": _sizes(READ),
    "ledgers": _ledgers,
}
