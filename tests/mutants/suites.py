"""The suites that kill mutants. Each runs until it finds something or has used up its budget.

``search`` begins afresh. ``replay`` begins where a mutant was killed before, and looks a little
further in case the killing schedule has moved.
"""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import msgspec

from tests.mutants.catalog import FOLDER, Mutant, SuiteName


class Kill(msgspec.Struct, frozen=True):
    """What killed a mutant."""

    suite: SuiteName
    seed: str
    """What to give to the suite to see it again: a seed, a scope, a file or a test."""
    tried: int
    """Schedules (or scripts, scopes, files) up to and including the killing one."""
    seconds: float
    what: str


KILLS: Final = FOLDER / "kills.json"


def kills_before() -> dict[str, Kill]:
    """What killed each mutant at the last search."""
    return msgspec.json.decode(KILLS.read_bytes(), type=dict[str, Kill])


Try = Callable[[], str]
"""Runs one check. Returns what it found, or ""."""

BUDGETS: Final[dict[SuiteName, tuple[int, float]]] = {
    "scenarios": (1_000, 60.0),
    "random": (3_000, 30.0),
    "exhaustive": (100, 60.0),
    "sim": (1_000, 120.0),
    "crash": (15, 45.0),
    "failures": (400, 120.0),
    "unit": (100, 120.0),
}
"""The most checks and the most seconds of one suite for one mutant."""

HANGS_AFTER_S: Final = 300.0
"""Seconds after which one check counts as a hang, which is a finding; a fifth of it in processor
time. The slowest check takes a few seconds."""

_OPERATIONS_FAILED: Final = 250
"""Operations of a workload that are made to fail; it has fewer."""

REPLAYED: Final = 40
"""Schedules that a replay tries behind the recorded one."""


def search(name: SuiteName, mutant: Mutant, effort: float) -> tuple[Kill | None, int, float]:
    """Search afresh. Returns the kill or None, the number of checks, and seconds. ``effort`` scales
    the budget."""
    tries_max, seconds_max = BUDGETS[name]
    return _run(name, _SUITES[name](mutant, None), tries_max * effort, seconds_max * effort)


def replay(kill: Kill, mutant: Mutant) -> Kill | None:
    """Repeat a kill, where it was or by a short search. None if the mutant survives that."""
    checks = _SUITES[kill.suite](mutant, kill.seed)
    with contextlib.suppress(UnusableError):  # the test has been renamed
        if again := _run(kill.suite, checks, REPLAYED, 60.0)[0]:
            return again
    return search(kill.suite, mutant, 0.2)[0]


def finds_in_sources(kill: Kill, mutant: Mutant) -> str:
    """What the killing check finds in the sources without the mutant: "" if the kill counts."""
    _, check = next(iter(_SUITES[kill.suite](mutant, kill.seed)))
    return _attempt(check)


def _run(
    name: SuiteName, checks: Iterable[tuple[str, Try]], tries_max: float, seconds_max: float
) -> tuple[Kill | None, int, float]:
    began = time.process_time()
    tried = 0
    for seed, check in checks:
        if tried >= tries_max or time.process_time() - began > seconds_max:
            break
        tried += 1
        what = _attempt(check)
        if what:
            seconds = round(time.process_time() - began, 2)
            if name == "unit":
                seed = what  # this one test shows it again
            return Kill(name, seed, tried, seconds, what[:200]), tried, seconds
    return None, tried, round(time.process_time() - began, 2)


class UnusableError(BaseException):
    """A check cannot be run at all, which says nothing about the mutant."""


class HangError(BaseException):
    """A check did not end. Not an Exception, so that nothing on the way catches it."""


def _hang(_number: int, _frame: object) -> None:
    raise HangError("no end")


def _attempt(check: Try) -> str:
    """Run a check. Any error is a finding, because the check passes without the mutant."""
    logging.disable(logging.CRITICAL)
    output = io.StringIO()
    signal.signal(signal.SIGALRM, _hang)
    signal.signal(signal.SIGPROF, _hang)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER_S)
    signal.setitimer(signal.ITIMER_PROF, HANGS_AFTER_S / 5)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return check()
    except (Exception, HangError) as error:  # noqa: BLE001 - whatever a mutant causes
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


