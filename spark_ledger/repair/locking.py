"""The lock of a ledger that repair is at, for as long as it is at it (rules R7 and R11)."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from spark_ledger.errors import ConflictError, LedgerError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.repair_locks import RepairLock, lock_path
from spark_ledger.types import LedgerId
from spark_ledger.wire.frame import access_key_hash
from spark_ledger.wire.shown_keys import COPY_SECRET_BYTES, copy_key

logger = logging.getLogger(__name__)


@asynccontextmanager
async def repair_lock(
    store: MetadataStore, ledger_id: LedgerId
) -> AsyncGenerator[bytes | None, None]:
    """Hold the lock of a ledger; the fresh copy key whose hash stands in it.

    None if somebody else holds it, or if it could not be taken now.
    """
    lock, key = lock_path(ledger_id), copy_key(secrets.token_bytes(COPY_SECRET_BYTES))
    holder = encode_node(RepairLock(key_hash=access_key_hash(key)))
    try:
        await store.create(lock, holder, ephemeral=True)
    except ConflictError:
        yield None
        return
    except LedgerError as error:
        logger.warning("ledger %d is not locked: %s", ledger_id, error)
        yield None
        return
    try:
        yield key
    finally:
        with contextlib.suppress(LedgerError):
            await store.delete(lock)
