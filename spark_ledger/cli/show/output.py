"""What a command prints: tables for people, JSON for scripts, progress only on a terminal."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import click

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_json(value: object) -> None:
    """One JSON value on one line."""
    click.echo(json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str))


class JsonArray:
    """One JSON array on one line, printed as its elements come: they need not fit in memory."""

    def __init__(self) -> None:
        self._lead = "["

    def print(self, values: Iterable[object]) -> None:
        """Print these behind those of before."""
        for value in values:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
            click.echo(self._lead + text, nl=False)
            self._lead = ","

    def end(self) -> None:
        """Print the end of it."""
        click.echo("[]" if self._lead == "[" else "]")


_ANY_WIDTH: Final = 2000
"""Of output that no terminal shows: longer than each line that there is."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; a column whose name ends in ``#`` holds numbers, aligned to the right, and one whose
    name ends in ``...`` holds sentences: where the terminal is narrow, these go over lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right, is_text = column.endswith("#"), column.endswith("...")
        title = column.rstrip("#").removesuffix("...")
        table.add_column(title, justify="right" if right else "left", no_wrap=not is_text)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # Text: brackets in names are no markup
    print_rich(table)


def print_rich(part: RenderableType, *, style: str | None = None) -> None:
    """Print a rich renderable. Output that is not a terminal is wide enough to cut nothing off."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _ANY_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False)
    console.print(part, style=style)


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, steps: int = 1) -> None: ...


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Advance]:
    """A progress bar on standard error, if that is a terminal; ``total`` None: length unknown."""
    if not sys.stderr.isatty():
        yield lambda steps=1: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total)
        yield lambda steps=1: bars.update(task, advance=steps)


def payload_fields(payload: bytes) -> Mapping[str, str]:
    """A payload in JSON: as text if it is UTF-8, else as base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def silence_text(bookie_id: str, why: str) -> str:
    """Of a bookie whose copies are not counted. ``why``: the name of a status, or what it said that
    cannot be, as a sentence."""
    verdict = "is not believed" if " " in why else "does not answer"
    return f"{bookie_id} {verdict} ({why}): its copies are not counted"


def size_text(size_bytes: int) -> str:
    """A size for people: 1536 -> 1.5 KiB."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def time_text(time_ms: int) -> str:
    """Milliseconds since 1970 as UTC; empty for 0, which means unknown."""
    if not time_ms:
        return ""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def age_text(time_ms: int) -> str:
    """How long ago a time was, in its largest unit; empty for 0, which means unknown."""
    if not time_ms:
        return ""
    age_s = max(0, time.time_ns() // 1_000_000 - time_ms) // 1000
    for unit_s, letter in ((86_400, "d"), (3600, "h"), (60, "min")):
        if age_s >= unit_s:
            return f"{age_s // unit_s} {letter}"
    return f"{age_s} s"
