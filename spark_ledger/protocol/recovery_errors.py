"""What a recovery tells its caller when it fails: one function for each reason.

One bad bookie is one bad bookie. Only when too few others remain the recovery fails, with the error
that tells most: bookies that refuse a password which the metadata know to be right (rule P20).
"""

from __future__ import annotations

from spark_ledger.errors import LedgerError, RecoveryError, UnauthorizedError
from spark_ledger.protocol.append_errors import describe
from spark_ledger.protocol.lane_tail import LaneTail
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import BookieStatus, LedgerMetadata


def unknown_end(metadata: LedgerMetadata, tail: LaneTail) -> LedgerError:
    """All replicas have answered and do not suffice. Cutting the ledger here might lose a
    confirmed entry, so the ledger stays as it is until more bookies are back (rule P14)."""
    name = f"ledger {metadata.ledger_id} ({metadata.quorums})"
    answers = tail.describe(metadata)
    if tail.needs_refused(metadata):
        return UnauthorizedError(
            f"{name}: bookies refuse the ledger's password, and without them nobody can tell "
            f"whether entry {tail.next_entry} was written ({answers})"
        )
    return RecoveryError(
        f"{name}: too few bookies tell whether entry {tail.next_entry} was written ({answers}). "
        "Start them and open the ledger again"
    )


def not_stored(metadata: LedgerMetadata, replication: Replication) -> LedgerError:
    """Too few bookies are left to store what was found (rule P16)."""
    name = f"ledger {metadata.ledger_id} ({metadata.quorums})"
    failed = describe(replication)
    if not replication.suffices_without(replication.failed_with(BookieStatus.UNAUTHORIZED)):
        return UnauthorizedError(
            f"{name}: bookies {failed} refuse the ledger's password, and without them its end "
            "cannot be stored"
        )
    return RecoveryError(
        f"{name}: too few writable bookies to store its end; bookies {failed} failed. Start "
        "bookies and open the ledger again"
    )
