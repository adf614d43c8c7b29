"""Naming: what a transaction has to contain that makes ledgers part of something, as a commit does.

A ledger that was made ``until_named`` may be deleted until a transaction has named it (rule K4).
So who names a ledger for the first time takes its unnamed node away, in the same transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from spark_ledger.errors import ConflictError, NotFoundError
from spark_ledger.limits.metadata import METADATA_READS_IN_FLIGHT_MAX, NAMED_LEDGERS_KEPT
from spark_ledger.metadata.base import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    Operation,
    parent_of,
)
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.unsettled import UNNAMED_PATH, id_path
from spark_ledger.types import LedgerId


class Naming:
    """What one client knows of ledgers that were named. Belongs to the loop of the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._named: OrderedDict[LedgerId, None] = OrderedDict()
        self._connections = store.connections

    def unsettled(self, ledger_ids: Iterable[LedgerId]) -> list[LedgerId]:
        """Those of the ledgers that are not known to be named, each once, ascending."""
        if self._connections != self._store.connections:
            # The store may have been restored meanwhile, and have given an id to another ledger.
            self._connections = self._store.connections
            self._named.clear()
        return sorted({each for each in ledger_ids if each not in self._named})

    async def operations(self, ledger_ids: Sequence[LedgerId]) -> list[Operation]:
        """The parts of the transaction for ledgers that are not known to be named.

        It fails with NotFoundError if one of them is deleted meanwhile, and with that or
        ConflictError if another transaction names one meanwhile, or the server that answers here
        lags: then ask again. Call ``named`` once it has succeeded.
        """
        operations: list[Operation] = []
        for start in range(0, len(ledger_ids), METADATA_READS_IN_FLIGHT_MAX):
            part = ledger_ids[start : start + METADATA_READS_IN_FLIGHT_MAX]
            for each in await asyncio.gather(*(self._operations_of(one) for one in part)):
                operations += each
        return operations

    def checks(self, ledger_ids: Iterable[LedgerId]) -> list[Operation]:
        """The parts of a transaction that fail with NotFoundError if one was deleted."""
        return [Check(ledger_path(each), ANY_VERSION) for each in ledger_ids]

    def deletes(self, ledger_ids: Iterable[LedgerId]) -> list[Operation]:
        """The parts of a transaction that delete ledgers, which fail with NotFoundError if one was
        deleted before: of closed ones that were named, so they have no other node."""
        return [Delete(ledger_path(each)) for each in ledger_ids]

    def named(self, ledger_ids: Iterable[LedgerId]) -> None:
        """A transaction with the operations of these ledgers has succeeded."""
        for each in ledger_ids:
            self._named[each] = None
        while len(self._named) > NAMED_LEDGERS_KEPT:
            self._named.popitem(last=False)

    async def _operations_of(self, ledger_id: LedgerId) -> list[Operation]:
        path = id_path(UNNAMED_PATH, ledger_id)
        exists = Check(ledger_path(ledger_id), ANY_VERSION)
        try:
            await self._store.get(path)
        except NotFoundError:
            # Named before, or a server that lags. If the node is there after all, creating it
            # fails: nothing may be named whose unnamed node stays.
            with contextlib.suppress(ConflictError):
                await self._store.create(parent_of(path), b"")
            return [exists, Create(path, b""), Delete(path)]
        return [exists, Delete(path)]
