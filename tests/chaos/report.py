"""Report of a chaos run: a table to read, and the same as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from tests.chaos.faults import Fault
from tests.history.final import Final
from tests.history.liveness import SECOND_NS, Latency, Window, latencies, longest_stall
from tests.history.model import History
from tests.history.violation import Violation

AFTER_FAULT_S = 3
"""Seconds by which a stall may outlast the fault that caused it."""

LOST = frozenset({"lost", "lost-commit", "hole", "under-replicated", "unreadable", "denied"})
DIVERGED = frozenset({"divergence", "close-disagreement", "order", "duplicate", "stream-order"})


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one run, or of several added up."""

    seeds: tuple[int, ...]
    mix: str
    seconds: float
    operations: int
    acknowledged: int
    commits: int
    reads: int
    values_read: int
    ledgers: int
    fragments: int
    faults: dict[str, int]
    stalls_s: dict[str, float]
    """Longest time without an acknowledged append during the faults of a kind, and just after."""
    stall_after_heal_s: float
    lost: int
    diverged: int
    violations: tuple[str, ...]
    latencies: tuple[Latency, ...]

    def to_json(self) -> bytes:
        """As indented JSON."""
        return msgspec.json.format(msgspec.json.encode(asdict(self))) + b"\n"


def make_report(
    seed: int,
    mix: str,
    history: History,
    final: Final,
    faults: list[tuple[Fault, Window]],
    healed: Window,
    violations: list[Violation],
) -> Report:
    """The figures of a run."""
    operations = history.operations()
    stalls: dict[str, float] = {}
    for fault, window in faults:
        last_ns = min(window.last_ns + AFTER_FAULT_S * SECOND_NS, healed.last_ns)
        stall_s = longest_stall(history, Window(fault.kind, window.first_ns, last_ns))
        stalls[fault.kind] = max(stalls.get(fault.kind, 0.0), stall_s)
    done = Counter(o.invoke.name for o in operations if o.ok)
    events = history.events
    return Report(
        seeds=(seed,),
        mix=mix,
        seconds=(events[-1].time_ns - events[0].time_ns) / SECOND_NS if events else 0.0,
        operations=len(operations),
        acknowledged=done["append"],
        commits=done["commit"],
        reads=done["read"] + done["tail"] + done["stream_read"],
        values_read=sum(
            len(o.values) for o in operations if o.ok and o.invoke.name in ("read", "tail")
        ),
        ledgers=len(final.ledgers),
        fragments=sum(len(last.fragments) for last in final.ledgers.values()),
        faults=dict(sorted(Counter(fault.kind for fault, _ in faults).items())),
        stalls_s=dict(sorted(stalls.items())),
        stall_after_heal_s=longest_stall(history, healed),
        lost=sum(v.name in LOST for v in violations),
        diverged=sum(v.name in DIVERGED for v in violations),
        violations=tuple(str(v) for v in violations),
        latencies=tuple(latencies(history)),
    )


def add(one: Report, other: Report) -> Report:
    """Add two reports; latencies are those of the second, the newer one."""
    kinds = sorted({*one.stalls_s, *other.stalls_s})
    return Report(
        seeds=one.seeds + other.seeds,
        mix=one.mix,
        seconds=one.seconds + other.seconds,
        operations=one.operations + other.operations,
        acknowledged=one.acknowledged + other.acknowledged,
        commits=one.commits + other.commits,
        reads=one.reads + other.reads,
        values_read=one.values_read + other.values_read,
        ledgers=one.ledgers + other.ledgers,
        fragments=one.fragments + other.fragments,
        faults=dict(sorted((Counter(one.faults) + Counter(other.faults)).items())),
        stalls_s={k: max(one.stalls_s.get(k, 0.0), other.stalls_s.get(k, 0.0)) for k in kinds},
        stall_after_heal_s=max(one.stall_after_heal_s, other.stall_after_heal_s),
        lost=one.lost + other.lost,
        diverged=one.diverged + other.diverged,
        violations=one.violations + other.violations,
        latencies=other.latencies,
    )


def table(report: Report) -> str:
    """The report as a table."""
    seeds = " ".join(map(str, report.seeds))
    lines = [
        f"chaos: mix {report.mix}, seeds {seeds}, {report.seconds:.0f} s under load",
        "",
        f"{'operations':28}{report.operations:>12,}",
        f"{'acknowledged entries':28}{report.acknowledged:>12,}",
        f"{'entries read':28}{report.values_read:>12,}",
        f"{'stream commits':28}{report.commits:>12,}",
        f"{'ledgers, fragments':28}{report.ledgers:>12,}{report.fragments:>10,}",
        f"{'lost':28}{report.lost:>12,}",
        f"{'diverged':28}{report.diverged:>12,}",
        f"{'violations':28}{len(report.violations):>12,}",
        f"{'longest stall after healing':28}{report.stall_after_heal_s:>10.2f} s",
        "",
        f"{'fault':28}{'times':>12}{'longest stall':>16}",
    ]
    for kind, times in report.faults.items():
        lines.append(f"{kind:28}{times:>12,}{report.stalls_s.get(kind, 0.0):>14.2f} s")
    lines += [f"{'all':28}{sum(report.faults.values()):>12,}", ""]
    lines.append(
        f"{'operation':14}{'ok':>9}{'failed':>9}{'unknown':>9}{'p50':>10}{'p99':>10}{'longest':>10}"
    )
    for row in report.latencies:
        times_ms = "".join(f"{s * 1000:>10.1f}" for s in (row.p50_s, row.p99_s, row.longest_s))
        lines.append(f"{row.name:14}{row.ok:>9,}{row.failed:>9,}{row.unknown:>9,}{times_ms} ms")
    lines += ["", *(f"VIOLATION {text}" for text in report.violations)]
    return "\n".join(lines).rstrip()


def write_json(report: Report, path: Path) -> None:
    """Write the report to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(report.to_json())
