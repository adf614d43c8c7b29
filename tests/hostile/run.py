"""Runs kinds of hostile clients one after the other, and judges what the bookie made of them.

A machine that is attacked is slow for everybody on it: attacker, bookies and neighbours share its
processors and its disk. So a second neighbour appends to a second bookie of the same machine at the
same time, which nobody attacks. What the neighbour of the attacked bookie waits for longer than
that one is what the bookie lets through.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import tests.hostile.frames  # its kinds are found by being there
import tests.hostile.places  # noqa: F401
from tests.hostile.attacks import ATTACKS, Target
from tests.hostile.beside import quantile
from tests.hostile.victim import BOOKIE, Victim

BUDGET_MIB: Final = 512
"""The default budget."""

LOOK_S: Final = 0.01
"""Between two looks at the memory of the bookie."""

CONTROL_RATIO_MAX: Final = 3.0
"""The most that the neighbour's p99 may be, of what the other bookie's neighbour has meanwhile."""

JUDGED_S: Final = 10.0
"""A shorter attack does not judge how slow it makes the neighbour: few seconds have a handful of
entries above the p99, and on a machine that does other things that is luck."""

NOISE_MS: Final = 20.0
"""A control below this counts as this: one more turn of the machine's other processes."""

HANG_S: Final = 10.0
"""The longest that the neighbour may wait for one entry on a busy machine."""

TAKE_PLACES: Final = (
    "idle-append-streams",
    "refusals-that-nobody-reads",
    "tails-of-the-neighbour",
)
"""Kinds beside which every newcomer must be served within ``HANG_S``. Of a flood of calls gRPC
resets some by lot, those of newcomers too, and reads wait behind answers that nobody reads: how
long a visit takes beside those is shown, and not judged."""

QUIET_S: Final = 1.0
"""Without an attack, to know what the neighbour has in peace."""

LOG_BYTES_MAX: Final = 200_000
"""Of one attack: a client must not fill the disk with lines."""


@dataclass(frozen=True)
class Outcome:
    """One kind. Times are those of the neighbour, memory is the bookie's."""

    kind: str
    p99_before_ms: float
    p99_control_ms: float
    p99_ms: float
    longest_ms: float
    peak_mib: int
    after_mib: int
    processor_share: float
    """Of one processor, for the bookie."""

    longest_visit_ms: float = 0.0
    """Of a client that comes anew, writes, fences, reads and asks for news."""

    @property
    def ratio(self) -> float:
        """To what it was in peace."""
        return self.p99_ms / max(self.p99_before_ms, 0.001)

    @property
    def control_ratio(self) -> float:
        """To what the other bookie's neighbour had at the same time."""
        return self.p99_ms / max(self.p99_control_ms, 0.001)


@dataclass
class Report:
    """All kinds of a run."""

    seconds: float
    entries: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """For ``tests.proof``."""
        return asdict(self)


def run(kinds: Sequence[str], seconds: float) -> Report:
    """Attack with each kind for so many seconds."""
    report = Report(seconds)
    with tempfile.TemporaryDirectory() as directory, Victim(Path(directory)) as victim:
        for beside in (victim.neighbour, victim.control, victim.visitor):
            while beside.is_alive and not beside.has_begun:
                time.sleep(0.05)
        for kind in kinds:
            _attack(victim, kind, seconds, report)
            if not victim.is_alive:
                ended = f"{kind}: bookie, neighbour or visitor ended"
                report.problems.append(f"{ended}\n{victim.log[-3000:]}")
                return report
        report.entries = len(victim.neighbour.latencies(0.0, time.monotonic()))
        if victim.neighbour.finish() != 0:
            report.problems.append("the neighbour misses entries that were acknowledged")
        if "Traceback" in victim.log:
            at = victim.log.index("Traceback")
            report.problems.append(f"the bookie was surprised: {victim.log[at - 500 : at + 2000]}")
    return report


def _attack(victim: Victim, kind: str, seconds: float, report: Report) -> None:
    began = time.monotonic()
    time.sleep(QUIET_S)
    attacked = time.monotonic()
    log_bytes, processor_s = len(victim.log), victim.processor_s
    victim.forget_peak()
    target = Target(victim.address, victim.admin_address, BOOKIE)
    asyncio.run(_for_a_while(kind, target, seconds, victim))
    ended = time.monotonic()
    processor_s = victim.processor_s - processor_s
    before = victim.neighbour.latencies(began, attacked)
    during = victim.neighbour.latencies(attacked, ended)
    beside = victim.control.latencies(attacked, ended)
    time.sleep(0.5)
    peak, now = victim.memory()
    outcome = Outcome(
        kind,
        quantile(before, 0.99),
        quantile(beside, 0.99),
        quantile(during, 0.99),
        1e3 * max(during, default=0.0),
        peak,
        now,
        round(processor_s / (ended - attacked), 2),
        1e3 * max(victim.visitor.latencies(attacked, ended), default=0.0),
    )
    report.outcomes.append(outcome)
    print(line(outcome), flush=True)
    if peak > BUDGET_MIB:
        report.problems.append(f"{kind}: the bookie took {peak} MiB")
    slower = outcome.p99_ms / max(outcome.p99_control_ms, NOISE_MS)
    if slower > CONTROL_RATIO_MAX and seconds >= JUDGED_S:
        report.problems.append(f"{kind}: the neighbour's p99 got {slower:.1f} times slower")
    if outcome.longest_ms > 1e3 * HANG_S:
        report.problems.append(f"{kind}: the neighbour waited for {outcome.longest_ms:.0f} ms")
    bound_s = min(HANG_S, 0.9 * seconds) if seconds >= JUDGED_S else HANG_S
    if kind in TAKE_PLACES and outcome.longest_visit_ms > 1e3 * bound_s:
        report.problems.append(f"{kind}: nobody was taken in for {outcome.longest_visit_ms:.0f} ms")
    if len(victim.log) - log_bytes > LOG_BYTES_MAX:
        report.problems.append(f"{kind}: {len(victim.log) - log_bytes} bytes of log")


async def _for_a_while(kind: str, target: Target, seconds: float, victim: Victim) -> None:
    attack = asyncio.ensure_future(ATTACKS[kind](target))
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at and not attack.done():
        victim.look()
        await asyncio.wait([attack], timeout=LOOK_S)
    if attack.done():
        attack.result()
        raise AssertionError(f"{kind} ended before its time")
    attack.cancel()
    await asyncio.gather(attack, return_exceptions=True)
    await target.close()


def line(outcome: Outcome) -> str:
    """One row of the table."""
    return (
        f"{outcome.kind:36} {outcome.p99_before_ms:7.1f} {outcome.p99_control_ms:8.1f} "
        f"{outcome.p99_ms:9.1f} {outcome.ratio:8.1f} {outcome.control_ratio:10.1f} "
        f"{outcome.longest_ms:8.0f} {outcome.longest_visit_ms:8.0f} {outcome.peak_mib:5} "
        f"{outcome.after_mib:6} {outcome.processor_share:9.2f}"
    )


def table(report: Report) -> str:
    """What a reader looks at: the neighbour's p99 in milliseconds, its longest wait, the longest
    visit, and the bookie's memory."""
    head = (
        f"{'kind':36} {'alone':>7} {'control':>8} {'attacked':>9} {'to alone':>8} "
        f"{'to control':>10} {'longest':>8} {'visit':>8} {'peak':>5} {'after':>6} "
        f"{'processor':>9}"
    )
    rows = [line(outcome) for outcome in report.outcomes]
    return "\n".join((head, *rows, f"{report.entries} entries of the neighbour, all there"))
