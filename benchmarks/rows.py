"""Row: the figures of one measurement, as printed and as stored in the JSON file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

Bench = Literal["raw", "spark"]
System = Literal["spark-ledger", "bookkeeper", "kafka", "bare gRPC", "noop", "bare Python"]
OURS: Final = "spark-ledger"
NOOP: Final = "noop"
"""Spark's own sink that drops all rows, in its JVM."""
BARE: Final = "bare Python"
"""A sink and a source in Python that do nothing: the limit of any data source in Python."""
READ: Final = "read"
"""Each entry as an object that has its payload, as peers hand entries out."""
READ_BATCHES: Final = "read batches"
"""The payloads of each batch as one Arrow array, without an object for each entry. Peers have no
such call: their rows of ``READ`` stand beside it."""


class Row(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True
):
    """One operation of one system. Fields that do not apply are None, and absent in JSON.

    ``op`` is append, read, read batches, write or stream-copy, with the first ten fields only; or
    one of those that explain the others: failover, import, plan, trigger, cpu-share, processor,
    micro-batch.
    """

    bench: Bench
    system: System
    op: str
    entry_bytes: int | None = None
    in_flight: int | None = None
    ensemble: tuple[int, int, int] | None = None
    per_second: float | None = None
    """Entries a second (raw) or rows a second (spark)."""
    mb_per_second: float | None = None
    """Payload in millions of bytes a second, each byte counted once."""
    p50_ms: float | None = None
    """From handing over an entry until its producer learns that it is confirmed."""
    p99_ms: float | None = None
    longest_gap_ms: float | None = None
    """failover: the longest time without an acknowledgement around the kill of a server."""
    elapsed_ms: float | None = None
    """import, plan, trigger, micro-batch: the time it took."""
    commits: int | None = None
    """plan (from nothing) and trigger (what is new): how many commits were planned."""
    ledgers: int | None = None
    """To how many ledgers entries were appended in turn, where it is not one."""
    of: str | None = None
    """cpu-share, processor, micro-batch: the work whose time is divided."""
    cpu_share: dict[str, float] | None = None
    """cpu-share: each component's part of the CPU seconds; they add up to 1."""

    cpu_seconds: dict[str, float] | None = None
    """processor: of each component for a million rows."""
    cpu_ms: dict[str, float] | None = None
    """micro-batch: the processor time of each component for one."""
    phases_ms: dict[str, float] | None = None
    """micro-batch: its time by Spark's names of the phases."""
    calls_ms: dict[str, float] | None = None
    """micro-batch: what its calls of our source or sink take, and in them what is waited for."""

    @property
    def work(self) -> tuple[str, str, int, int, int, str]:
        """What a row measures; rows with equal values are compared."""
        return (
            self.bench,
            self.op,
            self.entry_bytes or 0,
            self.in_flight or 0,
            self.ledgers or 0,
            self.of or "",
        )

    @property
    def beside(self) -> tuple[str, str, int, int, int, str]:
        """The work of a peer's row that stands beside this one."""
        return msgspec.structs.replace(self, op=READ).work if self.op == READ_BATCHES else self.work


class Round(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One timed round of a case, as a driver program (Python or Java) prints it."""

    op: str
    entries: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    longest_gap_ms: float | None = None

    @property
    def per_second(self) -> float:
        return self.entries / self.seconds


def row_of_rounds(
    rounds: Sequence[Round],
    *,
    bench: Bench,
    system: System,
    entry_bytes: int | None = None,
    in_flight: int | None = None,
    ensemble: tuple[int, int, int] | None = None,
    ledgers: int | None = None,
) -> Row:
    """The row of one case: the median round of Python, the best round of a peer. A peer runs
    on a JVM that is still warming up in its first rounds; its best is what it can do."""
    assert rounds and len({found.op for found in rounds}) == 1, "rounds of one operation"
    is_peer = system in ("bookkeeper", "kafka")
    chosen = best_round(rounds) if is_peer else median_round(rounds)
    gap = chosen.longest_gap_ms
    speed = None if gap is not None else chosen.per_second
    return Row(
        bench=bench,
        system=system,
        op=chosen.op,
        entry_bytes=entry_bytes,
        in_flight=in_flight,
        ensemble=ensemble,
        ledgers=ledgers,
        per_second=rounded(speed),
        mb_per_second=rounded(speed * entry_bytes / 1e6) if speed and entry_bytes else None,
        p50_ms=rounded(chosen.p50_ms),
        p99_ms=rounded(chosen.p99_ms),
        longest_gap_ms=rounded(gap),
    )


def _badness(found: Round) -> float:
    return found.longest_gap_ms if found.longest_gap_ms is not None else -found.per_second


def median_round(rounds: Sequence[Round]) -> Round:
    """The middle round; of an even number, the worse of the middle two."""
    return sorted(rounds, key=_badness)[len(rounds) // 2]


def best_round(rounds: Sequence[Round]) -> Round:
    """The fastest round, or the one with the shortest gap."""
    return min(rounds, key=_badness)


def rounded(value: float | None) -> float | None:
    """Four significant digits; more would be noise."""
    return None if value is None else float(f"{value:.4g}")


def rounded_each(values: Mapping[str, float]) -> dict[str, float]:
    """The same of each value."""
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as a JSON list, one row per line."""
    lines = ",\n".join(msgspec.json.encode(row).decode() for row in rows)
    path.write_text(f"[\n{lines}\n]\n" if rows else "[]\n", encoding="utf-8")


def read_json(path: Path) -> list[Row]:
    """The rows of an earlier run. Raises ValidationError if the file holds anything else."""
    return msgspec.json.decode(path.read_bytes(), type=list[Row])
