"""PROOF.md from figures: no number on the page is typed by hand."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.mutants.catalog import load
from tests.proof.steps import STEPS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "PROOF.md"
BUGS: Final = Path(__file__).parent / "bugs.toml"

_HEAD: Final = """\
# Proof

What was done to break this system, what was found, and how to see it again. `python -m tests.proof`
wrote this page from the figures under `tests/proof/figures`; every run starts from a seed, and a
failing seed becomes a file under `tests/regressions`, which `make test` replays.

The promises I1 to I16 are those of [ARCHITECTURE.md](ARCHITECTURE.md#what-must-always-hold).
`make test` runs all of this too; the commands below take larger numbers.
"""

Figures = Any
"""What a tool wrote, as JSON."""


def page() -> str:
    """The whole page. FileNotFoundError names the run whose figures are missing."""
    parts = [_HEAD]
    for step in STEPS:
        figures = json.loads(step.figures.read_text(encoding="utf-8"))
        parts.append(
            f"## {_TITLES[step.name]}\n\n`{step.command}`\n\n{_SECTIONS[step.name](figures)}"
        )
    parts.append(f"## Bugs of our own that this work found\n\n{_bugs()}")
    parts.append(f"## Open\n\n{_open()}")
    return "\n".join(parts)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


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
    return _table(("what", "number"), totals) + "\n" + _table(("fault", "number"), kinds)


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
    return _table(("scope", "states", "transitions", "depth", "complete", "violation"), rows)


def _mutants(figures: Figures) -> str:
    catalog = {mutant.name: mutant for mutant in load()}
    rows = []
    survivors = 0
    for verdict in figures:
        kill = next((tried["kill"] for tried in verdict["tried"] if tried["kill"]), None)
        survivors += kill is None
        mutant = catalog[verdict["name"]]
        killed = (kill["suite"], kill["seed"], kill["tried"]) if kill else ("**survives**", "", "")
        rows.append((mutant.area, mutant.name, mutant.resembles, *killed))
    equivalent = [(m.name, m.equivalent) for m in catalog.values() if m.equivalent]
    text = f"{len(rows)} mutants, {len(rows) - survivors} killed, {survivors} survive.\n\n"
    text += _table(("area", "mutant", "resembles", "killed by", "seed or file", "tried"), rows)
    if equivalent:
        text += "\nNot counted, because other rules make them harmless:\n\n"
        text += _table(("mutant", "why"), equivalent)
    return text


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
    kinds = sorted(points["by_kind"].items())
    outcomes = sorted(rot["by_outcome"].items())
    return "\n".join(
        (
            "The model agrees: nothing acknowledged is gone, nothing else is there.\n",
            _table(("what", "number"), runs),
            _table(("what was not synced, at a crash", "number"), kinds),
            _table(("after damage", "number"), outcomes),
        )
    )


def _deep(by_depth: dict[str, int]) -> int:
    return sum(number for depth, number in by_depth.items() if depth != "1")


def _fuzz(figures: Figures) -> str:
    rows = ((name, f["inputs"], f["valid"], f["refused"]) for name, f in figures["parsers"].items())
    text = f"{figures['inputs']:,} inputs from seed {figures['seed']}: no crash, no hang, nothing "
    text += "damaged was accepted where a checksum covers it.\n\n"
    return text + _table(("parser", "inputs", "still valid", "refused"), rows)


def _chaos(figures: Figures) -> str:
    lengths = [
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
    return _table(("what", "number"), lengths) + "\n" + _table(heads, faults)


def _coverage(figures: Figures) -> str:
    return (
        f"{figures['percent']:.2f} % of lines and branches of the pure parts, from their own "
        f"tests: {len(figures['files'])} files of `spark_ledger/protocol`, `spark_ledger/wire`, "
        "`bookie_server/core`, and the records of `bookie_server/storage`.\n"
    )


def _bugs() -> str:
    bugs = tomllib.loads(BUGS.read_text(encoding="utf-8"))["bugs"]
    rows = ((bug["bug"], bug["found_by"], f"`{bug['see']}`", bug["fix"]) for bug in bugs)
    return _table(("bug", "found by", "seen again with", "fix"), rows)


def _open() -> str:
    found = tomllib.loads(BUGS.read_text(encoding="utf-8")).get("open", [])
    if not found:
        return "Nothing that is known.\n"
    rows = ((one["what"], f"`{one['see']}`", one["state"]) for one in found)
    return _table(("what", "seen with", "state"), rows)


_TITLES: Final = {
    "sim": "Simulation: the real client and bookies on simulated disks, network, ZooKeeper, clocks",
    "exhaustive": "Every interleaving of small scopes",
    "mutants": "Bugs put in on purpose",
    "crash": "A bookie's storage: crashes at every operation, failing operations, rot",
    "fuzz": "Malformed input to every parser",
    "chaos": "Real processes under load and faults",
    "coverage": "Branches",
}

_SECTIONS: Final[dict[str, Callable[[Figures], str]]] = {
    "sim": _sim,
    "exhaustive": _exhaustive,
    "mutants": _mutants,
    "crash": _crash,
    "fuzz": _fuzz,
    "chaos": _chaos,
    "coverage": _coverage,
}

assert _SECTIONS.keys() == _TITLES.keys() == {step.name for step in STEPS}
