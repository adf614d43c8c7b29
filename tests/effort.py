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


SIMULATED_SCHEDULES: Final = Share(1_000, 50_000)
"""Seeds of ``tests/sim``, from 0 on. About fifteen a second on each core. With fewer than a
thousand the test could not say whether what is rare still happens."""

SIMULATED_TWICE: Final = Share(40, 500)
"""Seeds of ``tests/sim`` that are run again in another process and have to give the same trace."""

SCOPES: Final = Share(7, 16)
"""Scopes of ``tests/exhaustive`` of which every state is searched, the first of its list."""

CRASH_SEEDS: Final = Share(1, 5)
"""Workloads of ``tests/crash`` that crash at each of their operations, at 1,000 points or more."""

FAILING_SEEDS: Final = Share(1, 2)
"""Workloads of ``tests/crash`` in which each operation fails in turn."""

FAILING_WAYS: Final = Share(1, 2)
"""In how many of its ways each of these operations fails: neighbours fail in different ones."""

ROT_SEEDS: Final = Share(1, 2)
"""Small stores of ``tests/crash`` that are damaged."""

ROT_SAMPLES: Final = Share(400, 1_000)
"""Places of each of them that are damaged, as many of each kind of file."""

INDEX_ROT_SAMPLES: Final = Share(40, 100)
"""Bytes of an index that are damaged, each seen by a process of its own."""

SCRUBBED_FLIPS: Final = Share(50, 1_000)
"""Bytes of logs and index that are damaged while a bookie runs, all found by one scrub."""

CRASH_POINTS: Final = Share(1_000, 10_000)
"""Crash points in all: the seed of a test, or one long run of ``python -m tests.crash``."""

FUZZED_INPUTS: Final = Share(250_000, 2_000_000)
"""Inputs of ``tests/fuzz`` to all parsers together."""

SOCKET_MESSAGES: Final = Share(200, 500)
"""Malformed messages to the socket of a real bookie."""

CHAOS_SECONDS: Final = Share(30, 120)
"""How long real processes run under load and faults; ``make test`` runs three mixes of faults one
after the other, ``make proof`` mixes all of them. In less time a third of the runs with a broken
network would meet fewer kinds of faults than the test asks for."""

ENDURANCE_SECONDS: Final = Share(0, 300)
"""How long a query is watched whose workers are killed one after the other. By hand: an hour."""

MANY_QUERIES_SECONDS: Final = Share(0, 180)
"""How long the memory of a driver with ten queries is watched, from a minute after their start."""

LOSSES_SECONDS: Final = Share(0, 180)
"""How long a stranger takes bookies away from writers. By hand: ten minutes."""

FULL_DISK_LAYOUTS: Final = Share(2, 5)
"""Layouts of a bookie's directories on disks that fill up: all on one, and the journal alone."""

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

LAB_SEEDS: Final = Share(1, 200)
"""Seeds of the replication lab, each of which draws faults for every protocol that promises to lose
nothing: a twentieth of a second for each."""

LAB_SCHEDULES: Final = Share(4, 10_000)
"""Seeds of the replication lab for one setting of each protocol (``python -m tests.lab``)."""

LAB_CLAIMS: Final = Share(8, 60)
"""Claims about replication, each with up to four runs of the lab, a sixth of a second each."""

MUTANTS: Final = Share(24, ALL)
"""Mutants that are put in again and have to be found where they were found before: one of each
file, and a few more. That each fits the sources and was found once is looked at for all of them in
both."""


