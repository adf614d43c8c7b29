"""Ledgers by the nodes that list them."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.metadata.ledger_pages import by_page, page_of
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import MemoryTree
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.metadata.test_ledgers import ledger

PAGES = [[0, 9_999], [10_000, 19_999], [20_000], [99_999_999], [100_000_000], [10**10, 10**10 + 1]]


def test_ids_are_grouped_by_ten_thousand() -> None:
    assert by_page([LedgerId(each) for page in PAGES for each in page]) == PAGES
    assert by_page([]) == []


@pytest.mark.parametrize("page", PAGES)
def test_page_of_a_ledger_has_all_that_are_listed_with_it(page: list[int]) -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        ledgers = LedgerStore(store)
        for each in (each for other in PAGES for each in other):
            await ledgers.create(ledger(each))
        for each in page:
            assert await page_of(store, LedgerId(each)) == set(page)
        await ledgers.delete(LedgerId(page[0]))
        assert await page_of(store, LedgerId(page[0])) == set(page[1:])
        await store.create(f"{ledger_path(LedgerId(page[0]))}x", b"of nobody")
        assert await page_of(store, LedgerId(page[0])) == set(page[1:])
        assert await page_of(store, LedgerId(5 * 10**8)) == set()

    asyncio.run(main())
