"""One chaos run: warm up, inject faults, heal, stop, read everything afresh, judge."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from spark_ledger.aio import connect
from tests.chaos.faults import plan
from tests.chaos.final_state import read_final
from tests.chaos.nemesis import Nemesis
from tests.chaos.report import Report, make_report
from tests.chaos.stage import CLIENTS, Stage
from tests.chaos.stream_roles import SCHEMA, STREAM
from tests.history.checkers import check_all
from tests.history.liveness import Window, never_ended, stalled
from tests.history.model import History
from tests.history.violation import Violation

WARM_UP_SHARE, HEAL_SHARE = 0.1, 0.2
HEAL_S_MIN = 5.0
STALL_BOUND_S = 10.0
START_TIMEOUT_S = 60.0
INTERNAL_ERRORS = frozenset({"LedgerError", "AssertionError", "ConfigurationError"})


@dataclass(frozen=True, slots=True)
class Chaos:
    """What to run. ``seconds`` is the time under load, all phases together."""

    seconds: float
    seed: int
    mix: str = "all"
    bookies: int = 4
    appends_per_s: float = 150.0
    stall_bound_s: float = STALL_BOUND_S
    keep: Path | None = None
    """Where histories and logs are copied after a violation."""


def run(chaos: Chaos) -> Report:
    """Run it. Every process is gone when this returns or raises."""
    with Stage(chaos.seed, chaos.bookies, chaos.appends_per_s) as stage:
        asyncio.run(_create_stream(stage.cluster.direct_uri))
        stage.start_clients()
        _await_load(stage)
        nemesis, healed = _under_load(chaos, stage)
        deaths = stage.bookie_deaths() + stage.stop_clients()
        history = stage.history()
        final = asyncio.run(read_final(stage.cluster.direct_uri, stage.bookie_addresses(), history))
        violations = check_all(history, final)
        violations += stalled(history, healed, chaos.stall_bound_s)
        violations += never_ended(history, _alive(stage, history))
        violations += _internal_errors(history)
        violations += [Violation("I13", "died", text) for text in deaths]
        violations += [Violation("I13", "not-healed", text) for text in nemesis.errors]
        if violations and chaos.keep is not None:
            stage.keep(chaos.keep)
        return make_report(
            chaos.seed, chaos.mix, history, final, nemesis.windows, healed, violations
        )


def _under_load(chaos: Chaos, stage: Stage) -> tuple[Nemesis, Window]:
    """Run the three phases. Returns the nemesis, and the phase after healing."""
    warm_up_s = chaos.seconds * WARM_UP_SHARE
    heal_s = max(HEAL_S_MIN, chaos.seconds * HEAL_SHARE)
    faults_s = max(1.0, chaos.seconds - warm_up_s - heal_s)
    faults = plan(chaos.seed, faults_s, chaos.mix, bookies=chaos.bookies, clients=CLIENTS)
    nemesis = Nemesis(stage, faults)
    time.sleep(warm_up_s)
    nemesis.start()
    time.sleep(faults_s)
    nemesis.stop()
    nemesis.errors += stage.bookie_deaths()
    stage.heal()
    healed_ns = time.monotonic_ns()
    time.sleep(heal_s)
    return nemesis, Window("after healing", healed_ns, time.monotonic_ns())


async def _create_stream(uri: str) -> None:
    async with connect(uri) as client:
        await (await client.create_stream(STREAM, SCHEMA)).close()


def _await_load(stage: Stage) -> None:
    """Wait until every client has recorded something."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not all(path.exists() and path.stat().st_size for path in stage.histories):
        faults = stage.client_deaths()
        assert not faults, f"clients do not start: {faults}"
        assert time.monotonic() < deadline, f"no load after {START_TIMEOUT_S:g} s"
        time.sleep(0.05)


def _alive(stage: Stage, history: History) -> set[str]:
    """Processes in the history that nobody killed."""
    names = {client.name for client in stage.clients}
    processes = {event.process for event in history.events}
    return {process for process in processes if process.partition(".")[0] in names}


def _internal_errors(history: History) -> list[Violation]:
    """A bare LedgerError is a handle that crashed, which no fault may cause."""
    return [
        Violation("I13", "internal-error", f"{e.name} of {e.process}: {e.error}", (e.operation,))
        for e in history.events
        if e.error in INTERNAL_ERRORS
    ]
