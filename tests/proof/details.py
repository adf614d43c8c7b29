"""tests/proof/README.md and tests/mutants/README.md from figures: all that PROOF.md leaves out."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.mutants.catalog import FOLDER, load
from tests.mutants.suites import Kill, kills_before
from tests.proof.page import BUGS
from tests.proof.steps import STEPS
from tests.proof.tables import Figures, figures_of, table

COUNTS_PAGE: Final = Path(__file__).parent / "README.md"
MUTANTS_PAGE: Final = FOLDER / "README.md"

_COUNTS_HEAD: Final = """\
# What the proofs counted

The counts behind [PROOF.md](../../PROOF.md), written by `python -m tests.proof` from the figures
beside this file. A fault is listed under the name that its tool prints.
"""

_MADE_BELOW: Final = "<!-- python -m tests.proof --page writes what follows -->\n"
"""Ends the part of the mutants' page that is written by hand."""


def counts_page() -> str:
    """All counts. Raises FileNotFoundError if the figures of a run are missing."""
    parts = [_COUNTS_HEAD]
    for step in STEPS:
        if step.name in _SECTIONS:
            title, section = _SECTIONS[step.name]
            parts.append(f"## {title}\n\n`{step.command}`\n\n{section(figures_of(step))}")
    parts.append(f"## Bugs, and what was changed\n\n{_fixes()}")
    return "\n".join(parts)


def mutants_page() -> str:
    """The head of the page as it is, then every mutant and what killed it at the last search."""
    catalog = {mutant.name: mutant for mutant in load()}
    kills = kills_before()
    by_hand, mark, _ = MUTANTS_PAGE.read_text(encoding="utf-8").partition(_MADE_BELOW)
    parts = [by_hand + mark]
    for area in dict.fromkeys(mutant.area for mutant in catalog.values()):
        rows = [
            (f"`{mutant.name}`", mutant.resembles, *_killed_by(kills[mutant.name]))
            for mutant in catalog.values()
            if mutant.area == area and not mutant.equivalent
        ]
        parts.append(f"## {area}.toml\n\n{table(('mutant', 'bug', 'found by', 'at'), rows)}")
    equivalent = [(f"`{m.name}`", m.equivalent) for m in catalog.values() if m.equivalent]
    parts.append(
        "## Not counted\n\nOther rules make these harmless, so nothing can find them.\n\n"
        f"{table(('mutant', 'why'), equivalent)}"
    )
    return "\n".join(parts)


def _killed_by(kill: Kill) -> tuple[str, str]:
    """The suite that found a mutant, and its seed, script or test."""
    return kill.suite, f"`{kill.seed.removeprefix('tests/unit/')}`"


def _sim(figures: Figures) -> str:
    totals = [
        ("commit", figures["commit"][:7]),
        ("schedules", figures["schedules"]),
        ("violations", len(figures["failures"])),
        ("faults", figures["faults"]),
        ("steps of the event loop", figures["steps"]),
        ("virtual hours", round(figures["virtual_s"] / 3600)),
        *sorted(figures["counts"].items()),
    ]
    kinds = figures["faults_by_kind"].items()
    return table(("what", "number"), totals) + "\n" + table(("fault", "number"), kinds)


def _exhaustive(figures: Figures) -> str:
    rows = (
        (
            f["scope"],
            f["states"],
            f["transitions"],
            f["depth"],
            f["complete"],
            f["violation"] or "none",
        )
        for f in figures
    )
    return table(("scope", "states", "transitions", "depth", "complete", "violation"), rows)


def _crash(figures: Figures) -> str:
    points, rot = figures["points"], figures["rot"]
    runs = [
        ("crash points recovered", points["crash_points"]),
        ("of them in a recovery, or in a recovery from that", _deep(points["by_depth"])),
        ("entries acknowledged before", points["acknowledged_entries"]),
        ("runs with a failing operation", sum(f["runs"] for f in figures["failures"])),
        ("failing operations in them", sum(f["faults"] for f in figures["failures"])),
        ("damages to a small store", rot["damages"]),
    ]
    return "\n".join(
        (
            table(("what", "number"), runs),
            table(
                ("what a crash did to unsynced data", "number"), sorted(points["by_kind"].items())
            ),
            table(("answer after damage", "number"), sorted(rot["by_outcome"].items())),
        )
    )


