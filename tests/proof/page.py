"""PROOF.md from figures: what was done to break the system, what that found, what is open."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests import effort
from tests.proof.steps import STEPS
from tests.proof.tables import Figures, figures_of, table

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "PROOF.md"
BUGS: Final = Path(__file__).parent / "bugs.toml"

_HEAD: Final = """\
# Proof

What was done to break this system, what was found, and how to see it again. `make proof` runs all
of it and writes this page from what it finds; `make test` runs a share of each proof before every
commit ([`tests/effort.py`](tests/effort.py) lists both). Every run starts from a seed. A seed that
fails becomes a file under `tests/regressions`, which every later run replays.

The promises I1 to I16 are those of [ARCHITECTURE.md](ARCHITECTURE.md#what-must-always-hold). All
counts of the runs below are in [tests/proof](tests/proof/README.md); the bugs that were put in on
purpose, and what found each, are in [tests/mutants](tests/mutants/README.md).
"""


def page() -> str:
    """The whole page. Raises FileNotFoundError if the figures of a run are missing."""
    rows = [
        (
            f"**{_NAMES[step.name]}.** {_METHODS[step.name]}",
            f"`{step.command}`",
            _FINDINGS[step.name](figures_of(step)),
            _SHARES[step.name],
        )
        for step in STEPS
    ]
    runs = table(("proof", "command", "the last run", "share in `make test`"), rows)
    return "\n".join(
        (
            _HEAD,
            f"## What was done\n\n{runs}",
            f"## Bugs of our own that this found\n\n{_bugs()}",
            f"## Open\n\n{_open()}",
        )
    )


def _sim(figures: Figures) -> str:
    kinds = len(figures["faults_by_kind"])
    return (
        f"{figures['schedules']:,} schedules, {round(figures['virtual_s'] / 3600)} virtual hours, "
        f"{figures['faults']:,} faults of {kinds} kinds, "
        f"{figures['counts']['entries acknowledged']:,} entries acknowledged: "
        f"{len(figures['failures'])} violations (commit {figures['commit'][:7]})"
    )


def _exhaustive(figures: Figures) -> str:
    states, broken = sum(f["states"] for f in figures), sum(bool(f["violation"]) for f in figures)
    complete = sum(f["complete"] for f in figures)
    return (
        f"{len(figures)} scopes, {complete} of them searched whole, {states:,} states: "
        f"{broken} violations"
    )


def _mutants(figures: Figures) -> str:
    killed = sum(any(tried["kill"] for tried in verdict["tried"]) for verdict in figures)
    return f"{len(figures)} bugs, {killed} found, {len(figures) - killed} survive"


def _crash(figures: Figures) -> str:
    return (
        f"{figures['points']['crash_points']:,} crash points, "
        f"{sum(f['faults'] for f in figures['failures']):,} failing operations, "
        f"{figures['rot']['damages']:,} damages: nothing acknowledged was lost, nothing false "
        "was served"
    )


def _fuzz(figures: Figures) -> str:
    return (
        f"{figures['inputs']:,} inputs to {len(figures['parsers'])} parsers: no crash, no hang, "
        "no damage accepted where a checksum covers it"
    )


def _chaos(figures: Figures) -> str:
    return (
        f"{round(figures['seconds'])} s, {sum(figures['faults'].values())} faults of "
        f"{len(figures['faults'])} kinds, {figures['acknowledged']:,} entries acknowledged: "
        f"{figures['lost']} lost, {len(figures['violations'])} violations"
    )


def _hostile(figures: Figures) -> str:
    outcomes = figures["outcomes"]
    return (
        f"{len(outcomes)} kinds, {figures['seconds']:g} s each, "
        f"{figures['entries']:,} entries of a neighbour: {len(figures['problems'])} problems; it "
        f"waited at most {max(o['longest_ms'] for o in outcomes) / 1e3:.1f} s for one, and the "
        f"bookie took at most {max(o['peak_mib'] for o in outcomes)} MiB"
    )


def _lab(figures: Figures) -> str:
    models, weak = figures["models"], figures["weaknesses"].values()
    runs = {model["schedules"] for model in models.values()}
    each = f"{min(runs):,}" if len(runs) == 1 else f"{min(runs):,} to {max(runs):,}"
    broken = sum(bool(m["lost"] or m["unacknowledged"] or m["broken"]) for m in models.values())
    found = sum(one["seed"] is not None for one in weak)
    return (
        f"{len(models)} models, {each} schedules of each: {broken} broke a promise; weaknesses of "
        f"{found} of {len(weak)} other settings were found"
    )


def _coverage(figures: Figures) -> str:
    return f"{figures['percent']:.0f} % of lines and branches of {len(figures['files'])} files"


def _bugs() -> str:
    bugs = tomllib.loads(BUGS.read_text(encoding="utf-8"))["bugs"]
    rows = ((bug["bug"], bug["found_by"], f"`{bug['see']}`") for bug in bugs)
    return table(("bug, fixed", "found by", "seen again with"), rows)


def _open() -> str:
    found = tomllib.loads(BUGS.read_text(encoding="utf-8")).get("open", [])
    if not found:
        return "Nothing that is known.\n"
    rows = ((one["what"], f"`{one['see']}`", one["state"]) for one in found)
    return table(("what", "seen with", "state"), rows)


_NAMES: Final = {
    "sim": "Simulation",
    "exhaustive": "Search",
    "mutants": "Mutants",
    "crash": "Crashes and disk faults",
    "fuzz": "Fuzzing",
    "chaos": "Chaos",
    "hostile": "Attack",
    "lab": "Other protocols",
    "coverage": "Branches",
}

_METHODS: Final = {
    "sim": "The real client and bookies on a simulated disk, network, ZooKeeper and clock",
    "exhaustive": "Every interleaving of the protocol machines in small scopes",
    "mutants": "Bugs put into the sources on purpose, most of which BookKeeper or a peer once had",
    "crash": "A bookie's storage: a crash at, and a failure of, each disk operation; damaged files",
    "fuzz": "Malformed input to every parser of bytes and text",
    "chaos": "Real processes under load that are killed, paused, cut off and rolled back; disks "
    "that are full or hang",
    "hostile": "Hostile clients against a real bookie, beside a steady appender",
    "lab": "The [lab](spark_ledger/lab/README.md)'s Kafka, Raft, RocketMQ, DLedger and BookKeeper, "
    "with faults drawn from a seed",
    "coverage": "Protocol, wire formats, rules and records of a bookie, by their own tests alone",
}

_SHARES: Final = {
    "sim": f"{effort.SIMULATED_SCHEDULES.test:,} schedules",
    "exhaustive": f"{effort.SCOPES.test} scopes",
    "mutants": f"{effort.MUTANTS.test} bugs",
    "crash": f"{effort.CRASH_POINTS.test:,} crash points, fewer of the others",
    "fuzz": f"{effort.FUZZED_INPUTS.test:,} inputs, and a bookie's socket",
    "chaos": f"three mixes of faults, {effort.CHAOS_SECONDS.test} s each",
    "hostile": f"{len(effort.HOSTILE_KINDS)} kinds, {effort.HOSTILE_SECONDS.test} s each",
    "lab": f"{effort.LAB_SCHEDULES.test} schedules of each model",
    "coverage": "these tests, not measured",
}

_FINDINGS: Final[dict[str, Callable[[Figures], str]]] = {
    "sim": _sim,
    "exhaustive": _exhaustive,
    "mutants": _mutants,
    "crash": _crash,
    "fuzz": _fuzz,
    "chaos": _chaos,
    "hostile": _hostile,
    "lab": _lab,
    "coverage": _coverage,
}

assert _FINDINGS.keys() == _NAMES.keys() == _METHODS.keys() == _SHARES.keys()
