"""Writes the figures of a run into a page: a table beside the peers, and pictures."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.pictures import draw
from benchmarks.rows import OURS, Row, System
from benchmarks.table import ratio_of, size_text
from spark_ledger.errors import ConfigurationError

BEGIN: Final = "<!-- figures: begin -->"
END: Final = "<!-- figures: end -->"
_PEERS: Final[dict[System, str]] = {
    "bookkeeper": "BookKeeper",
    "kafka": "Kafka",
    "bare gRPC": "bare gRPC",
}


def write_page(rows: Sequence[Row], page: Path, command: str) -> None:
    """Replace what stands between the two marks of a page, and draw the pictures beside it.

    Raises ConfigurationError if the page has no marks; one that does not exist is made.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigurationError(
            f"{page} has no lines {BEGIN} and {END} to put the figures between"
        )
    pictures = draw(rows, page.with_suffix(""))
    lines = [
        BEGIN,
        f"Figures of {time.strftime('%Y-%m-%d')}, `{command}`, {os.cpu_count()} cores.",
        "",
        *(f"![{path.stem}]({path.parent.name}/{path.name})" for path in pictures),
        "",
        *_table(rows),
        END,
    ]
    page.write_text(before + "\n".join(lines) + after, encoding="utf-8")


def _table(rows: Sequence[Row]) -> Iterator[str]:
    """As Markdown: a line for each work, with the ratio to each peer in brackets."""
    peers = [system for system in _PEERS if any(row.system == system for row in rows)]
    titles = ["work", "entry", "in flight", "ledgers", "spark-ledger"]
    titles += [_PEERS[system] for system in peers]
    yield "| " + " | ".join(titles) + " |"
    yield "|---" * len(titles) + "|"
    ours = [row for row in rows if row.system == OURS and row.per_second]
    for row in sorted(ours, key=lambda row: row.work):
        cells = [
            row.op,
            size_text(row.entry_bytes),
            str(row.in_flight or ""),
            str(row.ledgers or ""),
        ]
        cells.append(_figures(row))
        for system in peers:
            same = (each for each in rows if each.system == system and each.work == row.beside)
            peer = next(same, None)
            ratio = ratio_of(row, peer) if peer else None
            cells.append(f"{_figures(peer)} ({ratio:.1f}x)" if peer and ratio else "")
        yield "| " + " | ".join(cells) + " |"


def _figures(row: Row) -> str:
    text = f"{row.per_second:,.0f}/s"
    if row.mb_per_second is not None and (row.entry_bytes or 0) >= 8 << 10:
        text = f"{row.mb_per_second:,.0f} MB/s"
    return text if row.p50_ms is None else f"{text}, p50 {row.p50_ms:.3g} ms"
