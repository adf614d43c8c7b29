"""Each figure of a bookie is exported under its own name, also when all of them differ: one that
stands under the name of another misleads whoever reads it in the worst moment."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import count
from typing import Any

from bookie_server.core.collection import Cause, CollectionStats
from bookie_server.core.disk_space import DirectoryState, Space
from bookie_server.service.metrics import ServiceMetrics
from bookie_server.service.prometheus import exposition
from bookie_server.storage.disks import DiskStates
from bookie_server.storage.journal.waiting import JournalStats
from bookie_server.storage.ledgers.compaction import CompactionStats, DirectoryUse
from bookie_server.storage.ledgers.directory_scrub import ScrubCounts
from bookie_server.storage.ledgers.scrub import ScrubStats
from bookie_server.storage.ledgers.storage_stats import LedgerStorageStats
from bookie_server.storage.stats import StorageStats
from spark_ledger.types import BookieStatus

_NUMBERS = count(1)


def number() -> int:
    """Another one each time."""
    return next(_NUMBERS)


def numbered(kind: Any, **given: object) -> Any:
    """A named tuple whose fields are all others, but for those that are given."""
    return kind(**({name: number() for name in kind._fields} | given))


def shown(metrics: ServiceMetrics, storage: StorageStats, *, up: bool = True) -> dict[str, float]:
    """All samples, but for the buckets of histograms and the times at which they were made."""
    text = exposition(metrics, storage, up=up, read_only=()).decode()
    samples = re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    return {
        name: float(value)
        for name, value in samples
        if "_bucket" not in name and "_created" not in name
    }


def storage_stats() -> StorageStats:
    uses = tuple(DirectoryUse(*(number() for _ in DirectoryUse._fields)) for _ in range(2))
    scrubs = tuple(ScrubCounts(*(number() for _ in ScrubCounts._fields)) for _ in range(2))
    spaces = [Space(number(), number()) for _ in range(3)]
    parts: dict[str, Any] = {
        "compaction": numbered(CompactionStats, directories=uses, last_failure="it broke"),
        "scrub": ScrubStats(scrubs, "it broke off"),
    }
    for field in fields(LedgerStorageStats):
        parts.setdefault(field.name, number())
    return StorageStats(
        JournalStats(*(number() for _ in JournalStats._fields)),
        LedgerStorageStats(**parts),
        append_bytes_in_flight=number(),
        adds_waiting=number(),
        failure="a flush failed",
        disks=DiskStates(
            DirectoryState(spaces[0]),
            (DirectoryState(spaces[1], "full", above_marks=True), DirectoryState(spaces[2])),
            "",
        ),
        directories=("/j", "/a", "/b"),
    )


def test_each_figure_of_the_storage_stands_under_its_name() -> None:
    told = storage_stats()
    journal, ledgers = told.journal, told.ledger_storage
    compaction = ledgers.compaction
    wanted = {
        "bookie_healthy": 0,
        "bookie_storage_failed": 1,
        "bookie_append_bytes_in_flight": told.append_bytes_in_flight,
        "bookie_adds_waiting": told.adds_waiting,
        "bookie_journal_sync_seconds_count": journal.batches,
        "bookie_journal_sync_seconds_sum": journal.sync_time_s,
        "bookie_journal_records_total": journal.records,
        "bookie_journal_bytes_total": journal.bytes_written,
        "bookie_run_log_bytes_total": journal.run_log_bytes,
        "bookie_journal_bytes_in_flight": journal.bytes_in_flight,
        "bookie_ledgers": ledgers.ledgers,
        "bookie_write_cache_bytes": ledgers.cache_bytes,
        "bookie_block_cache_bytes": ledgers.block_cache_bytes,
        "bookie_index_memory_bytes": ledgers.index_memory_bytes,
        "bookie_ledger_record_bytes": ledgers.ledger_record_bytes,
        "bookie_entry_log_bytes_total": ledgers.entry_log_bytes_written,
        "bookie_flush_seconds_count": ledgers.flushes,
        "bookie_flush_seconds_sum": ledgers.flush_time_s,
        "bookie_removed_log_bytes_total": compaction.removed_bytes,
        "bookie_given_back_bytes_total": compaction.given_back_bytes,
        "bookie_compacted_bytes_total": compaction.copied_bytes,
        "bookie_compaction_passes_total": compaction.passes,
        "bookie_compaction_failed": 1,
        "bookie_scrub_failed": 1,
    }
    states = (told.disks.journal, *told.disks.ledgers)
    for name, state in zip(told.directories, states, strict=True):
        wanted |= {
            f'bookie_directory_size_bytes{{directory="{name}"}}': state.space.size_bytes,
            f'bookie_directory_free_bytes{{directory="{name}"}}': state.space.free_bytes,
            f'bookie_directory_full{{directory="{name}"}}': name == "/a",
        }
    for at, name in enumerate(("/a", "/b")):
        use, scrub = compaction.directories[at], ledgers.scrub.directories[at]
        of = f'{{directory="{name}"}}'
        wanted |= {
            f"bookie_log_bytes{of}": use.log_bytes,
            f"bookie_live_bytes{of}": use.live_bytes,
            f"bookie_reclaimable_bytes{of}": use.reclaimable_bytes,
            f"bookie_logs{of}": use.logs,
            f"bookie_damaged_logs{of}": use.damaged_logs,
            f"bookie_scrub_ended_at_seconds{of}": scrub.ended_at,
            f"bookie_lacking_stretches{of}": scrub.lacking,
            f"bookie_scrubbed_blocks_total{of}": scrub.blocks,
            f"bookie_scrubbed_bytes_total{of}": scrub.byte_count,
            f"bookie_bad_blocks_total{of}": scrub.bad_blocks,
            f"bookie_bad_index_ledgers_total{of}": scrub.bad_ledgers,
            f"bookie_refetched_stretches_total{of}": scrub.refetched,
        }
    of_none = shown(ServiceMetrics(), told, up=False)
    assert {name: of_none.get(name) for name in wanted} == wanted
    service = (
        r"bookie_(add|read|fence|calls|long_polls|hung|refused|answer|memory|metadata|append_s)"
    )
    others = {name for name in of_none if not re.match(service, name)} - wanted.keys()
    assert not {name for name in others if "collect" not in name}, "figures that nobody looks at"


def test_each_figure_of_the_service_stands_under_its_name() -> None:
    metrics = ServiceMetrics()
    metrics.adds.update({status: number() for status in BookieStatus})
    metrics.reads.update({status: number() for status in BookieStatus})
    metrics.fences.update({status: number() for status in BookieStatus})
    metrics.entries_added, metrics.bytes_added = number(), number()
    metrics.append_streams, metrics.long_polls, metrics.bytes_read = number(), number(), number()
    metrics.add_latency.observe(0.25, 3)
    metrics.read_latency.observe(0.5, 5)
    metrics.connections_ended["idle"] = number()
    metrics.calls_refused["poll"] = number()
    metrics.calls["Read", "OK"], metrics.calls["Read", "ABORTED"] = number(), number()
    metrics.calls_in_progress["Append"] = number()
    answer_bytes, reads_waiting = number(), number()
    metrics.reads_waiting = lambda: reads_waiting
    metrics.stalled_reads = lambda: {"/b": "it hangs"}
    metrics.answer_bytes = lambda: answer_bytes
    metrics.metadata_restored = lambda: "by an operator"
    wanted = {
        "bookie_added_entries_total": metrics.entries_added,
        "bookie_added_bytes_total": metrics.bytes_added,
        "bookie_add_seconds_count": 3,
        "bookie_add_seconds_sum": 0.75,
        "bookie_fenced_adds_total": metrics.adds[BookieStatus.FENCED],
        "bookie_append_streams": metrics.append_streams,
        "bookie_read_bytes_total": metrics.bytes_read,
        "bookie_read_seconds_count": 5,
        "bookie_read_seconds_sum": 2.5,
        "bookie_metadata_restored": 1,
        "bookie_long_polls": metrics.long_polls,
        'bookie_hung_up_total{reason="idle"}': metrics.connections_ended["idle"],
        'bookie_refused_calls_total{kind="poll"}': metrics.calls_refused["poll"],
        "bookie_answer_bytes": answer_bytes,
        "bookie_reads_waiting": reads_waiting,
        'bookie_reads_stalled{directory="/a"}': 0,
        'bookie_reads_stalled{directory="/b"}': 1,
        'bookie_calls_total{code="OK",method="Read"}': metrics.calls["Read", "OK"],
        'bookie_calls_total{code="ABORTED",method="Read"}': metrics.calls["Read", "ABORTED"],
        'bookie_calls_in_progress{method="Append"}': metrics.calls_in_progress["Append"],
        "bookie_healthy": 1,
    }
    for status in BookieStatus:
        of = f'_total{{status="{status.name}"}}'
        wanted |= {
            f"bookie_adds{of}": metrics.adds[status],
            f"bookie_reads{of}": metrics.reads[status],
            f"bookie_fences{of}": metrics.fences[status],
        }
    found = shown(metrics, storage_stats())
    assert {name: found.get(name) for name in wanted} == wanted
    metrics.metadata_restored = str
    assert shown(metrics, storage_stats())["bookie_metadata_restored"] == 0


def test_each_figure_of_the_garbage_collection_stands_under_its_name() -> None:
    metrics = ServiceMetrics()
    told: CollectionStats = numbered(CollectionStats, cause=Cause.CHANGED, reason="why")
    metrics.collection = lambda: told
    wanted = {
        "bookie_collection_passes_total": told.passes,
        "bookie_collection_aborted_passes_total": told.aborted,
        "bookie_collected_ledgers_total": told.deleted,
        "bookie_collected_bytes_total": told.freed_bytes,
        "bookie_collection_candidates": told.candidates,
        "bookie_collection_ended_at_seconds": told.ended_at,
    }
    wanted |= {
        f'bookie_collection_aborted{{cause="{cause.value}"}}': cause is Cause.CHANGED
        for cause in Cause
    }
    found = shown(metrics, storage_stats())
    assert {name: value for name, value in found.items() if "collect" in name} == wanted
