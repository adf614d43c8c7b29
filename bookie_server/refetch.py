"""Has repair bring back what this bookie found damaged, and sees when it is here (rule S23).

The bookie marks the ledger; a worker of repair asks all its members what they hold, and copies what
one lacks from another, as after any loss (rule R8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from bookie_server.daemon_thread import in_daemon_thread
from bookie_server.storage.ledgers.lacking import Lack, LackingLedgers
from spark_ledger.bookie_api import EntryPage
from spark_ledger.errors import CorruptionError, LedgerError, NoSuchLedgerError
from spark_ledger.limits.repair import REFETCH_LEDGERS_AT_ONCE, REFETCH_LOOK_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.ledgers import read_ledger
from spark_ledger.repair.holes import Hole, hole
from spark_ledger.repair.nodes import mark
from spark_ledger.repair.plan import copies_left
from spark_ledger.tasks import cancel
from spark_ledger.types import BookieId, EntryId, LedgerId

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """What is asked of the bookie."""

    lacking: LackingLedgers

    def entry_page(self, ledger_id: LedgerId, first: EntryId) -> EntryPage | None:
        """What is held from an entry on; None: the ledger is not known. Any thread."""


class Refetch:
    """Belongs to the service thread; disks are asked in threads of their own."""

    def __init__(
        self,
        bookie: Holder,
        store: MetadataStore,
        bookie_id: BookieId,
        *,
        is_accepted: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_accepted``: whether an operator has said, since the metadata were restored, that the
        cluster goes on with them."""
        self._is_accepted = is_accepted
        self._bookie = bookie
        self._store = store
        self._bookie_id = bookie_id
        self._asked_to = LedgerId(-1)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look now and then from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            await cancel(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFETCH_LOOK_S)
            try:
                await self.look()
            except (LedgerError, OSError, CorruptionError) as error:
                logger.warning("what is damaged here is asked for again later: %s", error)

    async def look(self) -> None:
        """Look at the next ledgers of which something is lacking.

        Raises what the metadata store raises, and OSError or CorruptionError of the disk.
        """
        if self._store.restored and not self._is_accepted():
            return  # it may have forgotten ledgers, and which bookies hold them
        lacking = self._bookie.lacking.ledgers()
        behind = [each for each in lacking if each > self._asked_to] or lacking
        for ledger_id in behind[:REFETCH_LEDGERS_AT_ONCE]:
            self._asked_to = ledger_id
            await self._look_at(ledger_id)

    async def _look_at(self, ledger_id: LedgerId) -> None:
        lacks = self._bookie.lacking.of(ledger_id)
        held = await self._held(ledger_id, lacks)
        try:
            ledger = (await read_ledger(ledger_id, self._store.get_latest)).value
        except NoSuchLedgerError:
            if held is None:  # deleted in the metadata, and collected here
                await self._settle(lacks, lambda _lack: True)
            return

        def hole_in(lack: Lack, held: Sequence[tuple[EntryId, EntryId]]) -> Hole:
            return hole(ledger, self._bookie_id, lack.first, lack.last, held)

        holes = {lack: hole_in(lack, (held or {}).get(lack, ())) for lack in lacks}
        # What is held may be in memory only, or in the damaged block itself, whose row is still
        # there or on its way out. That would be denied one day if the list did not have it.
        await self._settle(
            [lack for lack in lacks if holes[lack] is Hole.NONE],
            lambda lack: hole_in(lack, self._bookie.lacking.copies_of(lack)) is Hole.NONE,
        )
        if Hole.REPAIR in holes.values():
            # No bookie is named: this one is not lost, it only lacks something.
            await mark(self._store, ledger_id, frozenset(), copies_left(ledger, {self._bookie_id}))

    async def _held(
        self, ledger_id: LedgerId, lacks: Sequence[Lack]
    ) -> dict[Lack, list[tuple[EntryId, EntryId]]] | None:
        """What is held of each of these stretches; None: the ledger is not known."""
        found: dict[Lack, list[tuple[EntryId, EntryId]]] = {}

        def ask() -> bool:
            for lack in lacks:
                held = found.setdefault(lack, [])
                first: EntryId | None = lack.first
                while first is not None and first <= lack.last:
                    page = self._bookie.entry_page(ledger_id, first)
                    if page is None:
                        break
                    held += page.ranges
                    first = page.next_entry
            return self._bookie.entry_page(ledger_id, EntryId(0)) is not None

        known: list[bool] = []
        await in_daemon_thread(lambda: known.append(ask()))
        return found if known[0] else None

    async def _settle(self, lacks: Sequence[Lack], is_whole: Callable[[Lack], bool]) -> None:
        """Take those stretches of a ledger off the list of which that is true. It is asked in a
        thread of its own, which waits for a scrub that takes rows out."""

        def settle() -> None:
            if gone := self._bookie.lacking.refetched(lacks, is_whole):
                logger.info(
                    "ledger %d: %d damaged stretches are whole again", lacks[0].ledger_id, gone
                )

        if lacks:
            await in_daemon_thread(settle)
