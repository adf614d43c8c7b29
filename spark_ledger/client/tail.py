"""Follows a ledger: entries as they are confirmed, also while the metadata cannot be read.

Bookies tell what is confirmed and hold it; the metadata tell of new fragments and of the close. So
the two are followed side by side: while ZooKeeper is away a tail delivers what the bookies that it
knows have, and what only new metadata can tell waits until they can be read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from spark_ledger.client.context import ClientContext
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.client.last_confirmed import cancelled_at_exit
from spark_ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchEntryError,
)
from spark_ledger.limits.client import (
    TAIL_FIRST_LOOK_S,
    TAIL_METADATA_WAIT_S,
    TAIL_RETRY_DELAY_S_MAX,
)
from spark_ledger.limits.entries import LONG_POLL_S_MAX
from spark_ledger.limits.metadata import METADATA_RETRY_DELAY_S
from spark_ledger.types import EntryId, LedgerId, LedgerMetadata


class Followed(Protocol):
    """What a tail needs of its reader."""

    @property
    def ledger_id(self) -> LedgerId: ...
    @property
    def metadata(self) -> LedgerMetadata: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def last_add_confirmed(self) -> EntryId: ...
    def read_batches(self, first: int, last: int) -> AsyncGenerator[EntryBatch, None]: ...


class Tail:
    """One tail of one reader; used once.

    ``refresh_metadata`` reads the metadata into the reader. ``wait_for_newer`` has the reader learn
    of a newer last add confirmed, or of none within the seconds that it is given.
    """

    def __init__(
        self,
        reader: Followed,
        context: ClientContext,
        *,
        refresh_metadata: Callable[[], Awaitable[None]],
        wait_for_newer: Callable[[float], Awaitable[None]],
    ) -> None:
        self._reader = reader
        self._context = context
        self._refresh_metadata = refresh_metadata
        self._wait_for_newer = wait_for_newer
        self._loop = asyncio.get_running_loop()
        self._following = 0
        self._changed = asyncio.Event()
        """The metadata may have changed since they were read."""
        self._looked = asyncio.Event()
        """An attempt to read the metadata is over, whatever came of it."""
        self._news = asyncio.Event()
        """The metadata were read, or there is an error."""
        self._is_away = False
        """Whether the last attempt to read the metadata found no server."""
        self._error: LedgerError | None = None

    async def batches(
        self, start: int, idle_timeout: float | None
    ) -> AsyncGenerator[EntryBatch, None]:
        """See ``LedgerReader.tail_batches``."""
        self._following = start
        self._changed.set()
        watch = self._context.ledgers.watch(self._reader.ledger_id, self._changed.set)
        follower = self._loop.create_task(self._follow_metadata())
        try:
            async with cancelled_at_exit(follower):
                await self._wait_for(self._looked, TAIL_FIRST_LOOK_S)
                idle_since = self._loop.time()
                while True:
                    if self._error is not None:
                        raise self._error
                    if self._following <= self._reader.last_add_confirmed:
                        async with aclosing(self._confirmed()) as batches:
                            async for batch in batches:
                                yield batch
                        idle_since = self._loop.time()
                        continue
                    wait_s = LONG_POLL_S_MAX
                    if idle_timeout is not None:
                        wait_s = min(wait_s, idle_since + idle_timeout - self._loop.time())
                    if self._reader.is_closed or wait_s <= 0:
                        return
                    await self._wait_for_news(wait_s, follower)
        finally:
            watch.cancel()

    async def _confirmed(self) -> AsyncGenerator[EntryBatch, None]:
        """What is known to be confirmed, as far as it can be had now."""
        known = self._reader.metadata
        end = self._reader.last_add_confirmed
        try:
            async with aclosing(self._reader.read_batches(self._following, end)) as batches:
                async for batch in batches:
                    self._following = batch.last_entry + 1
                    yield batch
        except (NoSuchEntryError, BookieUnavailableError, DigestMismatchError):
            if not await self._learned_of_others(known):
                raise

    async def _learned_of_others(self, known: LedgerMetadata) -> bool:
        """Whether the metadata now name other bookies; waits while nobody can say."""
        deadline = self._loop.time() + TAIL_METADATA_WAIT_S
        # An error ends who reads the metadata: nobody would look for them again.
        while self._error is None and self._loop.time() < deadline:
            self._looked.clear()
            self._changed.set()
            await self._wait_for(self._looked, deadline - self._loop.time())
            if self._error is not None or self._reader.metadata.fragments != known.fragments:
                return True
            if not self._is_away:
                return False
        return self._error is not None

    async def _wait_for_news(self, wait_s: float, follower: asyncio.Task[None]) -> None:
        """Until LAC or the metadata may have changed, or the time is over."""
        self._news.clear()
        poll = asyncio.ensure_future(self._wait_for_newer(wait_s))
        news = self._loop.create_task(self._news.wait())
        async with cancelled_at_exit(poll, news):
            await asyncio.wait({poll, news, follower}, return_when=asyncio.FIRST_COMPLETED)
            for task in (poll, follower):
                if task.done():
                    task.result()

    async def _follow_metadata(self) -> None:
        """Read the metadata after each change, as often as it takes."""
        pause_s = METADATA_RETRY_DELAY_S
        while self._error is None:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._refresh_metadata()
            except MetadataUnavailableError:
                self._is_away = True
                self._looked.set()
                await asyncio.sleep(pause_s * self._context.random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, TAIL_RETRY_DELAY_S_MAX)
                self._changed.set()
                continue
            except LedgerError as error:
                self._error = error
            self._is_away, pause_s = False, METADATA_RETRY_DELAY_S
            self._looked.set()
            self._news.set()

    async def _wait_for(self, event: asyncio.Event, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()