ONLY_IN_PROOF: Final = (
    "tests/integration/test_benchmarks.py::test_failover_measures_a_gap_and_nothing_else",
    "tests/integration/test_bookie_copies.py::"
    "test_recovery_beside_copies_of_every_bookie_loses_nothing",
    "tests/integration/test_demo.py::test_demo_in_small",
    "tests/integration/test_examples.py::test_delta_to_ledger_has_each_row_once_after_a_crash",
    "tests/integration/test_examples.py::test_ledger_to_delta_has_each_row_once_after_a_crash",
    "tests/integration/test_examples.py::test_quickstart",
    "tests/integration/test_examples.py::"
    "test_state_machine_whose_active_dies_or_freezes_has_every_put_that_returned",
    "tests/integration/test_examples.py::test_word_of_the_day",
    "tests/integration/test_hung_bookies.py::"
    "test_bookie_whose_disk_hangs_says_so_and_writers_go_on",
    "tests/integration/test_hung_bookies.py::test_writer_waits_for_bookies_whose_disks_all_hang",
    "tests/integration/test_local_zookeeper_heap.py::"
    "test_zookeeper_with_a_full_heap_ends_says_so_and_has_its_data_with_a_larger_one",
    "tests/integration/test_restored_zookeeper.py::"
    "test_keeper_of_a_restored_zookeeper_is_followed_by_one_that_works",
    "tests/integration/test_restored_zookeeper.py::"
    "test_restored_zookeeper_changes_no_ledger_and_gives_no_id_again",
    "tests/spark/test_clusters.py::test_executors_die_and_a_task_hangs_and_each_row_is_there_once",
    "tests/spark/test_clusters.py::test_package_comes_with_the_job",
    "tests/spark/test_delta_times.py::test_times_are_the_same_in_delta_and_back",
    "tests/spark/test_speculation.py::"
    "test_of_two_attempts_one_counts_and_nothing_of_the_other_is_left",
    "tests/spark/test_connect.py::test_thin_client_writes_follows_and_reads",
    "tests/spark/test_crashes.py::test_slow_driver_cannot_commit_after_a_second_one",
    "tests/spark/test_migrate.py::test_migration_copies_each_record_once_and_proves_it",
    "tests/spark/test_several.py::test_pattern_is_followed_over_new_streams_and_a_restart",
    "tests/spark/test_faults.py::test_raw_ledger_is_read_through_an_outage_of_all_bookies",
    "tests/spark/test_several.py::test_rows_are_routed_and_a_repeated_micro_batch_changes_nothing",
    "tests/spark/test_spark_submit.py::test_executor_and_driver_killed_and_submitted_again",
    "tests/spark/test_streaming_read.py::test_a_failing_task_is_repeated_without_loss",
    "tests/spark/test_streaming_read.py::"
    "test_recreated_stream_between_two_runs_fails_or_is_followed",
    "tests/spark/test_streaming_write.py::test_two_drivers_on_copies_of_a_checkpoint_lose_nothing",
    "tests/spark/test_streaming_write.py::test_two_sinks_on_one_stream_both_commit",
    "tests/spark/test_streaming_write.py::"
    "test_driver_on_copy_of_the_checkpoint_one_batch_behind_is_refused",
    "tests/unit/spark_ledger/lab/test_claims.py::test_page_of_claims_is_up_to_date",
    "tests/unit/test_coverage.py::test_every_branch_is_passed",
)
"""The slowest tests. A neighbour of each stays in ``make test``:

- examples: the quickstart in the session of ``tests/spark``, and the other examples without Spark;
- copies of bookies: each of the other copies is refused, and the simulation makes copies too;
- bookies that hang: a ledger disk, and one that stands still; a journal in
  ``unit/bookie_server/test_stall_watch``;
- a restored ZooKeeper: ``unit/bookie_server/test_held_ids`` and ``collection/test_collecting``;
- a recreated stream: under a running query here, between runs in ``unit/connector/read``;
- copies of a checkpoint: an old one, refused;
- two sinks: ``integration/test_streams.py`` has several processes that commit to one stream;
- an outage of bookies under a raw ledger: under a stream's query;
- killed workers and drivers, so that tasks are repeated, and clusters of processes with them;
- two attempts of a task on two hosts: ``unit/connector/write/test_attempts.py``;
- times in Delta: every type in two zones, in ``tests/spark/test_types.py``;
- the page of claims: ``tests/style`` has each claim on it, and the first claims are run;
- the measure of branches: the tests that it measures."""


def in_shares(values: Sequence[Any], share: Share) -> list[Any]:
    """Parameters of a test: the first ``share.test`` of them, then the rest, marked ``proof``."""
    assert len(values) == share.proof, f"{len(values)} values, but the share is {share}"
    rest = [pytest.param(value, marks=pytest.mark.proof) for value in values[share.test :]]
    return [*values[: share.test], *rest]
