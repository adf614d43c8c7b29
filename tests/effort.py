"""How much of each proof runs in ``make test`` and in ``make proof``: the only list of that.

``make test`` is for every change and has to end within twelve minutes, so each proof keeps a share
in it that finds what a change usually breaks. ``make proof`` runs the whole numbers, and the tests
that ``make test`` leaves out; nothing is in neither. A number is changed here, nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pytest


class Share(NamedTuple):
    """How many of something ``make test`` runs, and how many ``make proof`` does."""

    test: int
    proof: int


ALL: Final = 10**6
"""More than there are."""


SIMULATED_SCHEDULES: Final = Share(1_300, 50_000)
"""Seeds of ``tests/sim``, from 0 on. About fifteen a second on each core."""

SIMULATED_TWICE: Final = Share(40, 500)
"""Seeds of ``tests/sim`` that are run again in another process and have to give the same trace."""

SCOPES: Final = Share(7, 16)
"""Scopes of ``tests/exhaustive`` of which every state is searched, the first of its list."""

CRASH_SEEDS: Final = Share(2, 5)
"""Workloads of ``tests/crash`` that crash at each of their operations, at 1,000 points or more."""

FAILING_SEEDS: Final = Share(1, 2)
"""Workloads of ``tests/crash`` in which each operation fails in turn."""

ROT_SEEDS: Final = Share(1, 2)
"""Small stores of ``tests/crash`` of which 1,000 places are damaged."""

CRASH_POINTS: Final = Share(2_000, 10_000)
"""Crash points in all: two seeds of a test, or one long run of ``python -m tests.crash``."""

FUZZED_INPUTS: Final = Share(400_000, 2_000_000)
"""Inputs of ``tests/fuzz`` to all parsers together."""

CHAOS_SECONDS: Final = Share(30, 120)
"""How long real processes run under load and faults; ``make test`` runs two mixes of faults one
after the other, ``make proof`` mixes all of them."""

ENDURANCE_SECONDS: Final = Share(0, 300)
"""How long a query is watched whose workers are killed one after the other. By hand: an hour."""

HOSTILE_SECONDS: Final = Share(2, 15)
"""How long each kind of hostile client attacks."""

HOSTILE_KINDS: Final = (
    "halves-of-appends", "empty-adds", "large-answers-that-nobody-reads", "tail-requests",
)  # fmt: skip
"""Kinds of ``tests.hostile`` in ``make test``: each once took a bookie's memory or time."""

SWEPT_CALLS: Final = Share(1, 8)
"""Of each eight calls that an operation of ``tests/unit/sweeps`` makes, those that meet trouble."""

RANDOM_STREAMS: Final = Share(1, 20)
"""Streams of each size of manifests that anything happens to, fifty times, half a second each."""

PACKED_STREAMS: Final = Share(1, 20)
"""Streams that are optimized while anything happens to them, thirty times, a second each."""

MUTANTS: Final = Share(36, ALL)
"""Mutants that are put in again and have to be found where they were found before. That each fits
the sources and was found once is looked at for all of them in both."""


ONLY_IN_PROOF: Final = (
    "tests/integration/test_demo.py::test_demo_in_small",
    "tests/integration/test_examples.py::test_delta_to_ledger_has_each_row_once_after_a_crash",
    "tests/integration/test_examples.py::test_ledger_to_delta_has_each_row_once_after_a_crash",
    "tests/integration/test_examples.py::test_word_of_the_day",
    "tests/integration/test_local_zookeeper_heap.py::"
    "test_zookeeper_with_a_full_heap_ends_says_so_and_has_its_data_with_a_larger_one",
    "tests/spark/test_crashes.py::test_slow_driver_cannot_commit_after_a_second_one",
    "tests/spark/test_spark_submit.py::test_executor_and_driver_killed_and_submitted_again",
    "tests/spark/test_streaming_write.py::"
    "test_driver_on_copy_of_the_checkpoint_one_batch_behind_is_refused",
)
"""The slowest tests. A neighbour of each stays in ``make test``: the quickstart for the examples,
killed workers and drivers, an old checkpoint for Spark."""


def in_shares(values: Sequence[Any], share: Share) -> list[Any]:
    """Parameters of a test: the first ``share.test`` of them, then the rest, marked ``proof``."""
    assert len(values) == share.proof, f"{len(values)} values, but the share is {share}"
    rest = [pytest.param(value, marks=pytest.mark.proof) for value in values[share.test :]]
    return [*values[: share.test], *rest]
