"""A real bookie hangs beside a writer: found soon, told where it can be, and replaced seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.types import BookieState
from tests.integration.hung_bookies import DETECTED_S, Outcome, hanging_cluster, measure

pytestmark = pytest.mark.processes

Cluster = tuple[LocalCluster, Path]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with hanging_cluster(bookies=3) as made:
        yield made


def run(cluster: Cluster, kind: str, *, seconds: float, hung: int = 1) -> Outcome:
    return asyncio.run(measure(*cluster, kind, seconds, hung))


def test_bookie_whose_disk_hangs_says_so_and_writers_go_on(cluster: Cluster) -> None:
    outcome = run(cluster, "disk", seconds=5.0)
    assert outcome.error is None
    assert outcome.longest_gap_s(DETECTED_S["disk"], 5.0) < 1.5
    assert outcome.fragments <= 4
    ((state, reason),) = [(one.state, one.reason) for one in outcome.told]
    assert state is BookieState.READ_ONLY and "has not synced for" in reason
    assert [(one.state, one.reason) for one in outcome.told_after] == [(BookieState.WRITABLE, "")]


def test_bookie_whose_ledger_disk_hangs_says_so_and_writers_go_on(cluster: Cluster) -> None:
    """Its journal is well. Large runs wait for their run log, the others for a flush."""
    outcome = run(cluster, "ledgers", seconds=7.0)
    assert outcome.error is None
    assert outcome.longest_gap_s(DETECTED_S["ledgers"], 7.0) < 1.5
    assert outcome.fragments <= 4
    ((state, reason),) = [(one.state, one.reason) for one in outcome.told]
    assert state is BookieState.READ_ONLY
    assert "ledgers has not synced for" in reason or "ledgers has not moved on for" in reason
    assert [(one.state, one.reason) for one in outcome.told_after] == [(BookieState.WRITABLE, "")]


def test_writer_waits_for_bookies_whose_disks_all_hang(cluster: Cluster) -> None:
    outcome = run(cluster, "disk", seconds=4.0, hung=3)
    assert outcome.error is None and outcome.acks, "it goes on when they do"
    assert {one.state for one in outcome.told} == {BookieState.READ_ONLY}
    assert outcome.fragments <= 2


def test_writers_go_on_beside_a_bookie_that_stands_still(cluster: Cluster) -> None:
    outcome = run(cluster, "stop", seconds=8.0)
    assert outcome.error is None
    assert outcome.longest_gap_s(DETECTED_S["stop"], 8.0) < 1.5
    assert outcome.fragments <= 4
