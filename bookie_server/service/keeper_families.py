"""The numbers of the cluster's keeper, in Prometheus' families: each bookie says the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from bookie_server.service.metrics import KeeperFigures

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
}


def keeper_families(figures: KeeperFigures | None) -> Iterator[Metric]:
    """Nothing where this bookie does not look."""
    if figures is None:
        return
    for name, (key, help_text) in _GAUGES.items():
        yield GaugeMetricFamily(name, help_text, value=float(getattr(figures, key)))
    for name, (key, help_text) in _COUNTERS.items():
        yield CounterMetricFamily(name, help_text, value=float(getattr(figures, key)))
