"""The page of claims, and the figures of real servers beside those of the lab."""

from __future__ import annotations

import textwrap
from typing import Final, NamedTuple

from spark_ledger.lab.claims import CLAIMS
from spark_ledger.lab.experiments import SEED, outcome
from spark_ledger.lab.kafka import SESSION_S
from spark_ledger.lab.scenarios import SCENARIOS

_TEXT_WIDTH: Final = 108
"""Of the page, in characters."""


class Real(NamedTuple):
    """A server of a real cluster was killed under load, and the run of the lab that is like it."""

    what: str
    protocol: str
    gap_ms: float
    """The longest time without an acknowledgement, by ``python -m benchmarks raw --peers``."""
    timeout_s: float | None
    """How long it has to be silent until it is given up; None: nobody waits for it."""


REAL: Final = (
    Real("leader of a Kafka partition, `acks=all`", "kafka", 11_800, 9.0),
    Real("bookie of Apache BookKeeper, AQ < WQ", "bookkeeper-3-3-2", 109, None),
    Real("bookie of this system, AQ < WQ", "bookkeeper-3-3-2", 14, None),
)


def _beside_real_servers() -> list[str]:
    text = (
        "`python -m benchmarks raw --peers` kills a server under 100 appends in flight "
        "([2026-11-21](../benchmarks/README.md), loopback, default timeouts). The lab's run is "
        "`leader-dies`, where a broker is given up after one second. The shape is the same: Kafka "
        "is silent for its session and the election, and a ledger that waits for AQ < WQ bookies "
        "goes on. In the lab values come 10 ms apart, so that is its shortest gap. Only this "
        "failure was measured on both sides: no real peer ran with a slow replica, a partition or "
        "a power cut."
    )
    lines = [
        "",
        "## Beside real servers",
        "",
        *textwrap.wrap(text, _TEXT_WIDTH),
        "",
        "| killed | real gap, ms | its timeout, ms | lab's gap, ms | its timeout, ms |",
        "|---|---|---|---|---|",
    ]
    for real in REAL:
        waits = ("none", "none")
        if real.timeout_s is not None:
            waits = (f"{1e3 * real.timeout_s:g}", f"{1e3 * SESSION_S:g}")
        gap = outcome("leader-dies", real.protocol).longest_gap_ms
        lines.append(f"| {real.what} | {real.gap_ms:g} | {waits[0]} | {gap:g} | {waits[1]} |")
    return lines


def page() -> str:
    """The page of all claims, in Markdown."""
    lines = [
        "# Claims about replication, and the runs that test them",
        "",
        "Written by `ledger lab claims --write docs/replication.md`: do not edit it. Every row is",
        f"a run of the [lab](../spark_ledger/lab/README.md) with seed {SEED}, on simulated",
        "servers: `ledger lab run SCENARIO --protocols PROTOCOL` shows all its figures. Times are",
        "those of the simulated clock, scaled down: compare them with each other.",
        "",
        "| scenario | what happens |",
        "|---|---|",
        *(f"| `{each.name}` | {each.what} |" for each in SCENARIOS.values()),
    ]
    for number, claim in enumerate(CLAIMS, 1):
        lines += [
            "",
            f"## {number}. {claim.statement}",
            "",
            "| scenario | protocol | claimed | measured | holds |",
            "|---|---|---|---|---|",
        ]
        for each in claim.figures:
            holds = "yes" if each.holds() else "NO"
            row = (f"`{each.scenario}`", f"`{each.protocol}`", each.expected)
            lines.append(f"| {' | '.join(row)} | {each.shown} | {holds} |")
        lines += ["", *textwrap.wrap(f"Said in: {claim.source}.", _TEXT_WIDTH)]
    return "\n".join([*lines, *_beside_real_servers()]) + "\n"