def _deep(by_depth: dict[str, int]) -> int:
    return sum(number for depth, number in by_depth.items() if depth != "1")


def _fuzz(figures: Figures) -> str:
    rows = ((name, f["inputs"], f["valid"], f["refused"]) for name, f in figures["parsers"].items())
    return f"Seed {figures['seed']}.\n\n" + table(
        ("parser", "inputs", "still valid", "refused"), rows
    )


def _chaos(figures: Figures) -> str:
    totals = [
        ("seed", ", ".join(map(str, figures["seeds"]))),
        ("seconds", round(figures["seconds"])),
        ("operations", figures["operations"]),
        ("acknowledged entries", figures["acknowledged"]),
        ("commits", figures["commits"]),
        ("entries lost", figures["lost"]),
        ("entries diverged", figures["diverged"]),
        ("violations of other promises", len(figures["violations"])),
        ("longest stall after healing, s", f"{figures['stall_after_heal_s']:.1f}"),
    ]
    stalls = figures["stalls_s"]
    faults = (
        (kind, number, f"{stalls[kind]:.1f}" if kind in stalls else "")
        for kind, number in sorted(figures["faults"].items())
    )
    heads = ("fault", "number", "longest stall around it, s")
    return table(("what", "number"), totals) + "\n" + table(heads, faults)


def _hostile(figures: Figures) -> str:
    rows = (
        (
            outcome["kind"],
            f"{outcome['p99_before_ms']:.1f}",
            f"{outcome.get('p99_control_ms', 0.0):.1f}",
            f"{outcome['p99_ms']:.1f}",
            f"{outcome['longest_ms']:.0f}",
            outcome["peak_mib"],
            f"{outcome.get('processor_share', 0.0):.2f}",
        )
        for outcome in figures["outcomes"]
    )
    heads = (
        "kind of client", "append of the neighbour before, p99 ms", "meanwhile at another bookie",
        "under attack, p99 ms", "longest, ms", "the bookie's memory at most, MiB",
        "its share of a processor",
    )  # fmt: skip
    return f"Each kind for {figures['seconds']:g} s.\n\n" + table(heads, rows)


def _lab(figures: Figures) -> str:
    models = (
        (name, m["schedules"], m["lost"], m["stale"], m["unacknowledged"], len(m["broken"]))
        for name, m in figures["models"].items()
    )
    weak = (
        (name, one["schedules"], "none" if one["seed"] is None else one["seed"], one["lost"])
        for name, one in figures["weaknesses"].items()
    )
    heads = (
        "model", "schedules", "in which values were lost", "in which reads were old",
        "values never acknowledged", "invariants broken",
    )  # fmt: skip
    found = (
        "Settings that promise less, and the first seed of `ledger lab explain drawn --seed N`\n"
    )
    return (
        table(heads, models)
        + f"\n{found}that loses a value or shows an old one.\n\n"
        + table(("setting", "schedules", "seed", "values lost, at most"), weak)
    )


def _fixes() -> str:
    bugs = tomllib.loads(BUGS.read_text(encoding="utf-8"))["bugs"]
    return table(("bug", "what was changed"), ((bug["bug"], bug["fix"]) for bug in bugs))


_SECTIONS: Final[dict[str, tuple[str, Callable[[Figures], str]]]] = {
    "sim": ("Simulation", _sim),
    "exhaustive": ("Search of small scopes", _exhaustive),
    "crash": ("Crashes, failing operations and damage", _crash),
    "fuzz": ("Fuzzing", _fuzz),
    "chaos": ("Chaos", _chaos),
    "hostile": ("Attack", _hostile),
    "lab": ("Other protocols", _lab),
}
