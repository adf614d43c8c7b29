"""The bookie's numbers in Prometheus' text format. Loaded at the first scrape, not at start."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bookie_server.core.collection import Cause as CollectionCause
from bookie_server.core.collection import CollectionStats
from bookie_server.core.read_only import Cause
from bookie_server.service.guard.memory import anonymous_bytes
from bookie_server.service.keeper_families import keeper_families, repair_families
from bookie_server.service.metrics import Histogram, ServiceMetrics
from bookie_server.storage.stats import StorageStats
from spark_ledger.types import BookieStatus


def exposition(
    metrics: ServiceMetrics, storage: StorageStats, *, up: bool, read_only: Collection[Cause]
) -> bytes:
    """Everything that is counted, as text. ``read_only``: why new adds should go elsewhere."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(lambda: _families(metrics, storage, up, read_only)))
    return generate_latest(registry)


class _Collector(Collector):
    """What the client library asks for metric families."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def _families(
    metrics: ServiceMetrics, storage: StorageStats, up: bool, read_only: Collection[Cause]
) -> Iterator[Metric]:
    yield GaugeMetricFamily("bookie_healthy", "1 while the storage works.", value=float(up))
    yield from _service(metrics)
    yield from _collection(metrics.collection())
    yield from keeper_families(metrics.keeper())
    yield from repair_families(metrics.repair())
    yield from _storage(storage)
    yield from _reads(metrics, storage.directories[1:])
    yield from _read_only(read_only)


def _service(metrics: ServiceMetrics) -> Iterator[Metric]:
    yield _by_status("bookie_adds", "Runs of entries answered, by status.", metrics.adds)
    yield _counter("bookie_added_entries", "Entries made durable.", metrics.entries_added)
    yield _counter("bookie_added_bytes", "Frame bytes made durable.", metrics.bytes_added)
    yield _histogram(
        "bookie_add_seconds", "From receiving a run to its answer.", metrics.add_latency
    )
    fenced = metrics.adds[BookieStatus.FENCED]
    yield _counter("bookie_fenced_adds", "Runs refused because of a fence.", fenced)
    yield _gauge("bookie_append_streams", "Append streams open.", metrics.append_streams)
    yield _by_status("bookie_reads", "Range reads answered, by status.", metrics.reads)
    yield _counter("bookie_read_bytes", "Frame bytes sent to readers.", metrics.bytes_read)
    yield _histogram("bookie_read_seconds", "A range read from start to end.", metrics.read_latency)
    yield _by_status("bookie_fences", "Fence requests answered, by status.", metrics.fences)
    yield _gauge(
        "bookie_metadata_restored",
        "1 once ZooKeeper was seen to go back in time: run `ledger cluster restored`.",
        int(bool(metrics.metadata_restored())),
    )
    yield _gauge("bookie_long_polls", "Tail requests held.", metrics.long_polls)
    yield _by_label(
        "bookie_hung_up",
        "Connections that the bookie ended, by what their clients did.",
        "reason",
        metrics.connections_ended,
    )
    yield _by_label(
        "bookie_refused_calls",
        "Calls told to come later, by kind.",
        "kind",
        metrics.calls_refused,
    )
    yield _gauge(
        "bookie_answer_bytes", "Read for clients and not sent yet.", metrics.answer_bytes()
    )
    yield _gauge("bookie_memory_bytes", "Of this process, without files.", anonymous_bytes())
    calls = CounterMetricFamily(
        "bookie_calls", "Finished calls by method and gRPC code.", labels=["method", "code"]
    )
    for (method, code), count in sorted(metrics.calls.items()):
        calls.add_metric([method, code], count)
    yield calls
    running = GaugeMetricFamily(
        "bookie_calls_in_progress", "Calls running by method.", labels=["method"]
    )
    for method, count in sorted(metrics.calls_in_progress.items()):
        running.add_metric([method], count)
    yield running


def _reads(metrics: ServiceMetrics, directories: Sequence[str]) -> Iterator[Metric]:
    yield _gauge(
        "bookie_reads_waiting",
        "Reads and lists that wait for a thread.",
        metrics.reads_waiting(),
    )
    stalled = GaugeMetricFamily(
        "bookie_reads_stalled", "1 while its disk does not answer a read.", labels=["directory"]
    )
    now = metrics.stalled_reads()
    for name in directories:
        stalled.add_metric([name], int(name in now))
    yield stalled


def _collection(collection: CollectionStats) -> Iterator[Metric]:
    yield _counter(
        "bookie_collection_passes", "Passes of the garbage collection.", collection.passes
    )
    yield _counter(
        "bookie_collection_aborted_passes", "Passes that ended early.", collection.aborted
    )
    yield _counter("bookie_collected_ledgers", "Deleted ledgers that went.", collection.deleted)
    yield _counter("bookie_collected_bytes", "What they had in logs.", collection.freed_bytes)
    yield _gauge(
        "bookie_collection_candidates",
        "Ledgers that the metadata did not name in the last pass.",
        collection.candidates,
    )
    yield _gauge(
        "bookie_collection_ended_at_seconds",
        "When the last pass ended, since 1970; 0 before the first.",
        collection.ended_at,
    )
    by_cause = GaugeMetricFamily(
        "bookie_collection_aborted", "1 for the cause that ended the last pass.", labels=["cause"]
    )
    for cause in CollectionCause:
        by_cause.add_metric([cause.value], int(cause is collection.cause))
    yield by_cause


def _storage(storage: StorageStats) -> Iterator[Metric]:
    journal, ledgers = storage.journal, storage.ledger_storage
    yield _gauge(
        "bookie_append_bytes_in_flight",
        "Bytes of adds accepted and not durable yet.",
        storage.append_bytes_in_flight,
    )
    yield _gauge("bookie_adds_waiting", "Adds that wait for room in memory.", storage.adds_waiting)
    yield SummaryMetricFamily(
        "bookie_journal_sync_seconds",
        "Journal syncs; one makes a batch durable.",
        count_value=journal.batches,
        sum_value=journal.sync_time_s,
    )
    yield _counter("bookie_journal_records", "Records written to the journal.", journal.records)
    yield _counter("bookie_journal_bytes", "Bytes written to the journal.", journal.bytes_written)
    yield _counter(
        "bookie_run_log_bytes", "Bytes written to run logs, once.", journal.run_log_bytes
    )
    yield _gauge(
        "bookie_journal_bytes_in_flight", "Bytes queued for the journal.", journal.bytes_in_flight
    )
    yield _gauge("bookie_ledgers", "Ledgers with data here.", ledgers.ledgers)
    yield _gauge("bookie_write_cache_bytes", "Bytes not in the entry log yet.", ledgers.cache_bytes)
    yield _gauge("bookie_block_cache_bytes", "Blocks kept for reads.", ledgers.block_cache_bytes)
    yield _gauge(
        "bookie_index_memory_bytes",
        "Which ledgers there are, and rows that were checked.",
        ledgers.index_memory_bytes,
    )
    yield _gauge(
        "bookie_ledger_record_bytes",
        "Records of ledgers in memory, about.",
        ledgers.ledger_record_bytes,
    )
    yield _counter(
        "bookie_entry_log_bytes", "Bytes written to entry logs.", ledgers.entry_log_bytes_written
    )
    yield SummaryMetricFamily(
        "bookie_flush_seconds",
        "Checkpoints of the write cache.",
        count_value=ledgers.flushes,
        sum_value=ledgers.flush_time_s,
    )
    yield _gauge("bookie_storage_failed", "1 after a failure.", int(bool(storage.failure)))
    yield from _directories(storage)
    yield from _space(storage)
    yield from _scrub(storage)


def _read_only(causes: Collection[Cause]) -> Iterator[Metric]:
    yield _gauge(
        "bookie_read_only",
        "1 while writers should choose other bookies, for any cause.",
        int(bool(causes)),
    )
    by_cause = GaugeMetricFamily(
        "bookie_read_only_cause", "1 for each cause that holds now.", labels=["cause"]
    )
    for cause in Cause:
        by_cause.add_metric([cause.value], int(cause in causes))
    yield by_cause


def _directories(storage: StorageStats) -> Iterator[Metric]:
    size = GaugeMetricFamily(
        "bookie_directory_size_bytes", "Size of the disk of a directory.", labels=["directory"]
    )
    free = GaugeMetricFamily(
        "bookie_directory_free_bytes", "Free on the disk of a directory.", labels=["directory"]
    )
    full = GaugeMetricFamily(
        "bookie_directory_full", "1 while it takes no adds of writers.", labels=["directory"]
    )
    for name, state in storage.disks.by_name(storage.directories).items():
        size.add_metric([name], state.space.size_bytes)
        free.add_metric([name], state.space.free_bytes)
        full.add_metric([name], int(bool(state.reason)))
    yield from (size, free, full)


def _space(storage: StorageStats) -> Iterator[Metric]:
    compaction = storage.ledger_storage.compaction
    families = [
        GaugeMetricFamily(name, help_text, labels=["directory"])
        for name, help_text in (
            ("bookie_log_bytes", "Bytes of the logs that take no more, at the last look."),
            ("bookie_live_bytes", "Bytes of them that entries need."),
            ("bookie_reclaimable_bytes", "Bytes of them that nothing needs."),
            ("bookie_logs", "Logs that take no more."),
            ("bookie_damaged_logs", "Logs that cannot be copied, or are missing."),
        )
    ]
    for name, use in zip(storage.directories[1:], compaction.directories, strict=True):
        for family, value in zip(families, use, strict=True):
            family.add_metric([name], value)
    yield from families
    yield _counter(
        "bookie_removed_log_bytes", "Bytes of logs that were removed.", compaction.removed_bytes
    )
    yield _counter(
        "bookie_given_back_bytes",
        "Bytes of dead entries in logs that stayed.",
        compaction.given_back_bytes,
    )
    yield _counter(
        "bookie_compacted_bytes", "Bytes copied to give others back.", compaction.copied_bytes
    )
    yield _counter("bookie_compaction_passes", "Looks at what is dead.", compaction.passes)
    yield _gauge(
        "bookie_compaction_failed",
        "1 after a pass that failed.",
        int(bool(compaction.last_failure)),
    )


def _scrub(storage: StorageStats) -> Iterator[Metric]:
    scrub = storage.ledger_storage.scrub
    ended = GaugeMetricFamily(
        "bookie_scrub_ended_at_seconds",
        "When all that is stored had been verified last, since 1970; 0: never.",
        labels=["directory"],
    )
    lacking = GaugeMetricFamily(
        "bookie_lacking_stretches",
        "Stretches of entries that are damaged and await copies.",
        labels=["directory"],
    )
    families = [
        CounterMetricFamily(name, help_text, labels=["directory"])
        for name, help_text in (
            ("bookie_scrubbed_blocks", "Blocks that were verified."),
            ("bookie_scrubbed_bytes", "Bytes of them."),
            ("bookie_bad_blocks", "Blocks that were found damaged."),
            ("bookie_bad_index_ledgers", "Ledgers whose part of the index was found damaged."),
            ("bookie_refetched_stretches", "Damaged stretches that are whole again."),
        )
    ]
    for name, counts in zip(storage.directories[1:], scrub.directories, strict=True):
        ended.add_metric([name], counts.ended_at)
        lacking.add_metric([name], counts.lacking)
        values = (
            counts.blocks,
            counts.byte_count,
            counts.bad_blocks,
            counts.bad_ledgers,
            counts.refetched,
        )
        for family, value in zip(families, values, strict=True):
            family.add_metric([name], value)
    yield from (ended, lacking, *families)
    yield _gauge(
        "bookie_scrub_failed", "1 after a pass that broke off.", int(bool(scrub.last_failure))
    )


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _by_status(name: str, help_text: str, counts: dict[BookieStatus, int]) -> Metric:
    by_name = {status.name: count for status, count in sorted(counts.items())}
    return _by_label(name, help_text, "status", by_name)


def _by_label(name: str, help_text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _histogram(name: str, help_text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(
        name, help_text, buckets=histogram.cumulative(), sum_value=histogram.total
    )
