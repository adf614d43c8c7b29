"""Which ledgers a commit may name again, though the keeper deletes those of dropped commits.

A ledger is only deleted while the configuration lists it as one that is dropped, and each commit
checks the version of the configuration. So a ledger that existed and was not listed in one version
exists as long as that version does (rule T17).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spark_ledger.errors import NoSuchLedgerError
from spark_ledger.limits.metadata import NAMED_LEDGERS_KEPT
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.ledgers import LedgerNaming
from spark_ledger.stream.model import StreamConfig
from spark_ledger.types import LedgerId, Versioned


class ExistingLedgers:
    """What the committers of one handle know of ledgers, in one version of the configuration."""

    def __init__(self, naming: LedgerNaming) -> None:
        self._naming = naming
        self._version = -1
        self._known: dict[LedgerId, None] = {}

    def unknown(
        self, ledger_ids: Iterable[LedgerId], config: Versioned[StreamConfig]
    ) -> list[LedgerId]:
        """Those of the ledgers that may have been deleted, for all that is known. Of a stream that
        drops nothing there are none."""
        if not config.value.has_retention:
            return []
        known = self._known if config.version == self._version else {}
        return [each for each in ledger_ids if each not in known]

    def checks(self, ledger_ids: Collection[LedgerId]) -> list[Operation]:
        """The parts of a transaction that fail with NotFoundError if one of them was deleted."""
        return self._naming.checks(ledger_ids)

    def exist(self, ledger_ids: Iterable[LedgerId], version: int) -> None:
        """A transaction in this version of the configuration has found that they exist."""
        if version < self._version:
            return
        if version > self._version or len(self._known) > NAMED_LEDGERS_KEPT:
            self._version, self._known = version, {}
        self._known.update(dict.fromkeys(ledger_ids))


def refuse_dropping(ledger_ids: Iterable[LedgerId], config: StreamConfig) -> None:
    """Raises NoSuchLedgerError if one of the ledgers is about to be deleted (rule T17)."""
    if config.dropping:
        lost = sorted(set(config.dropping).intersection(ledger_ids))
        if lost:
            raise NoSuchLedgerError(
                f"stream {config.name!r}: nothing was committed, because ledger {lost[0]} with "
                "rows of the commit is being deleted: all commits that named it were truncated, "
                "and its writer had closed it; write the rows again"
            )
