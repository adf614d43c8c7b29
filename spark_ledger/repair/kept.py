"""What only a bookie has that is to go, and that nothing names for it.

Metadata that were restored from a backup name bookies that have given their copies back since. Who
holds them keeps them (rule G9), and the check that a restore begins marks what they lack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConflictError, LedgerError, NoSuchLedgerError, NotFoundError
from spark_ledger.metadata.json_nodes import read_or_renew
from spark_ledger.metadata.ledgers import LedgerStore, is_unreadable
from spark_ledger.metadata.unsettled import pages
from spark_ledger.repair.checker import Checker
from spark_ledger.repair.held import held_parts
from spark_ledger.repair.nodes import CHECK_PATH, PRIORITIES, CheckState, mark_root
from spark_ledger.repair.plan import LaneCopy, all_names, final_fragments, lane_copies, missing
from spark_ledger.types import BookieId, LedgerId, LedgerMetadata

_PAUSE_S = 2.0
"""Before it is looked again how far a check is that a keeper makes too."""


class KeptCopies:
    """Asks about one bookie. Belongs to the loop of the client."""

    def __init__(self, client: LedgerClient, bookie_id: BookieId) -> None:
        self._store = client.store
        self._transport = client.context.transport
        self._timeout_s = client.context.config.read_timeout_s
        self._ledgers = LedgerStore(self._store)
        self._checker = Checker(client)
        self._bookie_id = bookie_id

    async def count(self) -> int:
        """How many marked ledgers lack what this bookie holds for nobody: none, if ZooKeeper was
        not restored. The check that tells is brought to its end, which may take hours.

        A bookie that does not answer has nothing. Raises what the metadata store raises.
        """
        while (state := await self._state()).restored and state.begun_ms:
            try:
                await self._checker.run_pass()
            except (ConflictError, NotFoundError):  # of a keeper, which is at it as well
                await asyncio.sleep(_PAUSE_S)
        if not state.restored:
            return 0
        found = 0
        for copies in PRIORITIES:
            async for page in pages(self._store, mark_root(copies)):
                for ledger_id in page.ids:
                    found += await self._is_needed(ledger_id)
        return found

    async def _state(self) -> CheckState:
        known = await read_or_renew(self._store, CheckState(), CHECK_PATH)
        return CheckState() if known is None else known.value

    async def _is_needed(self, ledger_id: LedgerId) -> bool:
        try:
            ledger = (await self._ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            return False
        except LedgerError as error:
            if not is_unreadable(error):
                raise
            return False
        return self._bookie_id not in all_names(ledger) and await self._has_what_lacks(ledger)

    async def _has_what_lacks(self, ledger: LedgerMetadata) -> bool:
        """Whether it holds an entry that a member which answers should have, and has not."""
        for fragment in final_fragments(ledger):
            if fragment.last < fragment.first:
                continue
            span = (ledger.ledger_id, fragment.first, fragment.last)
            held: list[tuple[int, int]] = []
            async for part in held_parts(
                self._transport, self._bookie_id, *span, timeout_s=self._timeout_s
            ):
                held += part.ranges or ()
            if not held:
                continue
            for index, member in enumerate(fragment.bookies):
                lanes = lane_copies(ledger, fragment, index, lost=())
                async for part in held_parts(
                    self._transport, member, *span, timeout_s=self._timeout_s
                ):
                    if part.ranges is None:
                        break
                    if any(_is_any_held(lane, held) for lane in part.missing(lanes)):
                        return True
        return False


def _is_any_held(lane: LaneCopy, held: Sequence[tuple[int, int]]) -> bool:
    return _count(lane) > sum(map(_count, missing(lane, held)))


def _count(lane: LaneCopy) -> int:
    return (lane.last_entry - lane.first) // lane.stride + 1
