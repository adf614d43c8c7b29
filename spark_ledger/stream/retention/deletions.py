"""What giving space back asks of whoever deletes ledgers. Knows no stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_ledger.metadata.base import Operation
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned


class Deletions(Protocol):
    """How ledgers are deleted: by whom, how fast, and in which order with other keepers."""

    def guard(self) -> Operation:
        """The part of each transaction that fails once somebody else does this work."""

    async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        """The metadata of a ledger, or None if it was deleted: not because a server lags."""

    async def delete(self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]) -> bool:
        """Delete a ledger as it was read, if the checks hold; whether that was done."""

    async def recover(self, ledger_id: LedgerId) -> None:
        """Close an open ledger of a version of before, which named no owner; an error is logged."""
