"""Goes on packing the small commits of streams that somebody has optimized (rule K10)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchStreamError,
    OutcomeUnknownError,
)
from spark_ledger.keeper.nodes import add_packed
from spark_ledger.limits.keeper import OPTIMIZED_ENTRIES_MIN
from spark_ledger.stream.nodes import STREAMS_ROOT, StreamNodes
from spark_ledger.stream.packs.optimizer import Packed
from spark_ledger.stream.stream import Stream
from spark_ledger.tasks import Throttle, cancel

logger = logging.getLogger(__name__)


class Packable(NamedTuple):
    """Commits that the keeper packs next in one stream."""

    stream: str
    packed: Packed


class StreamOptimizer:
    """What one keeper packs, beside its passes. Belongs to the loop of the client."""

    def __init__(
        self,
        client: LedgerClient,
        *,
        clock: Callable[[], float],
        interval_s: float,
        bytes_per_s: float,
    ) -> None:
        """``interval_s``: from the end of one look at all streams to the next; 0: never."""
        self._client = client
        self._clock = clock
        self._interval_s = interval_s
        self._throttle = Throttle(bytes_per_s)
        self._next_at = clock()
        self._task: asyncio.Task[None] | None = None
        self.packed = 0
        """Packs that this keeper has made."""

    def go_on(self) -> None:
        """Begin to look at all streams, if that is due and not under way."""
        if self._task is not None and self._task.done():
            self._task.result()
            self._task = None
        if self._interval_s and self._task is None and self._clock() >= self._next_at:
            self._task = asyncio.get_running_loop().create_task(self._look_at_all())

    async def stop(self) -> None:
        """Leave what is under way: a ledger that was not named is deleted as others are."""
        task, self._task = self._task, None
        if task is not None:
            await cancel(task)  # who is cut off while it waits here is cut off as well
            if not task.cancelled():
                task.result()

    async def look(self) -> AsyncGenerator[Packable, None]:
        """What would be packed now. Writes nothing. Raises what the metadata store answers."""
        if not self._interval_s:
            return
        for name in await self._client.store.children(STREAMS_ROOT):
            packed = await self._look_at(name, dry_run=True)
            if packed is not None:
                yield Packable(name, packed)

    async def _look_at_all(self) -> None:
        try:
            for name in await self._client.store.children(STREAMS_ROOT):
                packed = await self._look_at(name, dry_run=False)
                if packed is not None and packed.pack is not None:
                    self.packed += 1
                    logger.info(
                        "commits %d to %d of stream %r are packed: %d entries are %d now",
                        packed.first,
                        packed.first + packed.commits - 1,
                        name,
                        packed.former_entries,
                        packed.pack.entries,
                    )
                    # Of two keepers that count at once one is missing in the sum.
                    with contextlib.suppress(ConflictError, OutcomeUnknownError):
                        await add_packed(self._client.store, packed.pack)
        except LedgerError as error:
            logger.info("no more streams are packed for now: %s", error)
        finally:
            self._next_at = self._clock() + self._interval_s

    async def _look_at(self, name: str, *, dry_run: bool) -> Packed | None:
        """Make one pack of a stream, if it has one and another is worth it: the others have their
        turn. None: it is not, or cannot be made now."""
        try:
            return await self._pack(name, dry_run=dry_run)
        except NoSuchStreamError:
            return None  # deleted meanwhile
        except MetadataUnavailableError:
            raise  # the others would wait as long for nothing
        except LedgerError as error:
            logger.warning("stream %r is not packed now: %s", name, error)
            return None

    async def _pack(self, name: str, *, dry_run: bool) -> Packed | None:
        nodes = StreamNodes(self._client.store, name)
        config = await nodes.config()
        if config.value.deleted or not config.value.has_packs:
            return None
        stream = Stream(self._client, nodes, config)
        packs = stream.optimizer.run(
            entries_min=OPTIMIZED_ENTRIES_MIN, dry_run=dry_run, pace=self._throttle.take
        )
        try:
            async with aclosing(packs):
                return await anext(packs, None)
        finally:
            await stream.close()
