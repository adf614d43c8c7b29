"""The lock of a ledger that repair is at, for as long as it is at it (rules R7 and R11)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from spark_ledger.errors import ConflictError, LedgerError, NotFoundError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.repair_locks import RepairLock, lock_path
from spark_ledger.types import LedgerId
from spark_ledger.wire.frame import access_key_hash
from spark_ledger.wire.shown_keys import COPY_SECRET_BYTES, copy_key

logger = logging.getLogger(__name__)

_HELD: Final[WeakKeyDictionary[MetadataStore, set[LedgerId]]] = WeakKeyDictionary()
"""The ledgers whose locks are held over each connection now."""


@dataclass(slots=True)
class HeldLock:
    """A lock that is held."""

    path: str
    key: bytes
    """The fresh copy key whose hash stands in it."""
    store: MetadataStore
    connections: int
    """Of the store when it was taken, or before."""
    is_released: bool = False
    """Its node went in a transaction of whoever holds it."""

    @property
    def may_be_lost(self) -> bool:
        """Whether its session may have ended since: then another worker's may stand there."""
        return self.store.connections != self.connections


@asynccontextmanager
async def repair_lock(
    store: MetadataStore, ledger_id: LedgerId
) -> AsyncGenerator[HeldLock | None, None]:
    """Hold the lock of a ledger.

    None if somebody else holds it, or if it could not be taken now.
    """
    lock, key = lock_path(ledger_id), copy_key(secrets.token_bytes(COPY_SECRET_BYTES))
    holder = encode_node(RepairLock(key_hash=access_key_hash(key)))
    held = _HELD.setdefault(store, set())
    is_taken, connections = False, store.connections
    if ledger_id not in held:
        held.add(ledger_id)
        try:
            is_taken = await _take(store, lock, holder)
        except LedgerError as error:
            logger.warning("ledger %d is not locked: %s", ledger_id, error)
        except asyncio.CancelledError:
            await _give_up(store, lock)
            raise
        finally:
            if not is_taken:
                held.discard(ledger_id)
    if not is_taken:
        yield None
        return
    taken = HeldLock(lock, key, store, connections)
    try:
        yield taken
    finally:
        held.discard(ledger_id)
        try:
            with contextlib.suppress(LedgerError):
                is_ours = not taken.is_released
                if is_ours and (not taken.may_be_lost or await store.is_own(lock)):
                    await store.delete(lock)
        except asyncio.CancelledError:
            await _give_up(store, lock)
            raise


async def _give_up(store: MetadataStore, lock: str) -> None:
    """Leave no lock behind when its taker is cancelled: the request to create it may be on its way.

    This connection may live for long with no worker that would take such a lock anew.
    """
    with contextlib.suppress(LedgerError):
        if await store.is_own(lock):
            await store.delete(lock)


async def _take(store: MetadataStore, lock: str, holder: bytes) -> bool:
    """Take a lock that nobody in this process holds; false if another process does.

    One of this session was left by somebody before, when the store did not answer: it would keep
    everybody away from the ledger until this process ends.
    """
    with contextlib.suppress(ConflictError):
        await store.create(lock, holder, ephemeral=True)
        return True
    with contextlib.suppress(ConflictError, NotFoundError):
        if await store.is_own(lock):
            await store.delete(lock)
            await store.create(lock, holder, ephemeral=True)
            return True
    return False
