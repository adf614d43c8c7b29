"""What a bookie says of itself: each figure under its own name, also when all of them differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from bookie_server.bookie import Bookie
from bookie_server.config import BookieConfig, StorageSettings
from bookie_server.core.disk_space import UNKNOWN, DirectoryState, Space
from bookie_server.report import Report
from bookie_server.service.metrics import ServiceMetrics
from bookie_server.stall_watch import StallWatch
from bookie_server.storage.cookie import Cookie
from bookie_server.storage.disks import DiskStates
from bookie_server.storage.journal.waiting import JournalStats
from bookie_server.storage.ledgers.compaction import CompactionStats
from bookie_server.storage.ledgers.directory_scrub import ScrubCounts
from bookie_server.storage.ledgers.ledger_storage import LedgerStorageStats
from bookie_server.storage.ledgers.scrub import ScrubStats
from bookie_server.storage.stats import StorageStats


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
