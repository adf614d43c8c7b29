"""The live view of the registered bookies that a client chooses ensembles and addresses from."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from spark_ledger.errors import LedgerError, MetadataUnavailableError
from spark_ledger.limits import DIRECTORY_REFRESH_S
from spark_ledger.metadata.base import Watch
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.types import BookieId, BookieInfo, BookieState

logger = logging.getLogger(__name__)


class BookieDirectory:
    """The registered bookies as last seen, kept fresh by watches and a slow periodic read.

    Clients choose ensembles and find addresses with it, without waiting for ZooKeeper.
    """

    def __init__(self, registry: BookieRegistry) -> None:
        self._registry = registry
        self._bookies: Mapping[BookieId, BookieInfo] = {}
        self._addresses: dict[BookieId, str] = {}
        self._watch: Watch | None = None
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._failure: MetadataUnavailableError | None = None

    async def start(self) -> None:
        """Read once and follow from then on. Raises MetadataUnavailableError if that read fails."""
        assert self._task is None, "started once"
        self._watch = self._registry.watch(self._changed.set)
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stop following. What was seen stays readable."""
        if self._watch is not None:
            self._watch.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def address(self, bookie_id: BookieId) -> str | None:
        """Where a bookie answers, or last did: one that is no longer registered may still serve,
        and says who it is when it is asked."""
        return self._addresses.get(bookie_id)

    def get(self, bookie_id: BookieId) -> BookieInfo | None:
        """A registered bookie."""
        return self._bookies.get(bookie_id)

    def all(self) -> list[BookieInfo]:
        """Registered bookies, by id."""
        return list(self._bookies.values())

    def writable(self) -> list[BookieInfo]:
        """Registered bookies that take new entries, by id."""
        return [info for info in self._bookies.values() if info.state is BookieState.WRITABLE]

    async def refresh(self) -> None:
        """Read now, for instance before giving up for want of bookies.

        Raises MetadataUnavailableError if the store does not answer. A call that waited for a read
        that failed does not read again, so it takes no longer than one metadata operation.
        """
        failures = self._failures
        async with self._lock:  # an older answer must not replace a newer one
            if self._failures != failures:
                raise MetadataUnavailableError(
                    f"the list of bookies cannot be read: {self._failure}"
                )
            self._changed.clear()  # before the read: a change during it must lead to another
            try:
                bookies = {info.bookie_id: info for info in await self._registry.list()}
            except MetadataUnavailableError as error:
                self._failures, self._failure = self._failures + 1, error
                raise
            self._bookies = bookies
        self._addresses.update((info.bookie_id, info.address) for info in bookies.values())

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DIRECTORY_REFRESH_S):
                    await self._changed.wait()
            try:
                await self.refresh()
            except MetadataUnavailableError as error:
                # An old view is safe: it only makes bad proposals. The reconnect sets the event.
                logger.warning("the list of bookies may be out of date: %s", error)
            except LedgerError:
                logger.exception("the list of bookies cannot be read; keeping the last one")
                await asyncio.sleep(DIRECTORY_REFRESH_S)
