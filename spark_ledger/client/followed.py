"""What the tails of one ledger in one client share: their long polls, and entries once verified."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import aclosing, suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

from spark_ledger.client.caches import watch_cache
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.errors import LedgerError
from spark_ledger.limits.client import (
    TAIL_ENTRY_BYTES,
    TAIL_FETCH_BYTES_MAX,
    TAIL_KEPT_BYTES_MAX,
)
from spark_ledger.types import NO_ENTRY, EntryId, Fragment, LedgerMetadata, Versioned

T = TypeVar("T")

FollowedKey = tuple[int, bytes, bytes]
"""The ledger's id and incarnation, and the access key that a reader shows: whoever shows another
one shares nothing (rule P24)."""


class Follower(Protocol):
    """One tail: how far it is, and what is asked of its reader for all."""

    @property
    def following(self) -> int: ...
    @property
    def metadata(self) -> LedgerMetadata: ...
    @property
    def last_add_confirmed(self) -> EntryId: ...
    def count_shared(self, entries: int, /) -> None: ...
    def wait_for_newer(self, wait_s: float, /) -> Awaitable[EntryId]: ...
    def read_metadata(self) -> Awaitable[Versioned[LedgerMetadata]]: ...
    def read_batches(
        self, first: int, last: int, *, unconfirmed: bool = False
    ) -> AsyncGenerator[EntryBatch, None]: ...


class SharedCall(Generic[T]):
    """One call that several wait for. Belongs to the loop.

    It belongs to those who wait: whoever leaves disturbs nobody, and the last one that leaves ends
    it. Each waits for a future of its own. What the call brings, an error too, is given to all.
    """

    def __init__(self, work: Coroutine[object, object, T]) -> None:
        self._waiting: dict[asyncio.Future[T], None] = {}
        """In the order in which they came, and so they are told."""
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._give)
        self.is_over = False
        """Nobody may join any more."""

    def join(self, waiter: asyncio.Future[T]) -> None:
        """Give a future what comes."""
        assert not self.is_over, "What it brought has been given away, or nobody waited for it."
        self._waiting[waiter] = None

    async def leave(self, waiter: asyncio.Future[T]) -> None:
        """Wait no more; for each that has joined, also once it has got what came."""
        self._waiting.pop(waiter, None)
        if not self._waiting and not self.is_over:
            self.is_over = True
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def result(self) -> T:
        """Join, and wait."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.join(waiter)
        try:
            return await waiter
        finally:
            await self.leave(waiter)

    def _give(self, task: asyncio.Task[T]) -> None:
        self.is_over = True
        waiting = [waiter for waiter in self._waiting if not waiter.done()]
        error = None if task.cancelled() else task.exception()  # looked at, whoever has left
        for waiter in waiting:
            if task.cancelled():
                waiter.cancel()
            elif error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(task.result())


class _Poll(NamedTuple):
    """A long poll: of whom, above which entry, and until when."""

    fragment: Fragment
    known: EntryId
    ends: float
    call: SharedCall[EntryId]


