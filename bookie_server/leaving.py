"""Follows whether an operator takes this bookie out of the cluster: then it is read-only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from spark_ledger.errors import LedgerError, NotFoundError
from spark_ledger.limits.repair import LEAVING_LOOK_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.cookies import has_left, leaving_path
from spark_ledger.tasks import cancel, wait_at_most
from spark_ledger.types import BookieId

logger = logging.getLogger(__name__)

REASON = "it is decommissioned: `ledger bookies decommission`"

WITHOUT_COOKIE: Final = (
    "empty its directories and format it again. If ZooKeeper was restored from a backup that is "
    "older than this bookie, run `ledger bookie relocate --config FILE` instead"
)


async def why_left(store: MetadataStore, bookie_id: BookieId, incarnation: str = "") -> str:
    """Why the bookie may not be registered any more; empty: it has not left.

    It may have been away when an operator took it out (rule R10). ``incarnation``: of its cookie,
    if it knows it. Raises what the metadata store raises.
    """
    if not await has_left(store, bookie_id, incarnation):
        return ""
    return f"bookie {bookie_id} was taken out of its cluster by an operator: {WITHOUT_COOKIE}"


class LeavingWatch:
    """Tells ``changed`` why the bookie leaves; empty: it stays. Belongs to the service thread."""

    def __init__(
        self, store: MetadataStore, bookie_id: BookieId, changed: Callable[[str], None]
    ) -> None:
        self._store = store
        self._path = leaving_path(bookie_id)
        self._changed = changed
        self._reason = ""
        self._woken = asyncio.Event()
        self._watch = store.watch(self._path, self._woken.set)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        self._watch.cancel()
        await cancel(self._task)

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except LedgerError as error:
                logger.warning("whether this bookie leaves is not known now: %s", error)
            await wait_at_most(self._woken, LEAVING_LOOK_S)
            self._woken.clear()

    async def _look(self) -> None:
        try:
            await self._store.get(self._path)
            reason = REASON
        except NotFoundError:
            reason = ""
        if reason != self._reason:
            self._reason = reason
            self._changed(reason)
