"""The numbers of keeper and repair, in Prometheus' families: each bookie says the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from bookie_server.service.metrics import KeeperFigures, RepairFigures

_GAUGES: Final = {
    "bookie_keeper_elected": ("elected", "1 while the cluster has a keeper."),
    "bookie_keeper_here": ("here", "1 while it is a process beside this bookie."),
    "bookie_keeper_passed_at_seconds": ("passed_at", "When its last pass ended, since 1970."),
    "bookie_keeper_open_ledgers": ("open", "Open ledgers that name an owner."),
    "bookie_keeper_open_ledgers_of_the_dead": ("open_of_the_dead", "Of these, owner gone."),
    "bookie_keeper_unnamed_ledgers": ("unnamed", "Ledgers that no commit has named yet."),
    "bookie_keeper_unnamed_ledgers_of_the_dead": ("unnamed_of_the_dead", "Of these, owner gone."),
    "bookie_keeper_locked_ledgers": ("locked", "Open ledgers that have a password."),
    "bookie_keeper_failing_ledgers": ("failing", "Ledgers that could not be recovered yet."),
    "bookie_keeper_reclaimable_commits": (
        "reclaimable_commits",
        "Commits of all streams that were dropped and are not given back.",
    ),
    "bookie_keeper_reclaimable_bytes": ("reclaimable_bytes", "User data of these."),
    "bookie_keeper_unlisted_ledgers": (
        "unlisted",
        "Ledgers in no index and named by nothing, as of the last audit.",
    ),
    "bookie_keeper_audited_at_seconds": ("audited_at", "When the last audit ended, since 1970."),
}
_COUNTERS: Final = {
    "bookie_keeper_recovered_ledgers": ("recovered", "Ledgers that were recovered."),
    "bookie_keeper_deleted_ledgers": ("deleted", "Ledgers deleted that nothing ever named."),
    "bookie_keeper_reclaimed_ledgers": ("reclaimed", "Ledgers of dropped rows that were deleted."),
    "bookie_keeper_audit_deleted_ledgers": ("audit_deleted", "Ledgers that audits deleted."),
    "bookie_keeper_finished_streams": ("streams_finished", "Deletions of streams ended."),
    "bookie_keeper_packs": ("packs", "Packs that were made of small commits."),
    "bookie_keeper_packed_commits": ("packed_commits", "Commits in these."),
    "bookie_keeper_packed_bytes": ("packed_bytes", "Bytes that were copied for these, once."),
}
_REPAIR_GAUGES: Final = {
    "bookie_repair_looked_at_seconds": ("looked_at", "When bookies were looked at, since 1970."),
    "bookie_repair_gone_bookies": ("gone_bookies", "Bookies that are not registered."),
    "bookie_repair_lost_bookies": ("lost_bookies", "Bookies whose copies are made again."),
    "bookie_repair_stopped": ("stopped", "1 while too many bookies are gone at once."),
    "bookie_repair_marked_ledgers": ("marked", "Ledgers that lack copies."),
    "bookie_repair_marked_ledgers_at_one": ("marked_at_one", "Of these, one copy or none left."),
    "bookie_repair_failing_ledgers": ("failing", "Ledgers whose last repair failed."),
    "bookie_repair_misplaced_ledgers": ("misplaced", "Found in wrong racks by the last audit."),
    "bookie_repair_checked_at_seconds": ("checked_at", "When the last check ended, since 1970."),
    "bookie_repair_ledgers_with_holes": ("with_holes", "Ledgers that it found lacking entries."),
}
_REPAIR_COUNTERS: Final = {
    "bookie_repair_repaired_ledgers": ("repaired", "Ledgers that were repaired."),
    "bookie_repair_copied_entries": ("copied_entries", "Entries that were copied."),
    "bookie_repair_copied_bytes": ("copied_bytes", "Bytes that were copied."),
    "bookie_repair_source_waited_seconds": (
        "source_waited_s",
        "Time that copies waited for the rate of one source, in sum.",
    ),
}


def keeper_families(figures: KeeperFigures | None) -> Iterator[Metric]:
    """Nothing where this bookie does not look."""
    return _families(figures, _GAUGES, _COUNTERS)


def repair_families(figures: RepairFigures | None) -> Iterator[Metric]:
    """Nothing where this bookie does not look."""
    return _families(figures, _REPAIR_GAUGES, _REPAIR_COUNTERS)


def _families(
    figures: KeeperFigures | RepairFigures | None,
    gauges: Mapping[str, tuple[str, str]],
    counters: Mapping[str, tuple[str, str]],
) -> Iterator[Metric]:
    if figures is None:
        return
    for name, (key, help_text) in gauges.items():
        yield GaugeMetricFamily(name, help_text, value=float(getattr(figures, key)))
    for name, (key, help_text) in counters.items():
        yield CounterMetricFamily(name, help_text, value=float(getattr(figures, key)))
