"""How long writers are waited for whose open ledgers name a lost bookie (rule R3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from typing import Final, NamedTuple

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    BookieUnavailableError,
    NotEnoughBookiesError,
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.limits.repair import REPAIR_ASKS_AT_ONCE, REPAIR_UNTOLD_AGAIN_S
from spark_ledger.types import BookieId, EntryId, LedgerId, LedgerMetadata, Versioned

END_NOT_FOUND: Final = (
    UnauthorizedError,
    RecoveryError,
    BookieUnavailableError,
    NotEnoughBookiesError,
)
"""Why the end of an open ledger cannot be found now, though the metadata store answers."""


class _Grace(NamedTuple):
    """Of one ledger."""

    version: int
    """Of its metadata. Not the fragment: a writer may have left it and come back."""
    since: float
    confirmed: EntryId | None = None
    """What was confirmed then; None: nobody has said so yet."""
    asked_at: float = float("-inf")
    """When nobody said so the last time."""


class Graces:
    """The open ledgers that a worker waits for."""

    def __init__(self, client: LedgerClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._graces: dict[LedgerId, _Grace] = {}
        self._asking = 0

    @property
    def ledgers(self) -> Set[LedgerId]:
        """Those that are waited for."""
        return self._graces.keys()

    def forget(self, ledger_id: LedgerId) -> None:
        """A ledger that lacks nothing any more has all of its grace the next time."""
        self._graces.pop(ledger_id, None)

    async def is_over(
        self, ledger: Versioned[LedgerMetadata], grace_s: float, told: Collection[BookieId]
    ) -> bool:
        """Whether the writer of a ledger whose last fragment names a lost bookie had its time.

        ``told``: who has to leave. What is confirmed beside one of these does not count: one that
        has lost ZooKeeper does not know that it leaves, and would serve for ever.
        """
        ledger_id, now = ledger.value.ledger_id, self._clock()
        grace = self._graces.get(ledger_id)
        if grace is None or grace.version != ledger.version:
            grace = _Grace(ledger.version, now)
        self._graces[ledger_id] = grace
        is_over = now - grace.since >= grace_s
        if not grace_s or not set(told).isdisjoint(ledger.value.last_fragment.bookies):
            return is_over
        again_s = min(REPAIR_UNTOLD_AGAIN_S, grace_s / 5)
        if not is_over and (
            grace.confirmed is not None
            or now - grace.asked_at < again_s
            or self._asking >= REPAIR_ASKS_AT_ONCE  # dead machines answer late: copies go on
        ):
            return False
        confirmed = await self._confirmed(ledger.value)
        if confirmed is None:
            self._graces[ledger_id] = grace._replace(asked_at=self._clock())
            return is_over
        if grace.confirmed is not None and confirmed <= grace.confirmed:
            return True
        # The lost bookie serves; or this is the first answer, and what it says may grow yet.
        self._graces[ledger_id] = grace._replace(since=self._clock(), confirmed=confirmed)
        return False

    async def _confirmed(self, ledger: LedgerMetadata) -> EntryId | None:
        """What is confirmed of an open ledger; None if that cannot be asked, or nobody says."""
        self._asking += 1
        try:
            return (await self._client.open_ledger(ledger.ledger_id)).last_add_confirmed
        except END_NOT_FOUND:
            return None
        finally:
            self._asking -= 1
