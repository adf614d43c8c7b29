"""What ``ledger ledgers show`` knows of a ledger: each bookie of each fragment is asked for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from spark_ledger.cli import inspection
from spark_ledger.cli.inspection import Holding, inspect_ledger
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.transport.base import LastConfirmed, ListedEntries
from spark_ledger.types import (
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)

A, B, C = (BookieId(name) for name in "abc")


class Bookies:
    """``a`` has two pages, ``b`` never had the ledger, ``c`` has entries and cannot say its end."""

    async def list_entries(
        self, bookie_id: BookieId, _ledger_id: LedgerId, first: EntryId, *, timeout_s: float
    ) -> ListedEntries:
        if bookie_id == B:
            return ListedEntries(BookieStatus.NO_SUCH_LEDGER, [])
        if bookie_id == C:
            return ListedEntries(BookieStatus.OK, [(EntryId(0), EntryId(1))])
        if first == 0:
            return ListedEntries(BookieStatus.OK, [(EntryId(0), EntryId(2))], EntryId(5))
        return ListedEntries(BookieStatus.OK, [(EntryId(5), EntryId(9))])

    async def read_last_confirmed(
        self, bookie_id: BookieId, _ledger_id: LedgerId, *, timeout_s: float
    ) -> LastConfirmed:
        if bookie_id == A:
            return LastConfirmed(BookieStatus.OK, EntryId(11), fenced=True)
        status = BookieStatus.NO_SUCH_LEDGER if bookie_id == B else BookieStatus.IO_ERROR
        return LastConfirmed(status)


@pytest.mark.parametrize("is_closed", [False, True])
def test_picture_has_what_each_bookie_of_each_fragment_says(
    tree: MemoryTree, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    @asynccontextmanager
    async def transport(_store: object) -> AsyncIterator[Bookies]:
        yield Bookies()

    async def create() -> None:
        fragments = (Fragment(EntryId(0), (A, B)), Fragment(EntryId(3), (A, C)))
        made = LedgerMetadata(LedgerId(7), Quorums(2, 2, 2), fragments)
        if is_closed:
            made = made.with_changes(state=LedgerState.CLOSED, last_entry_id=EntryId(9), length=90)
        await LedgerStore(MemoryMetadataStore(tree)).create(made)

    monkeypatch.setattr(inspection, "_transport", transport)
    asyncio.run(create())
    picture = inspect_ledger("zk://h/l", 7)
    assert picture.last_add_confirmed == (9 if is_closed else 11)
    assert [holding._replace(ranges=tuple(holding.ranges)) for holding in picture.holdings] == [
        Holding(A, ((EntryId(0), EntryId(2)), (EntryId(5), EntryId(9))), EntryId(11), True),
        Holding(B, (), EntryId(-1), False),
        Holding(C, ((EntryId(0), EntryId(1)),), EntryId(-1), False),
    ]
