"""Simulated schedules break no promise, and each of them can be repeated.

SPARK_LEDGER_SIM_SCHEDULES sets how many; ``python -m tests.sim`` runs any number, and replays one.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Final

import pytest

from tests import effort
from tests.sim import running
from tests.sim.options import FAULTS, draw_options
from tests.sim.regressions import options_saved, saved
from tests.sim.running import Totals, differing_seeds, run_many, seeds_with
from tests.sim.schedule import Outcome, run_schedule

SCHEDULES: Final = int(
    os.environ.get("SPARK_LEDGER_SIM_SCHEDULES", str(effort.SIMULATED_SCHEDULES.test))
)

PER_THOUSAND_AT_LEAST: Final = {
    "adds during a flush": 300,
    "adds refused by a fence": 1000,
    "bookie gave up": 30,
    "bookie starts": 5000,
    "closed by recovery": 300,
    "closed by writer": 300,
    "commits refused beside a deletion": 15,
    "commits applied": 300,
    "commits repeated": 50,
    "ensemble changes": 250,
    "entries acknowledged": 8000,
    "entries read": 20000,
    "holds granted": 60,
    "manifests merged": 50,
    "manifests sealed": 100,
    "recoveries": 500,
    "recoveries that met": 200,
    "slower sinks refused": 5,
    "strangers refused": 500,
}
"""How often each of these has to happen in a thousand schedules; else they test less than it
seems."""


@pytest.fixture(scope="module")
def totals() -> Totals:
    """All schedules, run once."""
    return run_many(0, SCHEDULES, jobs=2)


@pytest.mark.timeout(900)
def test_schedules_keep_every_promise(totals: Totals) -> None:
    """Each seed draws its own cluster, workload and faults."""
    report = "\n".join(
        f"seed {failure.seed}: {failure.violations[0]}" for failure in totals.failures[:10]
    )
    assert not totals.failures, f"{report}\nreplay one: python -m tests.sim --seed SEED"
    assert totals.schedules == SCHEDULES


@pytest.mark.timeout(900)
def test_schedules_are_hostile(totals: Totals) -> None:
    """Faults of every kind strike, and they cause what they are meant to cause."""
    assert totals.all_faults >= 10 * SCHEDULES
    if SCHEDULES < 1000:
        return  # too few for what is rare
    missing = {kind.replace("_", " ") for kind in FAULTS} - totals.faults.keys()
    assert not missing, f"these faults never struck: {sorted(missing)}"
    rare = {
        name: totals.counts[name]
        for name, number in PER_THOUSAND_AT_LEAST.items()
        if totals.counts[name] < number * SCHEDULES / 1000
    }
    assert not rare, f"too few of these in {SCHEDULES} schedules: {rare}"


def test_faults_that_strike_are_explained_in_the_readme(totals: Totals) -> None:
    table = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    heads = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    explained = {name for head in heads for name in head.split(", ")}
    assert not totals.faults.keys() - explained


@pytest.mark.timeout(300)
def test_seed_gives_the_same_trace_in_another_process() -> None:
    """The same trace here and in a process with another hash seed."""
    different = differing_seeds(0, effort.SIMULATED_TWICE.test)
    assert not different, f"these seeds do not repeat: {different}"


@pytest.mark.parametrize("path", saved(), ids=lambda path: path.stem)
def test_schedule_that_failed_once_passes(path: Path) -> None:
    """Saved schedules, run with the options they failed with."""
    seed = int(path.stem.removeprefix("sim_"))
    outcome = run_schedule(seed, options_saved(seed))
    assert not outcome.violations, [str(violation) for violation in outcome.violations]


def test_only_an_option_leaves_out_the_seeds_that_do_not_draw_it() -> None:
    seeds = list(itertools.islice(seeds_with("repairers", 100), 5))
    assert all(draw_options(seed).repairers for seed in seeds)
    assert not any(draw_options(seed).repairers for seed in {*range(100, seeds[-1])} - {*seeds})
    (seed,) = itertools.islice(seeds_with("restores+stream", 0), 1)
    assert draw_options(seed).restores and draw_options(seed).stream
    with pytest.raises(ValueError, match="no option of a schedule"):
        next(seeds_with("repairs", 0))


def test_schedule_that_an_error_ends_is_a_failure_with_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks_off(seed: int) -> Outcome:
        if seed == 1:
            raise AssertionError("it is taken back")
        return run_schedule(seed)

    monkeypatch.setattr(running, "run_schedule", breaks_off)
    totals = run_many(0, 3, jobs=1)
    assert totals.schedules == 3
    (failure,) = totals.failures
    assert (failure.seed, failure.violations) == (1, ["AssertionError: it is taken back"])
    assert failure.options and failure.trace
