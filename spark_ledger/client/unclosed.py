"""What becomes of a ledger whose writer has ended and could not store its end.

Its connection closes it by recovery, once ZooKeeper answers again: while the owner lives the keeper
leaves it alone (rule K3), and who tails it would wait for as long as this process runs.
"""

from __future__ import annotations

from typing import Final

from spark_ledger.client.context import ClientContext
from spark_ledger.client.left_open import LeftOpen
from spark_ledger.client.recovery import Recovery
from spark_ledger.errors import (
    AddOutcomeUnknownError,
    FencedError,
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    NotFoundError,
)
from spark_ledger.protocol.events import Abandon, Event, MetadataFailed, WriteMetadata
from spark_ledger.types import EntryId, LedgerId, LedgerMetadata, LedgerState
from spark_ledger.wire.frame import Digest

_NOT_OURS: Final = (FencedError, MetadataRestoredError, NotFoundError)
"""Why a writer ended whose ledger is another's to close, or is gone."""


class Unclosed:
    """One for each writer. Belongs to its loop."""

    def __init__(
        self, context: ClientContext, left_open: LeftOpen, *, access_key: bytes, digest: Digest
    ) -> None:
        self._context = context
        self._left_open = left_open
        self._access_key = access_key
        self._digest = digest
        self._ended_with: LedgerMetadata | None = None
        """What the writer knew of the ledger; set once it was handed over."""
        self._not_stored: LedgerError | None = None
        """Why the last write of its metadata failed."""
        self.is_closed_by_now = False
        """Whether it was closed behind its writer."""

    async def write(self, command: WriteMetadata) -> Event:
        """Write metadata for the writer."""
        event = await self._context.write_metadata(command)
        self._not_stored = event.error if isinstance(event, MetadataFailed) else None
        return event

    def hand_over(self, metadata: LedgerMetadata, error: LedgerError | None) -> None:
        """The writer has ended, with these metadata as far as it knows, and perhaps an error: have
        the ledger closed, if it is open and nobody else's."""
        reasons = error, error and error.__cause__, self._not_stored
        is_ours = not any(isinstance(reason, _NOT_OURS) for reason in reasons)
        if metadata.state is LedgerState.OPEN and is_ours and self._ended_with is None:
            self._ended_with = metadata
            self._left_open.add(metadata.ledger_id, self._recover)

    def why(self, error: LedgerError | None) -> LedgerError | None:
        """What to tell who closes a writer that has ended, perhaps with an error; None if there is
        nothing to tell: the ledger is closed, or another's to close.

        That an entry may be stored comes first: who is told that nothing was changed repeats it."""
        if self._ended_with is None or self.is_closed_by_now:
            return None
        if error is not None and error.outcome_unknown:
            return error
        return self._not_stored or error

    async def _recover(self, ledger_id: LedgerId) -> None:
        ours, found = self._ended_with, await self._context.ledgers.read_latest(ledger_id)
        assert ours is not None, "A ledger is recovered once it was handed over."
        lost = _first_entries(ours) - _first_entries(found.value)
        if lost or found.value.incarnation != ours.incarnation:
            raise MetadataRestoredError("ZooKeeper was restored from a backup of before it")
        if not found.value.is_closed:
            await Recovery(
                self._context, found, access_key=self._access_key, digest=self._digest
            ).run()
        self.is_closed_by_now = True


def abandoned(ledger_id: LedgerId, why: str) -> Abandon:
    """What to tell a writer that ends here, with its ledger as it is."""
    why = f"ledger {ledger_id}: {why}; "
    return Abandon(
        in_flight=AddOutcomeUnknownError(why + "the add was in flight"),
        error=LedgerClosedError(why + "open it with recover=True to close it"),
    )


def _first_entries(metadata: LedgerMetadata) -> set[EntryId]:
    return {fragment.first_entry for fragment in metadata.fragments}