class FollowedLedger:
    """One ledger that tails of one client follow (rule P24). Belongs to the client's loop.

    The first tail makes it, the last one that leaves forgets it, with all that it keeps. Tails that
    know the same last add confirmed share a long poll, and those that hear of a change share a read
    of the metadata. If there is more than one tail, the poll reads what is new before it tells of
    it, and the entries are kept for all of them: until each has taken them, and at most
    ``TAIL_KEPT_BYTES_MAX``. A tail that needs others reads for itself, and so does each if a shared
    read fails: then it has the errors that it would have alone.
    """

    def __init__(self) -> None:
        self.newest: EntryId = NO_ENTRY
        """The highest last add confirmed that one of the tails believes."""
        self._tails: set[Follower] = set()
        self._polls: list[_Poll] = []
        self._metadata: SharedCall[Versioned[LedgerMetadata]] | None = None
        """A read of the metadata that has not begun."""
        self._fetch: tuple[int, SharedCall[None]] | None = None
        self._failed_at: int | None = None
        """Where the last shared read failed."""
        self._kept: deque[tuple[EntryBatch, int]] = deque()
        """Batches, each of consecutive entries, with their sizes."""
        self._kept_end = 0
        """The entry behind the last that was kept."""
        self._kept_bytes = 0
        watch_cache("tails", self, FollowedLedger.kept_bytes, TAIL_KEPT_BYTES_MAX)

    def add(self, tail: Follower) -> None:
        """A tail comes."""
        self._tails.add(tail)

    def discard(self, tail: Follower) -> bool:
        """A tail leaves. Whether it was the last one."""
        self._tails.discard(tail)
        self._drop_taken()
        return not self._tails

    def kept_bytes(self) -> int:
        """About what the entries take that are kept."""
        return self._kept_bytes

    # -- polls -------------------------------------------------------------------------------------

    def poll(self, tail: Follower, wait_s: float) -> SharedCall[EntryId]:
        """A call that brings a newer last add confirmed than the tail knows; the same one if none
        comes within the time.

        One that is under way is shared by whoever would wait at least as long.
        """
        loop = asyncio.get_running_loop()
        known, fragment = tail.last_add_confirmed, tail.metadata.last_fragment
        ends = loop.time() + wait_s
        self._polls = [poll for poll in self._polls if not poll.call.is_over]
        for poll in self._polls:
            if poll.known == known and poll.ends <= ends and poll.fragment == fragment:
                return poll.call
        call = SharedCall(self._learn(tail, known, wait_s))
        self._polls.append(_Poll(fragment, known, ends, call))
        return call

    async def _learn(self, tail: Follower, known: EntryId, wait_s: float) -> EntryId:
        newest = await tail.wait_for_newer(wait_s)
        first = max(known + 1, self._taken())
        if first <= newest and len(self._tails) > 1:
            with suppress(LedgerError):  # each tail will meet it as well, and knows what to do
                await self._read_and_keep(tail, first, newest)
        self.newest = max(self.newest, newest)
        return newest

    # -- metadata ----------------------------------------------------------------------------------

    async def read_metadata(self, tail: Follower) -> Versioned[LedgerMetadata]:
        """The metadata as they are stored now. All tails hear of a change in the same moment; one
        reads for those that ask before the read has begun."""
        if self._metadata is None or self._metadata.is_over:
            self._metadata = SharedCall(self._read_metadata(tail))
        return await self._metadata.result()

    async def _read_metadata(self, tail: Follower) -> Versioned[LedgerMetadata]:
        self._metadata = None  # who asks from now on may have heard of a later change
        return await tail.read_metadata()

    # -- entries -----------------------------------------------------------------------------------

    def kept(self, first: int, last: int) -> EntryBatch | None:
        """Entries from ``first`` on, up to ``last`` at most; None if ``first`` is not kept."""
        for batch, _size in self._kept:
            if batch.first_entry <= first <= min(last, batch.last_entry):
                return batch.between(first, last)
        return None

    async def read(self, tail: Follower, first: int, last: int) -> AsyncGenerator[EntryBatch, None]:
        """Entries that are confirmed, as ``LedgerReader.read_batches``. Of several tails that are
        at the end of what is kept one reads for all."""
        following = first
        while following <= last:
            batch = self.kept(following, last)
            if batch is None and self._is_shared_from(following):
                with suppress(LedgerError):
                    await self._fetched(tail, following, last).result()
                batch = self.kept(following, last)
            if batch is None:
                break
            following = batch.last_entry + 1
            tail.count_shared(len(batch))
            yield batch
        if following <= last:
            async with aclosing(tail.read_batches(following, last)) as batches:
                async for batch in batches:
                    yield batch

    def _is_shared_from(self, first: int) -> bool:
        return len(self._tails) > 1 and first == self._kept_end and first != self._failed_at

    def _fetched(self, tail: Follower, first: int, last: int) -> SharedCall[None]:
        if self._fetch is None or self._fetch[0] != first or self._fetch[1].is_over:
            self._fetch = first, SharedCall(self._read_and_keep(tail, first, last))
        return self._fetch[1]

    async def _read_and_keep(self, tail: Follower, first: int, last: int) -> None:
        """Read what is confirmed, as much as is shared at once."""
        size = 0
        try:
            async with aclosing(tail.read_batches(first, last, unconfirmed=True)) as batches:
                async for batch in batches:
                    size += self._keep(batch)
                    if size >= TAIL_FETCH_BYTES_MAX:
                        return
        except LedgerError:
            self._failed_at = first
            raise

    def _keep(self, batch: EntryBatch) -> int:
        """Keep entries, and no more those that each tail has, or that are too many. Their size."""
        size = batch.payload_bytes + TAIL_ENTRY_BYTES * len(batch)
        self._kept.append((batch, size))
        self._kept_bytes += size
        self._kept_end = batch.last_entry + 1
        self._drop_taken()
        return size

    def _taken(self) -> int:
        """The first entry that some tail may still want."""
        return min((tail.following for tail in self._tails), default=self._kept_end)

    def _drop_taken(self) -> None:
        taken = self._taken()
        while self._kept and (
            self._kept[0][0].last_entry < taken or self._kept_bytes > TAIL_KEPT_BYTES_MAX
        ):
            self._kept_bytes -= self._kept.popleft()[1]


class FollowedLedgers:
    """The ledgers that tails of one client follow now. Belongs to the client's loop."""

    def __init__(self) -> None:
        self._ledgers: dict[FollowedKey, FollowedLedger] = {}

    def join(self, key: FollowedKey, tail: Follower) -> FollowedLedger:
        """What a tail shares from now on with others that show the same key."""
        ledger = self._ledgers.get(key)
        if ledger is None:
            ledger = self._ledgers[key] = FollowedLedger()
        ledger.add(tail)
        return ledger

    def leave(self, key: FollowedKey, tail: Follower) -> None:
        """A tail ends. With the last one goes what was kept for them."""
        if self._ledgers[key].discard(tail):
            del self._ledgers[key]
