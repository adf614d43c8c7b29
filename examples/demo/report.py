"""What the demonstration prints at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from examples.demo.compare import Comparison
from spark_ledger.types import LedgerMetadata


@dataclass(slots=True)
class Report:
    """The facts, which are collected while the demonstration runs."""

    rows: int = 0
    commits: int = 0
    faults: list[str] = field(default_factory=list)
    rows_per_second: dict[str, float] = field(default_factory=dict)
    ledgers: list[LedgerMetadata] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    killed_bookie: str = ""
    appends: int = 0
    append_median_ms: float = 0.0
    append_longest_ms: float = 0.0

    @property
    def fragments(self) -> int:
        return sum(len(ledger.fragments) for ledger in self.ledgers)

    @property
    def ensemble_changes(self) -> int:
        return self.fragments - len(self.ledgers)

    @property
    def is_exact(self) -> bool:
        return bool(self.comparisons) and all(c.is_exact for c in self.comparisons.values())


def print_report(console: Console, report: Report) -> None:
    """The facts, the fragment map, and the verdict."""
    facts = Table(title="What happened", show_header=False, title_justify="left")
    for name, value in _facts(report).items():
        facts.add_row(name, value)
    console.print(facts)
    console.print(_fragment_map(report.ledgers, report.killed_bookie))
    verdict = Table(title="Compared with the input", title_justify="left")
    for heading in ("read by", "rows", "lost", "doubled", "out of order", "changed"):
        verdict.add_column(heading, justify="left" if heading == "read by" else "right")
    for name, c in report.comparisons.items():
        numbers = (c.rows, c.lost, c.doubled, c.reordered, c.changed)
        verdict.add_row(name, *(f"{number:,}" for number in numbers))
    console.print(verdict)
    if report.is_exact:
        console.print("[bold green]Every row arrived exactly once, unchanged and in order.[/]")
    else:
        console.print("[bold red]Rows were lost, doubled, reordered or changed.[/]")


def _facts(report: Report) -> Mapping[str, str]:
    speeds = {f"{name}, rows/s": f"{rate:,.0f}" for name, rate in report.rows_per_second.items()}
    return {
        "rows": f"{report.rows:,}",
        "micro-batches (commits)": str(report.commits),
        "faults": "\n".join(report.faults),
        "ledgers / fragments": f"{len(report.ledgers)} / {report.fragments}",
        "ensemble changes": str(report.ensemble_changes),
        **speeds,
        "steady appender beside it": f"{report.appends:,} entries, median "
        f"{report.append_median_ms:.1f} ms",
        "longest ack gap around the kill": f"{report.append_longest_ms:.0f} ms",
    }


def _fragment_map(ledgers: Sequence[LedgerMetadata], killed: str) -> Table:
    table = Table(title="Fragments", title_justify="left")
    for heading in ("ledger", "state", "entries", "bookies by index"):
        table.add_column(heading)
    for ledger in ledgers:
        firsts = [fragment.first_entry for fragment in ledger.fragments]
        end = str(ledger.last_entry_id) if ledger.is_closed else "..."
        lasts = [*(str(first - 1) for first in firsts[1:]), end]
        for fragment, last in zip(ledger.fragments, lasts, strict=True):
            names = [f"[red]{b}[/]" if b == killed else b for b in fragment.bookies]
            entries = f"{fragment.first_entry} - {last}"
            table.add_row(str(ledger.ledger_id), ledger.state.value, entries, "  ".join(names))
    return table
