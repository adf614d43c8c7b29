"""Checks each ledger once, soon after it was closed.

An entry needs AQ copies to be confirmed, and a bookie that failed meanwhile, or a writer that died,
leaves some without the others (rule R14).

What it remembers belongs to one keeper. The next one goes on at the node that says up to where
ledgers are open or were checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConflictError, LedgerError, NotFoundError
from spark_ledger.keeper.passes import run_passes
from spark_ledger.limits.repair import (
    CLOSED_AT_FIRST_MAX,
    CLOSED_AT_ONCE,
    CLOSED_GAPS_MAX,
    CLOSED_PAGES,
    CLOSED_SILENT_MAX,
)
from spark_ledger.metadata.json_nodes import read_node, read_or_renew, write_node
from spark_ledger.metadata.ledgers import LEDGERS_PATH
from spark_ledger.metadata.unsettled import IDS_PER_PAGE, OPEN_PATH, newest_pages, pages
from spark_ledger.repair.checker import Checked, Checker, CheckerConfig
from spark_ledger.repair.nodes import CLOSED_PATH, STATE_PATH, AuditState, ClosedState
from spark_ledger.types import BookieId, LedgerId

logger = logging.getLogger(__name__)


class ClosedCheck:
    """One over one connection. Belongs to the loop of the client."""

    def __init__(self, client: LedgerClient, checker: Checker, config: CheckerConfig) -> None:
        self._store = client.store
        self._checker = checker
        self._config = config
        self._forget()

    def _forget(self) -> None:
        self._begun = False
        self._open: set[LedgerId] = set()
        """Open at the last look."""
        self._due: set[LedgerId] = set()
        """Closed, and not checked, or not by all members."""
        self._seen: dict[str, frozenset[LedgerId]] = {}
        """Ids that were there at the last look, of the newest pages."""
        self._newest = 0
        self._from = 0
        """The first id that a look has listed while there were more pages below: what is below it
        was there already, whenever it is listed."""
        self._gaps: list[tuple[int, int]] = []
        """Ids below it that no ledger had at the last look."""

    async def run(self, stop: asyncio.Event, is_elected: Callable[[], bool]) -> None:
        """Check what was closed, while elected, until ``stop`` is set. Outages are waited out."""

        async def run_pass() -> None:
            if is_elected():
                await self.run_pass(is_elected)
            else:
                self._forget()

        def on_error(error: LedgerError) -> None:
            logger.warning("closed ledgers are checked later: %s", error)

        pause_s = self._config.closed_pass_s
        await run_passes(stop, pause_s, run_pass, on_error, pauses_first=True)

    async def run_pass(self, is_elected: Callable[[], bool] = lambda: True) -> int:
        """Check the ledgers that were closed since the last pass; how many have holes.

        Raises what the store raises: then the next pass goes on with the rest.
        """
        known = await read_or_renew(self._store, ClosedState(), CLOSED_PATH)
        # Open ledgers are listed first: one that is made after that is new, and found to be open.
        still_open = {each async for page in pages(self._store, OPEN_PATH) for each in page.ids}
        new = await self._new_ids(None if known is None else known.value)
        self._due |= (self._open | new) - still_open
        self._open = still_open
        audit = await read_node(self._store, AuditState, STATE_PATH)
        lost = frozenset[BookieId]() if audit is None else audit.value.lost

        async def check(ledger_id: LedgerId) -> Checked | None:
            return await self._checker.check(ledger_id, lost) if is_elected() else None

        with_holes = silent = 0
        due = sorted(self._due, reverse=True)  # a keeper before may have checked older ones
        for start in range(0, len(due), CLOSED_AT_ONCE):
            part = due[start : start + CLOSED_AT_ONCE]
            looks = await asyncio.gather(*map(check, part), return_exceptions=True)
            for ledger_id, found in zip(part, looks, strict=True):
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    return with_holes
                with_holes += found.lacks
                if found.is_closed and found.silent and silent < CLOSED_SILENT_MAX:
                    silent += 1  # it stays due, also if this pass is broken off
                    continue
                self._due.discard(ledger_id)
                if not found.is_closed:
                    self._open.add(ledger_id)
        after = max(0, min(self._open | self._due, default=self._newest + 1) - 1)
        unused = tuple(each for each in self._gaps if each[0] <= after)[-CLOSED_GAPS_MAX:]
        state = ClosedState(after=after, gaps=unused)
        if known is None or known.value != state:
            with contextlib.suppress(ConflictError, NotFoundError):  # of another keeper
                await write_node(self._store, CLOSED_PATH, state, known)
        return with_holes

    async def _new_ids(self, known: ClosedState | None) -> set[LedgerId]:
        """Ids that were not there at the last look; at the first one those that no keeper before
        has seen.

        None: no keeper has looked yet. Of what is there already the newest are checked: in a new
        cluster these are all, and in an old one the others are left to the weekly check.
        """
        newest = await newest_pages(self._store, LEDGERS_PATH, CLOSED_PAGES)
        found = {page.path: frozenset(page.ids) for page in newest}
        ids = set[LedgerId]().union(*found.values())
        self._newest = max(ids, default=0)
        if self._begun:
            found_new = ids.difference(*self._seen.values())
            new = {each for each in found_new if each >= self._from}
        else:
            above = self._newest - CLOSED_AT_FIRST_MAX if known is None else known.after
            new = {each for each in ids if each > above}
            new |= within(ids, () if known is None else known.gaps)
        if not self._begun or found != self._seen:
            self._gaps = gaps(ids, newest[0].number * IDS_PER_PAGE - 1 if newest else 0)
        if len(newest) == CLOSED_PAGES:  # once one of them is empty and goes, an older one follows
            self._from = max(self._from, newest[0].number * IDS_PER_PAGE)
        self._begun, self._seen = True, found
        return new


def gaps(ids: Collection[LedgerId], above: int) -> list[tuple[int, int]]:
    """The ranges of ids above ``above``, up to the highest one, that are missing; ascending."""
    return [(low + 1, high - 1) for low, high in pairwise([above, *sorted(ids)]) if high > low + 1]


def within(ids: Collection[LedgerId], ranges: Sequence[tuple[int, int]]) -> set[LedgerId]:
    """Those of the ids that are in one of the ranges, which ascend."""
    ends = [high for _, high in ranges]
    places = ((each, bisect_left(ends, each)) for each in ids)
    return {each for each, place in places if place < len(ends) and ranges[place][0] <= each}
