"""A bookie says FENCED to a writer: the metadata tell whether it is true (rule P18).

A recovery stores IN_RECOVERY before it fences anybody. So a bookie that speaks of a fence while the
metadata, read after it spoke, say OPEN is broken: one bad bookie, and not the end of the ledger.
"""

from __future__ import annotations

from spark_ledger.errors import (
    AddOutcomeUnknownError,
    FencedError,
    LedgerError,
    MetadataUnavailableError,
)
from spark_ledger.protocol.events import (
    AddFailed,
    Command,
    MetadataRead,
    MetadataUnread,
    ReadMetadata,
)
from spark_ledger.types import BookieId, BookieStatus, LedgerMetadata, LedgerState


def speaks_of_fence(event: AddFailed) -> bool:
    """Whether the bookie says that somebody else has fenced the ledger."""
    return event.status is BookieStatus.FENCED


class FenceQuestion:
    """The question whether a fence is real. One is open at a time.

    While it is open no replacement is looked for and the ledger is not given up: the failure of the
    bookie that spoke is an ordinary one only if the metadata say so.
    """

    def __init__(self) -> None:
        self._said_by: BookieId | None = None
        """The bookie that spoke of a fence first; None if no question is open."""
        self._ask_again = False
        """Another spoke since: the answer that is under way may be older than what it says."""

    @property
    def is_open(self) -> bool:
        """Whether the answer is waited for."""
        return self._said_by is not None

    def ask(self, bookie_id: BookieId) -> list[Command]:
        """A member says that the ledger is fenced."""
        if self.is_open:
            self._ask_again = True
            return []
        self._said_by = bookie_id
        return [ReadMetadata()]

    def answer(
        self, event: MetadataRead | MetadataUnread, ours: LedgerMetadata, *, can_wait: bool
    ) -> tuple[list[Command], LedgerError | None]:
        """What to ask next, and why the writer stops. Neither: nobody has fenced the ledger.

        ``can_wait``: the other members suffice. Then nothing depends on the answer yet, and a store
        that is away is asked again: were the fence real, they would soon say so too (rule P13).
        """
        assert self._said_by is not None, "The metadata answer a question."
        name = f"ledger {ours.ledger_id}: bookie {self._said_by}"
        if isinstance(event, MetadataUnread):
            if can_wait and isinstance(event.error, MetadataUnavailableError):
                return [ReadMetadata()], None
            error = AddOutcomeUnknownError(
                f"{name} says that another client has fenced the ledger, and the metadata that "
                f"could tell cannot be read: {event.error}"
            )
            error.__cause__ = event.error
            return [], error
        stored = event.metadata
        is_ours = stored is not None and stored.incarnation == ours.incarnation
        if stored is None or not is_ours or stored.state is not LedgerState.OPEN:
            return [], FencedError(f"{name} says that another client has fenced the ledger")
        if self._ask_again:
            self._ask_again = False
            return [ReadMetadata()], None
        self._said_by = None
        return [], None
