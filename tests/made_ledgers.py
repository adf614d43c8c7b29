"""Ledgers without keys in a cluster's metadata, for tests that speak to bookies by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorums


def make_ledgers(uri: str, ledger_ids: Iterable[int], bookie_id: str = "bookie-0") -> None:
    """Have the metadata know them: a bookie serves no others."""

    async def make() -> None:
        store = await open_store(uri)
        try:
            ledgers = LedgerStore(store)
            fragment = Fragment(EntryId(0), (BookieId(bookie_id),))
            for ledger_id in ledger_ids:
                await ledgers.create(
                    LedgerMetadata(LedgerId(ledger_id), Quorums(1, 1, 1), (fragment,))
                )
        finally:
            await store.close()

    asyncio.run(make())
