"""Naming: what a transaction has to contain that makes ledgers part of something, as a commit does.

A ledger that was made ``until_named`` may be deleted until a transaction has named it (rule K4).
So who names a ledger for the first time takes its unnamed node away, in the same transaction.

A restored store gives ids again. So who names a ledger says which incarnation of it is meant.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    MetadataRestoredError,
    NotFoundError,
)
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
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.unsettled import UNNAMED_PATH, id_path
from spark_ledger.types import LedgerId


class Naming:
    """What one client knows of ledgers that were named. Belongs to the loop of the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._named: OrderedDict[LedgerId, bytes] = OrderedDict()
        """With the incarnation of each; empty: it was not asked for."""
        self._found: OrderedDict[LedgerId, bytes] = OrderedDict()
        """Incarnations of ledgers that a transaction is about to name, or did not name."""
        self._connections = store.connections

    def unsettled(self, ledger_ids: Iterable[LedgerId]) -> list[LedgerId]:
        """Those of the ledgers that are not known to be named, each once, ascending."""
        if self._connections != self._store.connections:
            # The store may have been restored meanwhile, and have given an id to another ledger.
            self._connections = self._store.connections
            self._named.clear()
            self._found.clear()
        return sorted({each for each in ledger_ids if each not in self._named})

    async def operations(
        self, ledger_ids: Sequence[LedgerId], whose: Collection[tuple[LedgerId, bytes]] = ()
    ) -> list[Operation]:
        """The parts of the transaction for ledgers that are not known to be named. ``whose`` are
        the incarnations that it means, also of ledgers that are known to be named; empty: any.

        Raises MetadataRestoredError if a ledger is another one of the same id. For this to count,
        the transaction has to be sent over the connection that there was before the call.

        It fails with NotFoundError if one of them is deleted meanwhile, and with that or
        ConflictError if another transaction names one meanwhile, or the server that answers here
        lags: then ask again. Call ``named`` once it has succeeded.
        """
        operations: list[Operation] = []
        meant = {ledger_id for ledger_id, incarnation in whose if incarnation}
        found, connection = dict[LedgerId, bytes](), self._store.connections
        for start in range(0, len(ledger_ids), METADATA_READS_IN_FLIGHT_MAX):
            part = ledger_ids[start : start + METADATA_READS_IN_FLIGHT_MAX]
            looks = await asyncio.gather(*(self._operations_of(one, meant) for one in part))
            for ledger_id, (parts, incarnation) in zip(part, looks, strict=True):
                operations += parts
                found[ledger_id] = incarnation
        for ledger_id, incarnation in whose:
            there = found.get(ledger_id) or self._named.get(ledger_id)
            if there and incarnation and there != incarnation:
                raise MetadataRestoredError(
                    f"ledger {ledger_id} is another one than that with the rows to be committed: "
                    "ZooKeeper was restored from a backup, and has given the id again. Nothing was "
                    "committed. Run `ledger cluster restored`, start this process and those that "
                    "wrote the rows anew, and write them again"
                )
        if connection == self._store.connections:
            self._found.update(found)
        while len(self._found) > NAMED_LEDGERS_KEPT:
            self._found.popitem(last=False)
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
            # Of two transactions at once the second finds here what the first has left.
            self._named[each] = self._found.pop(each, b"") or self._named.get(each, b"")
        while len(self._named) > NAMED_LEDGERS_KEPT:
            self._named.popitem(last=False)

    async def _operations_of(
        self, ledger_id: LedgerId, meant: Collection[LedgerId]
    ) -> tuple[list[Operation], bytes]:
        """The parts for one ledger, and its incarnation; empty: nobody asks for it, or says it."""
        path = id_path(UNNAMED_PATH, ledger_id)
        exists = Check(ledger_path(ledger_id), ANY_VERSION)
        try:
            incarnation = (await self._store.get(path)).value
        except NotFoundError:
            incarnation = await self._look(ledger_id) if ledger_id in meant else b""
            # Named before, or a server that lags. If the node is there after all, creating it
            # fails: nothing may be named whose unnamed node stays.
            with contextlib.suppress(ConflictError):
                await self._store.create(parent_of(path), b"")
            return [exists, Create(path, b""), Delete(path)], incarnation
        if not incarnation and ledger_id in meant:  # made by an older version
            incarnation = await self._look(ledger_id)
        return [exists, Delete(path)], incarnation

    async def _look(self, ledger_id: LedgerId) -> bytes:
        """The incarnation that the ledger's own node says."""
        path = ledger_path(ledger_id)
        # If it is gone the transaction will tell, and if it is damaged whoever reads the rows.
        with contextlib.suppress(NotFoundError, CorruptionError, ConfigurationError):
            try:
                found = await self._store.get(path)
            except NotFoundError:  # or that server lags
                found = await self._store.get_latest(path)
            return decode_ledger(path, ledger_id, found.value).incarnation
        return b""
