"""Which listed ledgers have their turn in a pass: none of its other duties waits long (rule K6)."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from spark_ledger.limits.keeper import PASS_PART_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.unsettled import pages, pages_in_use
from spark_ledger.types import LedgerId


class Turns:
    """Goes through an index, and gives ledgers their turn for ``PASS_PART_S``.

    Those that had none in one pass are the first ones of the next: what cannot be done for long
    keeps no other from its turn. A dry run gives all of them one, and leaves empty pages alone.
    """

    def __init__(self, store: MetadataStore, clock: Callable[[], float], *, dry_run: bool) -> None:
        self._store = store
        self._clock = clock
        self._part_s = math.inf if dry_run else PASS_PART_S
        self._pages = pages if dry_run else pages_in_use
        self._first: dict[str, LedgerId] = {}
        """By index, the first ledger that had no turn."""

    async def of(self, root: str) -> AsyncGenerator[tuple[LedgerId, bool], None]:
        """All ledgers that are listed below ``root``, and whether it is their turn.

        Raises what the metadata store raises.
        """
        first, until = self._first.pop(root, 0), None
        async with aclosing(self._pages(self._store, root)) as found:
            async for page in found:
                for ledger_id in page.ids:
                    has_turn = ledger_id >= first and root not in self._first
                    if has_turn:
                        now = self._clock()
                        until = now + self._part_s if until is None else until
                        if now >= until:
                            self._first[root], has_turn = ledger_id, False
                    yield ledger_id, has_turn
