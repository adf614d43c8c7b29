"""What a writer or a recovery tells its caller when it stops: one function for each reason.

An error of a writer says what is known of the entries. Only those of ``cannot_go_on`` name a final
end, because only then does the writer close the ledger itself; all others leave entries in flight
whose fate a recovery decides (rule P18), so none of them may sound as if nothing had been stored.
"""

from __future__ import annotations

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    ConflictError,
    EnsembleLostError,
    FencedError,
    LedgerError,
    LedgerTakenOverError,
    MetadataRestoredError,
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.protocol.events import MetadataConflict
from spark_ledger.protocol.lane_tail import LaneTail
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import BookieStatus, EntryId, LedgerId, LedgerMetadata


def describe(replication: Replication) -> str:
    """The bookies that failed, each with how it failed."""
    return ", ".join(
        f"{member.bookie_id} ({member.status.name.lower()}{member.reason and ': '}{member.reason})"
        for member in sorted(replication.failed_members, key=lambda member: member.bookie_id)
    )


# -- of a writer -----------------------------------------------------------------------------------


def cannot_go_on(
    metadata: LedgerMetadata, replication: Replication, end: EntryId, reason: str
) -> LedgerError:
    """Failed bookies cannot be replaced (rule P10); the ledger is closed at ``end``.

    If those that refuse the password are too many already, that is what there is to say (rule P20).
    """
    name, failed = f"ledger {metadata.ledger_id} ({metadata.quorums})", describe(replication)
    if not replication.suffices_without(replication.failed_with(BookieStatus.UNAUTHORIZED)):
        return UnauthorizedError(
            f"{name}: bookies {failed} refuse the ledger's password, and {reason}; the ledger ends "
            f"at entry {end}. Another client may have used its id before: write to a new ledger"
        )
    return EnsembleLostError(
        f"{name}: bookies {failed} failed and {reason}; the ledger ends at entry {end}. Start "
        "bookies, then write to a new ledger"
    )


def ensemble_changed(ledger_id: LedgerId) -> ConflictError:
    """Another client gave the ledger a fragment above what this writer has confirmed (rule P7)."""
    return ConflictError(
        f"ledger {ledger_id}: another client changed its ensemble; "
        "open the ledger with recovery to learn its end"
    )


def went_back(
    ours: LedgerMetadata, version: int, found: MetadataConflict
) -> MetadataRestoredError | None:
    """The stored metadata cannot have come after ``ours``, which had ``version`` (rule P6); None if
    they can.

    No ledger loses a fragment: others may put other bookies into one, or add some behind. A change
    of metadata that lack one would give its confirmed entries to bookies that do not hold them.
    """
    stored = found.metadata
    lost = {f.first_entry for f in ours.fragments} - {f.first_entry for f in stored.fragments}
    if (
        stored.incarnation == ours.incarnation
        and (found.version > version or (found.version == version and stored == ours))
        and not lost
    ):
        return None
    return MetadataRestoredError(
        f"ledger {ours.ledger_id}: its metadata have version {found.version}, and this writer has "
        f"had version {version} or other ones: ZooKeeper was restored from a backup. Run `ledger "
        "cluster restored`, then write to a new ledger"
    )


def taken_over(stored: LedgerMetadata, end: EntryId) -> LedgerError:
    """Another client is recovering the ledger, or has closed it; this one confirmed ``end``."""
    name = f"ledger {stored.ledger_id}"
    if stored.is_closed:
        return LedgerTakenOverError(
            f"{name}: another client recovered it and closed it at entry "
            f"{stored.last_entry_id}; this writer had confirmed {end}"
        )
    return FencedError(f"{name}: another client is recovering it")


def change_not_stored(ledger_id: LedgerId, cause: LedgerError) -> AddOutcomeUnknownError:
    """The metadata store failed during an ensemble change.

    Not the store's own error: that one would say that nothing happened, but entries that are
    pending may be on bookies, and recovery may make them part of the ledger (rule P18).
    """
    error = AddOutcomeUnknownError(
        f"ledger {ledger_id}: a failed bookie could not be replaced, because the metadata could "
        f"not be written: {cause}"
    )
    error.__cause__ = cause
    return error


def closed_early(ledger_id: LedgerId, end: EntryId) -> AddOutcomeUnknownError:
    """The application closed the ledger while adds above ``end`` had no answer yet."""
    return AddOutcomeUnknownError(
        f"ledger {ledger_id} was closed at entry {end} while later adds were in flight"
    )


# -- of a recovery ---------------------------------------------------------------------------------
#
# One bad bookie is one bad bookie. Only when too few others remain the recovery fails, with the
# error that tells most: bookies that refuse a password that the metadata know to be right (rule
# P20).


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
