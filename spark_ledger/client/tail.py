"""Follows a ledger: entries as they are confirmed, also while the metadata cannot be read.

Bookies tell what is confirmed and hold it; the metadata tell of new fragments and of the close. So
the two are followed side by side: while ZooKeeper is away a tail delivers what the bookies that it
knows have, and what only new metadata can tell waits until they can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from spark_ledger.client.context import ClientContext
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.client.followed import FollowedKey, FollowedLedger
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
from spark_ledger.tasks import wait_at_most
from spark_ledger.types import NO_ENTRY, EntryId, LedgerId, LedgerMetadata, Versioned


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
    def learn(self, confirmed: EntryId) -> None: ...
    def renew(self, ledger: Versioned[LedgerMetadata]) -> None: ...
    def read_batches(
        self, first: int, last: int, *, unconfirmed: bool = False
    ) -> AsyncGenerator[EntryBatch, None]: ...


class Tail:
    """One tail of one reader; used once.

    ``read_metadata`` reads the metadata as they are stored now. ``wait_for_newer`` asks bookies for
    a last add confirmed above the reader's, for as many seconds, and tells the one that is
    believed. ``key`` is shown by all tails that may share what they learn.
    """

    def __init__(
        self,
        reader: Followed,
        context: ClientContext,
        *,
        key: FollowedKey,
        read_metadata: Callable[[], Awaitable[Versioned[LedgerMetadata]]],
        wait_for_newer: Callable[[float], Awaitable[EntryId]],
    ) -> None:
        self._reader = reader
        self._context = context
        self._key = key
        self.read_metadata = read_metadata
        self.wait_for_newer = wait_for_newer
        self.read_batches = reader.read_batches
        self._loop = asyncio.get_running_loop()
        self.following = 0
        """The next entry to be delivered."""
        self._changed = asyncio.Event()
        """The metadata may have changed since they were read."""
        self._looked = asyncio.Event()
        """An attempt to read the metadata is over, whatever came of it."""
        self._news: asyncio.Future[EntryId] | None = None
        """Who waits: for a newer last add confirmed, for metadata that were read, or an error."""
        self._is_away = False
        """Whether the last attempt to read the metadata found no server."""
        self._error: LedgerError | None = None

    async def batches(
        self, start: int, idle_timeout: float | None
    ) -> AsyncGenerator[EntryBatch, None]:
        """See ``LedgerReader.tail_batches``."""
        self.following = start
        self._changed.set()
        watch = self._context.ledgers.watch(self._reader.ledger_id, self._changed.set)
        shared = self._context.followed.join(self._key, self)
        follower = self._loop.create_task(self._follow_metadata(shared))
        follower.add_done_callback(self._wake)
        try:
            async with cancelled_at_exit(follower):
                await wait_at_most(self._looked, TAIL_FIRST_LOOK_S)
                idle_since = self._loop.time()
                while True:
                    if self._error is not None:
                        raise self._error
                    self._reader.learn(shared.newest)
                    end = self.last_add_confirmed
                    if kept := shared.kept(self.following, end):
                        self.count_shared(len(kept))
                        self.following = kept.last_entry + 1
                        yield kept
                        idle_since = self._loop.time()
                        continue
                    if self.following <= end:
                        async with aclosing(self._confirmed(shared, end)) as batches:
                            async for batch in batches:
                                yield batch
                        idle_since = self._loop.time()
                        continue
                    wait_s = LONG_POLL_S_MAX
                    if idle_timeout is not None:
                        wait_s = min(wait_s, idle_since + idle_timeout - self._loop.time())
                    if self._reader.is_closed or wait_s <= 0:
                        return
                    await self._wait_for_news(shared, wait_s)
                    if follower.done():
                        follower.result()
        finally:
            watch.cancel()
            self._context.followed.leave(self._key, self)

    @property
    def metadata(self) -> LedgerMetadata:
        """What its reader has read of the metadata."""
        return self._reader.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that its reader may read."""
        return self._reader.last_add_confirmed

    def count_shared(self, entries: int) -> None:
        """So many entries come that were read for all."""
        self._context.counters.entries_shared += entries

    async def _confirmed(
        self, shared: FollowedLedger, end: EntryId
    ) -> AsyncGenerator[EntryBatch, None]:
        """What is known to be confirmed, as far as it can be had now."""
        known = self._reader.metadata
        try:
            async with aclosing(shared.read(self, self.following, end)) as batches:
                async for batch in batches:
                    self.following = batch.last_entry + 1
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
            await wait_at_most(self._looked, deadline - self._loop.time())
            if self._error is not None or self._reader.metadata.fragments != known.fragments:
                return True
            if not self._is_away:
                return False
        return self._error is not None

    async def _wait_for_news(self, shared: FollowedLedger, wait_s: float) -> None:
        """Until LAC or the metadata may have changed, or the time is over."""
        news = self._news = self._loop.create_future()
        poll = shared.poll(self, wait_s)
        poll.join(news)
        try:
            self._reader.learn(await news)
        finally:
            self._news = None
            await poll.leave(news)

    def _wake(self, _ended: object = None) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(NO_ENTRY)

    async def _follow_metadata(self, shared: FollowedLedger) -> None:
        """Read the metadata after each change, as often as it takes."""
        pause_s = METADATA_RETRY_DELAY_S
        while self._error is None:
            await self._changed.wait()
            self._changed.clear()
            try:
                self._reader.renew(await shared.read_metadata(self))
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
            self._wake()
