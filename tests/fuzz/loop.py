"""The loop: inputs in chunks, each with a seed of its own, so that one can be repeated.

python -m tests.fuzz --inputs 1000000 --seed 1
python -m tests.fuzz --only "entry frame" --inputs 100000 --seed 7
"""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Target

CHUNK = 1000
CHUNK_SECONDS_MAX = 30
"""Seconds after which a chunk counts as a hang; it takes one at most."""
MEMORY_GROWTH_MAX = 400 * 1024 * 1024


class FuzzError(AssertionError):
    """A parser accepted damage, raised an unnamed error, hung, or used too much memory."""


@dataclass(slots=True)
class Outcome:
    """Counts of a target's inputs; ``seconds`` of one core."""

    name: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0


def fuzz(targets: Sequence[Target], *, inputs: int, seed: int) -> list[Outcome]:
    """Divide ``inputs`` among the targets by their shares, and try them. Raises FuzzError at the
    first failure."""
    shares = sum(target.share for target in targets)
    memory = _memory_bytes()
    outcomes = []
    for target in targets:
        _check_corpus(target)
        count = max(1, -(-inputs * target.share // shares))
        outcomes.append(_fuzz_one(target, count, seed))
        grown = _memory_bytes() - memory
        if grown > MEMORY_GROWTH_MAX:
            raise FuzzError(f"{target.name}: memory grew by {grown >> 20} MiB, seed {seed}")
    return outcomes


def _fuzz_one(target: Target, count: int, seed: int) -> Outcome:
    outcome = Outcome(target.name)
    started = time.process_time()
    for chunk in range(-(-count // CHUNK)):
        choose = random.Random(f"{target.name}, seed {seed}, chunk {chunk}")
        mutator = Mutator(choose, target.corpus, is_text=target.is_text)
        with _time_limit(f"{target.name}, seed {seed}, chunk {chunk}"):
            for _input in range(min(CHUNK, count - chunk * CHUNK)):
                _try(target, mutator.draw(), outcome, seed, chunk)
    outcome.seconds = time.process_time() - started
    return outcome


def _try(target: Target, data: bytes, outcome: Outcome, seed: int, chunk: int) -> None:
    outcome.inputs += 1
    try:
        value = target.parse(data)
    except target.errors:
        outcome.refused += 1
        return
    except Exception as error:
        raise _wrong(
            target, data, seed, chunk, f"raised {type(error).__name__}: {error}"
        ) from error
    if value is None:
        outcome.refused += 1
        return
    outcome.accepted += 1
    problem = target.judge(data, value)
    if problem:
        raise _wrong(target, data, seed, chunk, problem)


def _check_corpus(target: Target) -> None:
    for data in target.corpus:
        value = target.parse(data)
        if value is None or target.judge(data, value):
            raise FuzzError(f"{target.name}: {data!r:.200} is not valid: {value!r:.200}")


def _wrong(target: Target, data: bytes, seed: int, chunk: int, what: str) -> FuzzError:
    shown = data.hex() if len(data) <= 400 else f"{data[:400].hex()}... ({len(data)} bytes)"
    return FuzzError(f"{target.name}, seed {seed}, chunk {chunk}: {what}\ninput: {shown}")


@contextmanager
def _time_limit(what: str) -> Iterator[None]:
    """Interrupt whatever runs too long. Raises FuzzError."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise FuzzError(f"{what}: no end after {CHUNK_SECONDS_MAX} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(CHUNK_SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
