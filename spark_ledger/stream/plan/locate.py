"""Where entries lie: the fragments of ledgers and the registered bookies, for plans."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from spark_ledger.errors import LedgerError
from spark_ledger.limits.stream import LEDGERS_LOCATED_MAX, LOCATED_S, PLAN_LEDGERS_MAX
from spark_ledger.stream.concurrency import run_all
from spark_ledger.stream.ledgers import Ledgers
from spark_ledger.types import BookieInfo, LedgerId, LedgerMetadata

_AT_ONCE_MAX: Final = 64


class Located(NamedTuple):
    """What is known of the places of entries. Ledgers that could not be looked up are missing."""

    ledgers: dict[LedgerId, LedgerMetadata]
    bookies: tuple[BookieInfo, ...]


class _Known(NamedTuple):
    metadata: LedgerMetadata
    read_s: float


class Locator:
    """Looks ledgers up, and keeps what it found. Bound to one event loop."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._located: OrderedDict[LedgerId, _Known] = OrderedDict()

    async def locate(self, ledger_ids: Iterable[LedgerId]) -> Located:
        """The metadata of ledgers and the bookies that are registered. Never fails for a ledger
        that cannot be looked up: a plan is good without."""
        wanted = list(islice(dict.fromkeys(ledger_ids), PLAN_LEDGERS_MAX))
        now = asyncio.get_running_loop().time()
        missing = [each for each in wanted if not self._is_known(each, now)]
        for begin in range(0, len(missing), _AT_ONCE_MAX):
            await run_all(self._look_up(each) for each in missing[begin : begin + _AT_ONCE_MAX])
        found = {each: self._located[each].metadata for each in wanted if each in self._located}
        while len(self._located) > LEDGERS_LOCATED_MAX:
            self._located.popitem(last=False)
        return Located(found, tuple(self._ledgers.registered_bookies()))

    def _is_known(self, ledger_id: LedgerId, now: float) -> bool:
        known = self._located.get(ledger_id)
        if known is None:
            return False
        self._located.move_to_end(ledger_id)
        return known.metadata.is_closed or now - known.read_s <= LOCATED_S

    async def _look_up(self, ledger_id: LedgerId) -> None:
        began = asyncio.get_running_loop().time()
        try:
            metadata = await self._ledgers.ledger_metadata(ledger_id)
        except LedgerError:  # whoever reads the ledger says what is wrong with it
            return
        self._located[ledger_id] = _Known(metadata, began)
