"""What repair of the cluster has written down, for the metrics of each bookie that looks."""

from __future__ import annotations

from bookie_server.service.metrics import RepairFigures
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.repair.nodes import (
    CHECK_PATH,
    COUNTS_PATH,
    DONE_PATH,
    STATE_PATH,
    AuditState,
    CheckState,
    RepairCounts,
    RepairDone,
)


async def read_repair_figures(store: MetadataStore) -> RepairFigures:
    """The numbers as they are now. Raises what the metadata store raises."""
    audited = await read_node(store, AuditState, STATE_PATH)
    counted = await read_node(store, RepairCounts, COUNTS_PATH)
    checked = await read_node(store, CheckState, CHECK_PATH)
    copied = await read_node(store, RepairDone, DONE_PATH)
    audit = AuditState() if audited is None else audited.value
    counts = RepairCounts() if counted is None else counted.value
    check = CheckState() if checked is None else checked.value
    done = RepairDone() if copied is None else copied.value
    return RepairFigures(
        looked_at=audit.time_ms / 1000,
        gone_bookies=len(audit.gone_s),
        lost_bookies=counts.lost,
        stopped=bool(audit.stopped),
        marked=counts.marked,
        marked_at_one=counts.marked_at_one,
        failing=counts.failing,
        misplaced=counts.misplaced,
        checked_at=check.ended_ms / 1000,
        with_holes=check.with_holes,
        repaired=done.ledgers,
        copied_entries=done.copied_entries,
        copied_bytes=done.copied_bytes,
        source_waited_s=done.source_waited_ms / 1000,
    )
