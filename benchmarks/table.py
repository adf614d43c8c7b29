"""Draws rows as tables, this system beside the peers of the same run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.profile_table import PROFILE_OPS, print_profile
from benchmarks.rows import BARE, OURS, READ, READ_BATCHES, Row

_UNITS = {"raw": "entries/s", "spark": "rows/s"}
_PEERS = (
    ("bookkeeper", "/ BookKeeper"),
    ("kafka", "/ Kafka"),
    ("bare gRPC", "/ bare gRPC"),
    (BARE, "/ bare Python"),
)
"""Who stands beside this system, in the table's order."""
_OPS = ("append", READ, READ_BATCHES, "write", "stream-copy", "failover")
"""In the order of the table."""


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """One table of what was measured against time, then one of what explains it."""
    peers = [(system, title) for system, title in _PEERS if any(r.system == system for r in rows)]
    table = Table(title="ratios: ours to the peer's, above 1 is faster" if peers else None)
    for title in ("bench", "op", "entry", "in flight", "system"):
        table.add_column(title)
    for title in ("per second", "MB/s", "p50 ms", "p99 ms", "gap ms"):
        table.add_column(title, justify="right")
    for _, title in peers:
        table.add_column(title, justify="right")
    before: tuple[object, ...] = ()
    for row in sorted((row for row in rows if row.op in _OPS), key=_order):
        same_work = row.work == before
        if before and not same_work and (peers or row.op != before[1]):
            table.add_section()
        before = row.work
        table.add_row(*_cells(row, repeat=same_work), *_ratios(row, rows, peers))
    if table.row_count:
        console.print(table)
    print_profile(rows, console)
    for row in rows:
        if row.op not in _OPS and row.op not in PROFILE_OPS:
            console.print(_sentence(row), highlight=False)


def _order(row: Row) -> tuple[object, ...]:
    systems = [OURS, *(system for system, _ in _PEERS)]
    return (
        row.bench,
        _OPS.index(row.op),
        row.entry_bytes or 0,
        -(row.in_flight or 0),
        row.ledgers or 0,
        systems.index(row.system),
    )


def _cells(row: Row, *, repeat: bool) -> list[str]:
    in_flight = str(row.in_flight or "") + (f", {row.ledgers} ledgers" if row.ledgers else "")
    work = [row.bench, row.op, size_text(row.entry_bytes), in_flight]
    if repeat:
        work = [""] * len(work)
    unit = _UNITS[row.bench]
    return [
        *work,
        row.system,
        "" if row.per_second is None else f"{row.per_second:,.0f} {unit}",
        _number(row.mb_per_second),
        _number(row.p50_ms),
        _number(row.p99_ms),
        _number(row.longest_gap_ms),
    ]


def _ratios(row: Row, rows: Sequence[Row], peers: Sequence[tuple[str, str]]) -> list[str]:
    """How many times faster this system is than each peer at the same work (shorter, for a gap)."""
    cells = []
    for system, _ in peers:
        peer = next((r for r in rows if r.system == system and r.work == row.beside), None)
        ratio = None if row.system != OURS or peer is None else ratio_of(row, peer)
        cells.append("" if ratio is None else f"{ratio:.2f}")
    return cells


def ratio_of(ours: Row, peer: Row) -> float | None:
    """Above 1 if this system is faster: by speed, or by the length of the gap."""
    if ours.per_second and peer.per_second:
        return ours.per_second / peer.per_second
    if ours.longest_gap_ms and peer.longest_gap_ms:
        return peer.longest_gap_ms / ours.longest_gap_ms
    return None


def _sentence(row: Row) -> str:
    """A row that explains others, in words."""
    if row.cpu_share is not None:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in row.cpu_share.items())
        return f"{row.system} {row.bench} {row.of}: CPU time of {shares}"
    if row.op == "plan":
        return (
            f"{row.system}: {row.commits:,} commits read and planned from cold in "
            f"{row.elapsed_ms:,.0f} ms"
        )
    if row.op == "trigger":
        return (
            f"{row.system}: a trigger reads and plans {row.commits:,} new commits in "
            f"{row.elapsed_ms:,.0f} ms"
        )
    return f"{row.system}: {row.op} takes {row.elapsed_ms:,.0f} ms"


def size_text(size_bytes: int | None) -> str:
    """An entry size with its unit."""
    if size_bytes is None:
        return ""
    if size_bytes >= 1 << 20 and size_bytes % (1 << 20) == 0:
        return f"{size_bytes >> 20} MiB"
    if size_bytes >= 1 << 10 and size_bytes % (1 << 10) == 0:
        return f"{size_bytes >> 10} KiB"
    return f"{size_bytes} B"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
