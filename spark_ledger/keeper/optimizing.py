"""Goes on packing the small commits of streams that somebody has optimized (rule K10)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import aclosing

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerError, MetadataUnavailableError, NoSuchStreamError
from spark_ledger.limits.keeper import OPTIMIZED_ENTRIES_MIN
from spark_ledger.stream.nodes import STREAMS_ROOT, StreamNodes
from spark_ledger.stream.stream import Stream

logger = logging.getLogger(__name__)


class StreamOptimizer:
    """What one keeper packs, beside its passes. Belongs to the loop of the client."""

    def __init__(
        self, client: LedgerClient, *, clock: Callable[[], float], interval_s: float
    ) -> None:
        """``interval_s``: from the end of one look at all streams to the next; 0: never."""
        self._client = client
        self._clock = clock
        self._interval_s = interval_s
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
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look_at_all(self) -> None:
        try:
            for name in await self._client.store.children(STREAMS_ROOT):
                await self._look_at(name)
        except LedgerError as error:
            logger.info("no more streams are packed for now: %s", error)
        finally:
            self._next_at = self._clock() + self._interval_s

    async def _look_at(self, name: str) -> None:
        """Make one pack of a stream, if it has one and another is worth it."""
        nodes = StreamNodes(self._client.store, name)
        try:
            config = await nodes.config()
        except NoSuchStreamError:
            return  # deleted meanwhile
        if config.value.deleted or not config.value.has_packs:
            return
        stream = Stream(self._client, nodes, config)
        try:
            async with aclosing(stream.optimizer.run(entries_min=OPTIMIZED_ENTRIES_MIN)) as packs:
                async for packed in packs:
                    if packed.pack is not None:
                        self.packed += 1
                        logger.info(
                            "commits %d to %d of stream %r are packed: %d entries are %d now",
                            packed.first,
                            packed.first + packed.commits - 1,
                            name,
                            packed.former_entries,
                            packed.pack.entries,
                        )
                    break  # the others have their turn
        except MetadataUnavailableError:
            raise  # the others would wait as long for nothing
        except LedgerError as error:
            logger.warning("stream %r is not packed now: %s", name, error)
        finally:
            await stream.close()