_PYTEST: Final = ("-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "timeout=0")

# -- the suites ------------------------------------------------------------------------------------


def _scenarios(_mutant: Mutant, start: str | None) -> Iterator[tuple[str, Try]]:
    from tests.scenarios.script import files, run

    def check(text: str) -> str:
        return "" if run(text) == text else "the script goes differently"

    for path in files():
        if start in (None, path.stem):
            text = path.read_text(encoding="utf-8")
            yield path.stem, partial(check, text)


def _random(_mutant: Mutant, start: str | None) -> Iterator[tuple[str, Try]]:
    from tests.scenarios.test_random_schedules import Schedule

    def check(seed: int) -> str:
        Schedule(seed).run()
        return ""

    for seed in _seeds(start):
        yield str(seed), partial(check, seed)


def _exhaustive(_mutant: Mutant, start: str | None) -> Iterator[tuple[str, Try]]:
    from tests.exhaustive.scopes import QUICK, Scope
    from tests.exhaustive.search import Search

    def check(scope: Scope) -> str:
        return Search(scope).run(200_000).violation

    for scope in QUICK:
        if start in (None, scope.name):
            yield scope.name, partial(check, scope)


def _sim(mutant: Mutant, start: str | None) -> Iterator[tuple[str, Try]]:
    from tests.sim.running import seeds_with
    from tests.sim.schedule import run_schedule

    def check(seed: int) -> str:
        return "; ".join(map(str, run_schedule(seed).violations))

    for seed in seeds_with(mutant.only, 0 if start is None else int(start)):
        yield str(seed), partial(check, seed)


def _crash(_mutant: Mutant, start: str | None) -> Iterator[tuple[str, Try]]:
    """Workloads of the crash loop, each with a crash at every operation."""
    from tests.crash.points import CrashLoop

    def check(seed: int) -> str:
        CrashLoop(seed).run(1)
        return ""

    for seed in _seeds(start):
        yield str(seed), partial(check, seed)


def _failures(_mutant: Mutant, start: str | None) -> Iterator[tuple[str, Try]]:
    """Operations of a workload, each of which fails in two ways. Seeds are "workload:operation"."""
    from tests.crash.failures import FailureTally, _hows, _run

    def check(seed: int, at: int) -> str:
        for how in _hows(at, 2):
            _run(seed, at, how, FailureTally(seed))
        return ""

    first, _, at = (start or "71:1").partition(":")
    for number in range(int(at), _OPERATIONS_FAILED):
        yield f"{first}:{number}", partial(check, int(first), number)


def _unit(mutant: Mutant, start: str | None) -> Iterator[tuple[str, Try]]:
    for path in mutant.unit_tests if start is None else [start]:
        yield path, partial(_pytest, path)


def _pytest(target: str) -> str:
    import pytest

    seen = _Seen()
    logging.disable(logging.NOTSET)  # tests look at what is logged; pytest keeps it to itself
    code = pytest.main([*_PYTEST, target], plugins=[seen])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return seen.failed
    raise UnusableError(f"pytest {target} ends with {code!r}")


class _Seen:
    """Remembers the first test that failed."""

    failed = ""

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.failed:
            self.failed = str(getattr(report, "nodeid", "a test"))


def _seeds(start: str | None) -> Iterator[int]:
    first = 0 if start is None else int(start)
    yield from range(first, first + 10**6)


_SUITES: Final[dict[SuiteName, Callable[[Mutant, str | None], Iterator[tuple[str, Try]]]]] = {
    "scenarios": _scenarios,
    "random": _random,
    "exhaustive": _exhaustive,
    "sim": _sim,
    "crash": _crash,
    "failures": _failures,
    "unit": _unit,
}


def warm() -> None:
    """Import all that the suites need, so that every mutant starts from a fork of this process."""
    import pytest

    import tests.crash.failures
    import tests.crash.points
    import tests.exhaustive.search
    import tests.scenarios.script
    import tests.scenarios.test_random_schedules
    import tests.sim.schedule

    assert tests.crash and tests.exhaustive and tests.scenarios and tests.sim
    with contextlib.redirect_stdout(io.StringIO()):  # loads pytest's plugins, which takes a second
        code = pytest.main([*_PYTEST, "--collect-only", "tests/unit/bookie_server/core"])
    assert code == pytest.ExitCode.OK, code
