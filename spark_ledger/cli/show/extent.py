"""A stream as a line: what is gone, what is about to go, what is in manifests and in nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from spark_ledger.cli.arguments.positions import position_text
from spark_ledger.cli.retention import hold_fields, limit_fields, limits_text, span_text
from spark_ledger.cli.show.output import age_text, size_text, time_text

if TYPE_CHECKING:
    from spark_ledger.stream.retention.handle import Extent
    from spark_ledger.stream.retention.names import LedgerCounts

_WIDTH: Final = 60
_MARKS: Final = {"gone": "·", "to be deleted": "x", "in manifests": "=", "in nodes": "-"}


def parts(extent: Extent) -> list[tuple[str, int, int]]:
    """The parts of a stream in order: what is there, the first commit, and the one behind it."""
    head = extent.head
    sealed = min(max(extent.sealed_commits, head.earliest_commit), head.next_commit)
    edges = (0, extent.dropped_commits, head.earliest_commit, sealed, head.next_commit)
    found = zip(_MARKS, edges, edges[1:], strict=False)
    return [(name, low, high) for name, low, high in found if low < high]


def line(extent: Extent) -> str:
    """The parts, each with at least one mark, as long as its share of the commits."""
    total = max(1, extent.head.next_commit)
    return "|".join(
        _MARKS[name] * max(1, round(_WIDTH * (high - low) / total))
        for name, low, high in parts(extent)
    )


def facts(extent: Extent) -> list[tuple[str, str]]:
    """What there is to say about it, as rows of a table."""
    head = extent.head
    rows = [
        (name, f"{_MARKS[name] * 3}  commits {low} to {high - 1}")
        for name, low, high in parts(extent)
    ]
    since = f", back to {time_text(extent.since_ms)} ({age_text(extent.since_ms)})"
    live = f"{extent.live_rows} rows ({size_text(extent.live_bytes)})"
    commits = head.next_commit - head.earliest_commit
    rows.append(("live", f"{live} in {commits} commits{since if extent.since_ms else ''}"))
    if extent.reclaimable_rows:
        amount = size_text(extent.reclaimable_bytes)
        rows.append(("reclaimable", f"{extent.reclaimable_rows} rows ({amount}), by the keeper"))
    rows.append(("keeps", limits_text(extent.retention)))
    now_ms = time.time_ns() // 1_000_000
    for hold in extent.holds:
        left = f"for {span_text((hold.expires_ms - now_ms) / 1000)} more"
        is_void = hold.is_void(head, now_ms)
        rows.append(
            (
                f"held by {hold.name}",
                f"from {position_text(hold.position)} on, {size_text(hold.held_bytes(head))}, "
                f"{'but it is over' if is_void else left}",
            )
        )
    return rows


def ledger_facts(counts: LedgerCounts | None) -> list[tuple[str, str]]:
    """How many ledgers there are, if they were counted."""
    if counts is None:
        return []
    words = f"{counts.live} live, of which {counts.held} are only held; {counts.reclaimable}"
    waits = f", of which {counts.replaced} were replaced and wait for backups (replaced_grace_s)"
    return [("ledgers", f"{words} reclaimable{waits if counts.replaced else ''}")]


def fields(extent: Extent) -> dict[str, object]:
    """The same for scripts."""
    return {
        "sealed_commits": extent.sealed_commits,
        "earliest_commit": extent.head.earliest_commit,
        "deleted_commits": extent.dropped_commits,
        "live_rows": extent.live_rows,
        "live_bytes": extent.live_bytes,
        "reclaimable_rows": extent.reclaimable_rows,
        "reclaimable_bytes": extent.reclaimable_bytes,
        "since_ms": extent.since_ms,
        "retention": limit_fields(extent.retention),
        "holds": [
            {**hold_fields(hold), "bytes": hold.held_bytes(extent.head)} for hold in extent.holds
        ],
    }
