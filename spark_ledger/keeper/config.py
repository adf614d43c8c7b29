"""How long the keeper waits before it acts, and how fast it does: values only."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ledger.limits.keeper import (
    AUDIT_S,
    DELETES_PER_S,
    DROPPED_GRACE_S,
    DROPPED_LEAST_S,
    KEEPER_PASS_S,
    OPTIMIZE_BYTES_PER_S,
    OWNER_GRACE_S,
    RECOVERIES_PER_S,
    REPLACED_GRACE_S,
    UNNAMED_GRACE_S,
)


@dataclass(frozen=True, slots=True)
class KeeperConfig:
    """How long the keeper waits before it acts, and how fast it does."""

    pass_s: float = KEEPER_PASS_S
    owner_grace_s: float = OWNER_GRACE_S
    unnamed_grace_s: float = UNNAMED_GRACE_S
    recoveries_per_s: float = RECOVERIES_PER_S
    deletes_per_s: float = DELETES_PER_S
    dropped_grace_s: float = DROPPED_GRACE_S
    """How long after rows were dropped their ledgers are deleted."""
    replaced_grace_s: float = REPLACED_GRACE_S
    """How long after packs and merged manifests were made the ledgers that they replace are deleted
    (rule K11)."""
    dropped_least_s: float = DROPPED_LEAST_S
    """How long at least, while more waits for that than the stream's retention keeps (rule K8)."""
    sink_records_s: float = 0.0
    """Records of sinks that have committed nothing for so long are removed; 0: never."""
    audit_s: float = AUDIT_S
    """From one audit to the next, in time of a keeper's work; 0: only those that are asked for."""
    optimize_s: float = 0.0
    """From one look for small commits to the next (rule K10); 0: never."""
    optimize_bytes_per_s: float = OPTIMIZE_BYTES_PER_S
    dry_run: bool = False
    """Say what would be done, and do nothing."""
