"""One process per mutant: a fork of this one, which puts the mutant in and hunts it."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from tests.mutants import suites
from tests.mutants.catalog import Mutant, StaleError, SuiteName
from tests.mutants.patching import put_in
from tests.mutants.suites import Kill


class Tried(msgspec.Struct, frozen=True):
    """The result of one suite on one mutant."""

    suite: SuiteName
    tried: int
    seconds: float
    kill: Kill | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The result on one mutant."""

    name: str
    tried: tuple[Tried, ...] = ()
    error: str = ""
    """Why the mutant could not be judged."""

    @property
    def kill(self) -> Kill | None:
        """The first kill."""
        return next((t.kill for t in self.tried if t.kill is not None), None)

    @property
    def seconds(self) -> float:
        """Seconds in all suites together."""
        return sum(tried.seconds for tried in self.tried)


Judge = Callable[[Mutant], Verdict]
"""Judges a mutant, in the mutant's own process."""


def hunt(effort: float) -> Judge:
    """A judge that tries the expected killers in turn, until one kills."""
    return lambda mutant: _hunt(mutant, mutant.killers, effort, first_only=True)


def hunt_with_all(names: tuple[SuiteName, ...], effort: float) -> Judge:
    """A judge that tries all of these suites, also after a kill."""
    return lambda mutant: _hunt(mutant, names, effort, first_only=False)


def _hunt(
    mutant: Mutant, names: Iterable[SuiteName], effort: float, *, first_only: bool
) -> Verdict:
    if error := _put_in(mutant):
        return Verdict(mutant.name, error=error)
    tried: list[Tried] = []
    for name in names:
        kill, count, seconds = suites.search(name, mutant, effort)
        tried.append(Tried(name, count, seconds, kill))
        if kill is not None and first_only:
            break
    return Verdict(mutant.name, tuple(tried))


def hunt_again(kills: dict[str, Kill]) -> Judge:
    """A judge that repeats only what killed each mutant before."""

    def again(mutant: Mutant) -> Verdict:
        if error := _put_in(mutant):
            return Verdict(mutant.name, error=error)
        before = kills[mutant.name]
        began = time.monotonic()
        kill = suites.replay(before, mutant)
        seconds = round(time.monotonic() - began, 2)
        tries = kill.tried if kill else suites.REPLAYED
        return Verdict(mutant.name, (Tried(before.suite, tries, seconds, kill),))

    return again


def _put_in(mutant: Mutant) -> str:
    """Put the mutant into this process. Returns why that failed, or ""."""
    try:
        put_in(mutant)
    except (StaleError, SyntaxError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


class _Child(NamedTuple):
    mutant: Mutant
    pid: int
    ends_at: float
    parts: list[bytes]


def run_all(
    mutants: Iterable[Mutant],
    judge: Judge,
    *,
    jobs: int,
    seconds_max: float,
    done: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """A verdict on each mutant. One that takes longer than ``seconds_max`` is ended."""
    waiting = list(mutants)
    verdicts: list[Verdict] = []
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < jobs:
                mutant = waiting.pop(0)
                read_end, pid = _start(mutant, judge)
                child = _Child(mutant, pid, time.monotonic() + seconds_max, [])
                selector.register(read_end, selectors.EVENT_READ, child)
            for verdict in _collect(selector):
                verdicts.append(verdict)
                done(verdict)
    return verdicts


def _start(mutant: Mutant, judge: Judge) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return read_end, pid
    os.close(read_end)
    code = 1
    try:
        try:
            verdict = judge(mutant)
        except suites.UnusableError as error:
            verdict = Verdict(mutant.name, error=f"{error}")
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(msgspec.json.encode(verdict))
        code = 0
    finally:
        os._exit(code)  # nothing of the fork may run on: no pytest, no progress bar


def without_false_kills(
    verdicts: Iterable[Verdict], mutants: Iterable[Mutant], *, jobs: int, seconds_max: float
) -> list[Verdict]:
    """The verdicts, where a kill counts only if its check passes without the mutant."""
    by_name = {mutant.name: mutant for mutant in mutants}
    kills = {v.name: v.kill for v in verdicts if v.kill is not None}
    asked = {(kill.suite, kill.seed): name for name, kill in kills.items()}

    def doubt(mutant: Mutant) -> Verdict:
        return Verdict(mutant.name, error=suites.finds_in_sources(kills[mutant.name], mutant))

    answers = {
        verdict.name: verdict.error
        for verdict in run_all(
            [by_name[name] for name in asked.values()], doubt, jobs=jobs, seconds_max=seconds_max
        )
    }
    return [
        msgspec.structs.replace(
            v, tried=(), error=f"{kill.suite} {kill.seed} fails without it: {e}"
        )
        if (kill := v.kill) and (e := answers[asked[kill.suite, kill.seed]])
        else v
        for v in verdicts
    ]


def _collect(selector: selectors.BaseSelector) -> Iterable[Verdict]:
    for key, _ in selector.select(timeout=0.5):
        child: _Child = key.data
        part = os.read(key.fd, 1 << 16)
        if part:
            child.parts.append(part)
            continue
        selector.unregister(key.fd)
        os.close(key.fd)
        _, status = os.waitpid(child.pid, 0)
        yield _verdict(child, status)
    for key in list(selector.get_map().values()):
        child = key.data
        if time.monotonic() > child.ends_at:
            os.kill(child.pid, signal.SIGKILL)


def _verdict(child: _Child, status: int) -> Verdict:
    if child.parts:
        return msgspec.json.decode(b"".join(child.parts), type=Verdict)
    if os.WIFSIGNALED(status) and time.monotonic() > child.ends_at:
        return Verdict(child.mutant.name, error="hangs, or is too slow for its budget")
    return Verdict(child.mutant.name, error=f"its process ended with status {status}")
