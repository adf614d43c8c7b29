"""Which ledgers somebody still has to look after: an index beside them, as long as the work left.

``unsettled/open/00/0000/L0001``     exists while the ledger is not closed
``unsettled/unnamed/00/0000/L0001``  exists until a transaction has named the ledger: a commit of
                                     its stream, or another that makes it part of something;
                                     its data are the ledger's incarnation, or empty by an older
                                     version: who names it sees which ledger of the id it is

Both are made in one transaction with the ledger. The first goes in the transaction that closes the
ledger, the second in the one that names it. So whoever looks for ledgers of dead writers reads what
is open or unnamed now, and never all ledgers that there are. A ledger whose second node is gone is
deleted only by those who know that nothing names it any more.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterable
from typing import Final, NamedTuple

from spark_ledger.errors import ConflictError, NotFoundError
from spark_ledger.metadata.base import MetadataStore, parent_of
from spark_ledger.types import LedgerId

OPEN_PATH: Final = "unsettled/open"
UNNAMED_PATH: Final = "unsettled/unnamed"

IDS_PER_PAGE: Final = 10_000
_NAME: Final = re.compile(r"L(\d{4})")
_HIGH: Final = re.compile(r"[0-9]{2,}")
_MIDDLE: Final = re.compile(r"[0-9]{4}")


def id_path(root: str, ledger_id: LedgerId) -> str:
    """The node of a ledger below ``root``: no level has more than ten thousand children."""
    assert ledger_id >= 0, "ledger ids count upwards"
    rest, low = divmod(ledger_id, IDS_PER_PAGE)
    high, middle = divmod(rest, IDS_PER_PAGE)
    return f"{root}/{high:02d}/{middle:04d}/L{low:04d}"


class Page(NamedTuple):
    """Up to ten thousand ids, ascending, and the node that they are listed in."""

    path: str
    ids: list[LedgerId]

    @property
    def number(self) -> int:
        """Its place among all pages of ids, those that are not there included."""
        high, middle = self.path.split("/")[-2:]
        return int(high + middle)


async def pages(store: MetadataStore, root: str) -> AsyncGenerator[Page, None]:
    """The ids below ``root``, page by page: never all at once.

    Not a snapshot. An error in any part is raised.
    """
    for number in await page_numbers(store, root):
        yield await one_page(store, root, number)


async def pages_in_use(store: MetadataStore, root: str) -> AsyncGenerator[Page, None]:
    """As ``pages``, and takes away those without ids, but for the newest: else one node would stay
    for each ten thousand ids that were ever given. Whoever makes a node of one makes it again."""
    before: Page | None = None
    async for page in pages(store, root):
        if before is not None and not before.ids:
            with contextlib.suppress(ConflictError, NotFoundError):
                await store.delete(before.path)
        yield page
        before = page


async def page_numbers(store: MetadataStore, root: str) -> list[int]:
    """The numbers of the pages that are there, ascending. What is no page's name is left out."""
    numbers: list[int] = []
    for high in await _highs(store, root):
        numbers += await _numbers_below(store, root, high)
    return sorted(numbers)  # as names, 100 comes before 99


async def newest_pages(store: MetadataStore, root: str, count: int) -> list[Page]:
    """The last ``count`` pages below ``root``, ascending: where the ids that were given out lately
    are."""
    numbers: list[int] = []
    for high in sorted(await _highs(store, root), key=int, reverse=True):
        if len(numbers) < count:
            numbers += sorted(await _numbers_below(store, root, high), reverse=True)
    return [await one_page(store, root, number) for number in reversed(numbers[:count])]


async def _highs(store: MetadataStore, root: str) -> list[str]:
    return [each for each in await store.children(root) if _HIGH.fullmatch(each)]


async def _numbers_below(store: MetadataStore, root: str, high: str) -> list[int]:
    middles = await store.children(f"{root}/{high}")
    return [int(high + middle) for middle in middles if _MIDDLE.fullmatch(middle)]


async def one_page(store: MetadataStore, root: str, number: int) -> Page:
    """The page of a number; without ids if it is not there."""
    path = parent_of(id_path(root, LedgerId(number * IDS_PER_PAGE)))
    return Page(path, ids_named(await store.children(path), number))


def ids_named(names: Iterable[str], number: int) -> list[LedgerId]:
    """The ids that the names of a page's nodes stand for; what is no ledger's is left out."""
    base = number * IDS_PER_PAGE
    return [LedgerId(base + int(m[1])) for name in names if (m := _NAME.fullmatch(name))]
