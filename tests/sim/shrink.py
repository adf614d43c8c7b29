"""Makes a failing schedule simpler: leaves things out as long as it breaks the same promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.sim.options import Options, draw_options
from tests.sim.schedule import Outcome, run_schedule

Progress = Callable[[str], None]


def shrink(
    seed: int,
    options: dict[str, Any] | None = None,
    *,
    runs_max: int = 300,
    progress: Progress = lambda text: None,
) -> tuple[dict[str, Any], Outcome]:
    """The options of the simplest failing schedule that was found, and its outcome.

    Greedy: a simplification is kept if the schedule still breaks the same promise.
    """
    best = msgspec.to_builtins(draw_options(seed)) | (options or {})
    outcome = run_schedule(seed, best)
    assert outcome.violations, f"seed {seed} breaks nothing"
    promise = outcome.violations[0].invariant
    runs, again = 0, True
    while again:
        again = False
        for name, candidate in _simpler(msgspec.convert(best, Options)):
            if runs >= runs_max:
                return best, outcome
            runs += 1
            tried = run_schedule(seed, candidate)
            if any(violation.invariant == promise for violation in tried.violations):
                best, outcome, again = candidate, tried, True
                progress(f"{name}: {outcome.statistics.steps} steps")
                break
    return best, outcome


def _simpler(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Options with one thing less each, largest things first."""
    whole: dict[str, Any] = msgspec.to_builtins(options)
    for name, change in _changes(options):
        candidate = whole | change
        if candidate != whole:
            yield name, candidate


def _changes(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    ledgers: list[dict[str, Any]] = msgspec.to_builtins(options.ledgers)
    if options.stream is not None:
        yield "no stream", {"stream": None}
    for index in range(len(ledgers)):
        rest = ledgers[:index] + ledgers[index + 1 :]
        if rest or options.stream is not None:
            yield "one ledger less", {"ledgers": rest}
    if options.stream is not None:
        plan: dict[str, Any] = msgspec.to_builtins(options.stream)
        for name, value in (
            ("transactions", plan["transactions"] - 1),
            ("sinks", 1),
            ("rivals", 0),
            ("crash", 0.0),
            ("appends", 0),
            ("readers", 0),
        ):
            if name != "transactions" or value >= 1:
                yield f"stream: {name} = {value}", {"stream": plan | {name: value}}
    if options.repairers:
        yield "a repairer less", {"repairers": options.repairers - 1}
    if options.keepers:
        yield "a keeper less", {"keepers": options.keepers - 1}
    for half in (
        options.faults[: len(options.faults) // 2],
        options.faults[len(options.faults) // 2 :],
    ):
        yield "half of the faults", {"faults": list(half)}
    for kind in options.faults:
        yield f"no {kind}", {"faults": [other for other in options.faults if other != kind]}
    for name, value in (
        ("loss", 0.0),
        ("duplicates", 0.0),
        ("corruption", 0.0),
        ("metadata_faults", 0.0),
        ("stale_reads", False),
        ("drift", False),
        ("shuffle", False),
        ("delay", "uniform"),
        ("rot", ""),
        ("loses_newest", False),
        ("copies", False),
        ("overtakes", False),
        ("sessions_last", False),
        ("restores", False),
        ("empties", False),
        ("late_writes", False),
        ("stalls", False),
        ("busy", 0.0),
        ("lies", ""),
        ("collects", False),
        ("scrubs", False),
        ("lone_liar", True),
        ("ledger_stalls", False),
        ("false_fences", False),
        ("lonely_tails", False),
        ("shared_tails", False),
        ("drops", False),
        ("races", False),
        ("together", False),
        ("flush_s", 30.0),
        ("chunk_bytes", 1 << 20),
        ("write_cache_bytes", 65536),
    ):
        yield f"{name} = {value}", {name: value}
    for phase_s in (0.5, 1.0, 2.0, 4.0):
        if phase_s < options.phase_s:
            yield f"{phase_s} s", {"phase_s": phase_s}
    yield from _smaller_ledgers(ledgers)


def _smaller_ledgers(ledgers: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, plan in enumerate(ledgers):
        for name, value in (
            ("entries", plan["entries"] // 2),
            ("entries", plan["entries"] - 1),
            ("burst", 1),
            ("size", 0),
            ("tailers", 0),
            ("readers", 0),
            ("recoverers", plan["recoverers"] - 1),
            ("deletes", False),
            ("closes", False),
        ):
            if value >= 0 and (name != "entries" or value >= 1):
                changed = [dict(other) for other in ledgers]
                changed[index][name] = value
                yield f"ledger {index}: {name} = {value}", {"ledgers": changed}
