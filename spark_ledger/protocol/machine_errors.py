"""What a writer tells its application when it stops: one function for each reason.

An error says what is known of the entries. Only those of ``cannot_go_on`` name a final end, because
only then does the writer close the ledger itself; all others leave entries in flight whose fate a
recovery decides (rule P18), so none of them may sound as if nothing had been stored.
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
    UnauthorizedError,
)
from spark_ledger.protocol.events import MetadataConflict
from spark_ledger.protocol.replication import Replication
from spark_ledger.types import BookieStatus, EntryId, LedgerId, LedgerMetadata


def describe(replication: Replication) -> str:
    """The bookies that failed, each with how it failed."""
    return ", ".join(
        f"{member.bookie_id} ({member.status.name.lower()}{member.reason and ': '}{member.reason})"
        for member in sorted(replication.failed_members, key=lambda member: member.bookie_id)
    )


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
