"""Deletes ledgers whose metadata nodes are damaged: see ``ledger ledgers delete --damaged``.

Nothing else does, as nobody can tell what such a ledger holds and whose it is. A stream that names
one can give back no space behind it, and cannot be deleted to its end (rule K6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from spark_ledger.errors import ConflictError, CorruptionError, NoSuchLedgerError, NotFoundError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.connect import connected_store
from spark_ledger.metadata.deletions import Deletions
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.types import LedgerId


def delete_damaged(uri: str, ledger_ids: Iterable[LedgerId], advance: Callable[[], None]) -> None:
    """Delete damaged ledgers, one after the other. ``advance`` is called after each.

    Raises NoSuchLedgerError, ConflictError for one that can be read or has just changed,
    ConfigurationError for one of a later format; those before it are deleted then. Bookies get the
    sign of what was deleted in each case.
    """

    async def run() -> None:
        async with connected_store(uri) as store:
            deletions = Deletions(store)
            try:
                for ledger_id in ledger_ids:
                    await _delete(store, ledger_id)
                    deletions.note()
                    advance()
            finally:
                await deletions.close()

    asyncio.run(run())


async def _delete(store: MetadataStore, ledger_id: LedgerId) -> None:
    path = ledger_path(ledger_id)
    try:
        node = await store.get_latest(path)
        _check_damaged(path, ledger_id, node.value)
        await store.delete(path, node.version)  # as it was found: nobody has mended it since
    except NotFoundError as error:
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from error


def _check_damaged(path: str, ledger_id: LedgerId, data: bytes) -> None:
    try:
        decode_ledger(path, ledger_id, data)
    except CorruptionError:
        return
    raise ConflictError(
        f"the metadata of ledger {ledger_id} can be read: nothing was deleted; leave --damaged out "
        "if it is to go"
    )
