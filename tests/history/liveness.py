"""Liveness (I13): how long clients waited, by operation, by fault, and after healing.

A stall is a time in which no append succeeded although one was in flight. Times are reported, and
compared only with bounds that the caller gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.history.model import FOREVER, History, Operation, Phase
from tests.history.violation import Violation

SECOND_NS = 1_000_000_000


class Window(NamedTuple):
    """A named stretch of time: a fault from its injection until it was healed, or a phase."""

    name: str
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Counts of the operations of one name, and latencies in seconds of those that succeeded."""

    name: str
    ok: int
    failed: int
    unknown: int
    p50_s: float
    p99_s: float
    longest_s: float


def latencies(history: History) -> list[Latency]:
    """One row per operation name, sorted."""
    by_name: dict[str, list[Operation]] = {}
    for operation in history.operations():
        by_name.setdefault(operation.invoke.name, []).append(operation)
    return [_latency(name, operations) for name, operations in sorted(by_name.items())]


def _latency(name: str, operations: Sequence[Operation]) -> Latency:
    phases = [o.phase for o in operations]
    times = sorted(
        (o.end.time_ns - o.invoke.time_ns) / SECOND_NS
        for o in operations
        if o.ok and o.end is not None
    )
    return Latency(
        name,
        ok=len(times),
        failed=phases.count(Phase.FAIL),
        unknown=phases.count(Phase.UNKNOWN),
        p50_s=_quantile(times, 0.5),
        p99_s=_quantile(times, 0.99),
        longest_s=times[-1] if times else 0.0,
    )


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0


def longest_stall(history: History, window: Window, names: Iterable[str] = ("append",)) -> float:
    """The longest time within a window, in seconds, without a success of these operations. A window
    without any such invocation has no stall."""
    wanted = frozenset(names)
    done: list[int] = []
    asked = False
    for operation in history.operations():
        if operation.invoke.name not in wanted:
            continue
        end_ns = operation.end.time_ns if operation.end is not None else None
        overlaps = operation.invoke.time_ns <= window.last_ns
        asked = asked or (overlaps and (end_ns is None or end_ns >= window.first_ns))
        if operation.ok and end_ns is not None and window.first_ns <= end_ns <= window.last_ns:
            done.append(end_ns)
    if not asked:
        return 0.0
    moments = [window.first_ns, *sorted(done), window.last_ns]
    return max(b - a for a, b in pairwise(moments)) / SECOND_NS


def longest_wait(history: History, since_ns: int) -> tuple[float, Operation | None]:
    """The slowest operation that ended (or began) after ``since_ns``, in seconds, counted from
    ``since_ns`` at the earliest."""
    worst, which = 0.0, None
    for operation in history.operations():
        if operation.end is None or operation.end.time_ns < since_ns:
            continue
        wait_s = (operation.end.time_ns - max(since_ns, operation.invoke.time_ns)) / SECOND_NS
        if wait_s > worst:
            worst, which = wait_s, operation
    return worst, which


def never_ended(history: History, alive: Iterable[str]) -> list[Violation]:
    """I13: after healing, every operation of a living process has ended."""
    living = frozenset(alive)
    return [
        Violation(
            "I13",
            "never-ended",
            f"{o.invoke.name} of {o.invoke.process} (ledger {o.invoke.ledger_id}) never ended",
            (o.number,),
        )
        for o in history.operations()
        if o.ended == FOREVER and o.invoke.process in living
    ]


def stalled(history: History, healed: Window, bound_s: float) -> list[Violation]:
    """I13: after healing, appends succeed within a bound, and no operation takes longer."""
    found = []
    stall_s = longest_stall(history, healed)
    if stall_s > bound_s:
        text = f"no append succeeded for {stall_s:.1f} s after healing; the bound is {bound_s:g} s"
        found.append(Violation("I13", "stall", text))
    wait_s, operation = longest_wait(history, healed.first_ns)
    if operation is not None and wait_s > bound_s:
        text = (
            f"{operation.invoke.name} of {operation.invoke.process} took {wait_s:.1f} s after "
            f"healing; the bound is {bound_s:g} s"
        )
        found.append(Violation("I13", "stall", text, (operation.number,)))
    return found
