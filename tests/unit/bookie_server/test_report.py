"""What a bookie says of itself: each figure under its own name, also when all of them differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookie_server.bookie import Bookie
from bookie_server.config import BookieConfig, StorageSettings
from bookie_server.core.disk_space import UNKNOWN, DirectoryState, Space
from bookie_server.core.read_only import Cause
from bookie_server.report import Report
from bookie_server.service.metrics import ServiceMetrics
from bookie_server.stall_watch import StallWatch
from bookie_server.storage.cookie import Cookie
from bookie_server.storage.disks import DiskStates
from bookie_server.storage.journal.waiting import JournalStats
from bookie_server.storage.ledgers.compaction import CompactionStats
from bookie_server.storage.ledgers.directory_scrub import ScrubCounts
from bookie_server.storage.ledgers.scrub import ScrubStats
from bookie_server.storage.ledgers.storage_stats import LedgerStorageStats
from bookie_server.storage.stats import StorageStats
from spark_ledger.types import BookieState
from tests.unit.bookie_server.service.test_exposition import storage_stats


def stats(number: Callable[[], int]) -> StorageStats:
    """Figures of which no two are equal, nor sums of them."""
    counts = ScrubCounts(*(number() for _ in ScrubCounts._fields))
    parts: dict[str, Any] = {
        "compaction": CompactionStats(()),
        "scrub": ScrubStats((counts,)),
    }
    for field in fields(LedgerStorageStats):
        parts.setdefault(field.name, number())
    return StorageStats(
        JournalStats(*(number() for _ in JournalStats._fields)),
        LedgerStorageStats(**parts),
        append_bytes_in_flight=number(),
        adds_waiting=number(),
        failure="",
        disks=DiskStates(UNKNOWN, (DirectoryState(Space(1 << 52, 1 << 51)),), ""),
        directories=("journal", "ledgers"),
    )


def test_each_figure_of_a_bookie_stands_under_its_name() -> None:
    powers = count(1)
    told = stats(lambda: 1 << next(powers))
    bookie = SimpleNamespace(
        stats=lambda: told,
        next_ledger_id=lambda: 1 << 50,
        failure="",
        disks=SimpleNamespace(states=told.disks),
        leaving="",
    )
    settings = StorageSettings(journal_directory="j", ledger_directories=["l"])
    said = Report(
        BookieConfig(metadata="zk://h:1/x", storage=settings, rack="/here"),
        Cookie(1, "a cluster", "b1", "j", ("l",), "journal"),
        cast("Bookie", bookie),
        StallWatch(lambda: None, lambda _reason: None),
        ServiceMetrics(),
        str,
    )
    storage, scrub = told.ledger_storage, told.ledger_storage.scrub
    (counts,) = scrub.directories
    described = said.description()
    assert described.cluster_id == "a cluster" and described.state == "writable"
    assert described.ledgers == storage.ledgers
    assert described.journal_bytes == told.journal.bytes_written
    assert described.entry_log_bytes == storage.entry_log_bytes_written
    assert described.next_ledger_id == 1 << 50
    assert described.scrubbed_at == counts.ended_at
    assert described.damaged == counts.bad_blocks + counts.bad_ledgers
    assert described.lacking == counts.lacking
    assert described.free_bytes == 1 << 51
    status = said.status()
    assert (status["bookie_id"], status["rack"]) == ("b1", "/here")
    assert status["append_bytes_in_flight"] == told.append_bytes_in_flight
    assert status["adds_waiting"] == told.adds_waiting
    assert (status["damaged"], status["lacking"]) == (described.damaged, described.lacking)


@pytest.mark.parametrize(
    ("fatal", "failure", "healthy"),
    [("", "", 1), ("the journal thread ended", "", 0), ("", "a flush failed", 0)],
)
def test_metrics_say_whether_the_storage_works_and_why_adds_should_go_elsewhere(
    fatal: str, failure: str, healthy: int
) -> None:
    told = replace(storage_stats(), failure=failure)
    bookie = SimpleNamespace(
        stats=lambda: told,
        failure=failure,
        disks=SimpleNamespace(states=told.disks),
        leaving="an operator takes it out",
    )
    settings = StorageSettings(journal_directory="j", ledger_directories=["l"])
    metrics = ServiceMetrics()
    metrics.bytes_read = 77
    said = Report(
        BookieConfig(metadata="zk://h:1/x", storage=settings),
        Cookie(1, "a cluster", "b1", "j", ("l",), "journal"),
        cast("Bookie", bookie),
        StallWatch(lambda: None, lambda _reason: None),
        metrics,
        lambda: fatal,
    )
    shown = said.exposition().decode().splitlines()
    assert f"bookie_healthy {healthy}.0" in shown and "bookie_read_bytes_total 77.0" in shown
    causes = {
        line.split('"')[1] for line in shown if "only_cause{" in line and line.endswith(" 1.0")
    }
    assert causes == {Cause.LEAVING.value} | ({Cause.FAILED.value} if failure else set())
    assert said.state() is BookieState.READ_ONLY
    assert said.why_read_only() == (failure or "an operator takes it out")
