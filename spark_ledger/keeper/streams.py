"""The keeper's work on streams: drops what retention allows, and gives back what was dropped.

All of it is by stream, and an error of one stream keeps no other from its turn. What was done is in
the head and the root of each stream, so a keeper that is killed anywhere has nothing to remember:
only how long ago rows were dropped the next one counts anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.keeper.clock import SteadyClock
from spark_ledger.keeper.nodes import read_clock, write_clock
from spark_ledger.limits.keeper import RECLAIM_STEPS_MAX, SWEPT_STREAMS_MAX
from spark_ledger.metadata.base import Check, Delete, Operation
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.retention.reclaim import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)


class _Deletions:
    """Deletes ledgers that nothing live names, as the elected keeper (rules T17, K5)."""

    def __init__(self, client: LedgerClient, guard: Callable[[], Check], per_s: float) -> None:
        self._store = client.store
        self._ledgers = LedgerStore(client.store)
        self._guard = guard
        self._per_s = per_s

    def guard(self) -> Operation:
        return self._guard()

    async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        try:
            return await self._ledgers.read_latest(ledger_id)
        except NoSuchLedgerError:
            return None

    async def delete(self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]) -> bool:
        ledger_id = ledger.value.ledger_id
        try:
            await self._store.transaction(
                [self._guard(), *checks, Delete(ledger_path(ledger_id), ledger.version)]
            )
        except (ConflictError, NotFoundError, OutcomeUnknownError) as error:
            logger.info("ledger %d is left for the next sweep: %s", ledger_id, error)
            return False
        logger.info("ledger %d is deleted: all commits that named it were dropped", ledger_id)
        await asyncio.sleep(1.0 / self._per_s)
        return True


class _Dropped:
    """When it was first seen up to which commit a stream was dropped, by the monotonic clock."""

    def __init__(self) -> None:
        self.names = LiveNames()
        self._seen: list[tuple[float, int]] = []

    def before(self, earliest_commit: int, now: float, grace_s: float) -> int:
        """Up to which commit it was dropped at least so long ago."""
        if not self._seen or self._seen[-1][1] < earliest_commit:
            self._seen.append((now, earliest_commit))
        while len(self._seen) > 1 and now - self._seen[1][0] >= grace_s:
            self._seen.pop(0)
        since, commit = self._seen[0]
        return commit if now - since >= grace_s else 0


class StreamKeeper:
    """What one keeper does for streams. Belongs to the loop of the client."""

    def __init__(
        self,
        client: LedgerClient,
        guard: Callable[[], Check],
        *,
        clock: Callable[[], float],
        grace_s: float,
        deletes_per_s: float,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = client.store
        self._streams = StreamCatalog(client)
        self._deletions = _Deletions(client, guard, deletes_per_s)
        self._clock = clock
        self._wall_ms = wall_ms
        self._grace_s = grace_s
        self._steady: SteadyClock | None = None
        self._has_warned = False
        self._dropped: OrderedDict[str, _Dropped] = OrderedDict()
        self.done: Counter[str] = Counter()
        """What was done: dropped (commits), reclaimed (ledgers), released (holds)."""
        self.last_error = ""
        """Of the last sweep."""

    async def sweep(self) -> None:
        """One turn of each stream. Raises what the metadata store raises at the listing."""
        self.last_error = ""
        now_ms = await self._time()
        swept: set[str] = set()
        for name in await self._streams.names():
            try:
                stream = await self._streams.open(name)
                swept.add(stream.config.stream_id)
                try:
                    await self._sweep_one(stream, now_ms)
                finally:
                    await stream.close()
            except NoSuchStreamError:
                continue  # deleted meanwhile
            except LedgerError as error:
                self.last_error = f"stream {name!r}: {error}"
                logger.warning("the space of stream %r is not given back yet: %s", name, error)
        for stream_id in self._dropped.keys() - swept:
            del self._dropped[stream_id]

    async def _time(self) -> int:
        """The time by which retention counts (rule K7), which is written down."""
        wall_ms, now = self._wall_ms(), self._clock()
        saved = await read_clock(self._store)
        if self._steady is None:
            self._steady = SteadyClock(wall_ms, now, None if saved is None else saved.value.time_ms)
        now_ms = self._steady.read(wall_ms, now)
        await write_clock(self._store, now_ms, saved)
        if self._steady.has_jumped and not self._has_warned:
            logger.warning(
                "the clock of this host is %d s ahead of what keepers have seen pass: it jumped, "
                "or there was no keeper for so long; retention goes on slowly until it has caught "
                "up",
                self._steady.behind_ms // 1000,
            )
        self._has_warned = self._steady.has_jumped
        return now_ms

    async def _sweep_one(self, stream: Stream, now_ms: int) -> None:
        config, retention = stream.config, stream.retention
        if config.has_retention:
            for hold in await retention.release_void(now_ms):
                self.done["released"] += 1
                logger.info("hold %r of stream %r is over", hold.name, stream.name)
            if not config.retention.is_for_ever:
                self.done["dropped"] += await retention.apply(now_ms)
        head = await stream.head()
        if head.earliest_commit == 0:
            return
        known = self._dropped.setdefault(config.stream_id, _Dropped())
        self._dropped.move_to_end(config.stream_id)
        if len(self._dropped) > SWEPT_STREAMS_MAX:
            self._dropped.popitem(last=False)
        upto = known.before(head.earliest_commit, self._clock(), self._grace_s)
        reclaimer = retention.reclaimer(self._deletions, known.names)
        for _ in range(RECLAIM_STEPS_MAX):
            step = await reclaimer.step(upto)
            self.done["reclaimed"] += step.ledgers
            if step.is_done:
                return
