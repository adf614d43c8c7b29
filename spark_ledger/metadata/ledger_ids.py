"""Ledger ids: taken from one counter in blocks, by compare-and-set, without a storm.

A client that loses the counter to another waits before it tries again, at random and for twice as
long after each loss: were all to try at once, n clients would need n * n requests for n blocks. A
client that uses up its blocks quickly takes larger ones.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.metadata import (
    LEDGER_ID_BLOCK,
    LEDGER_ID_BLOCK_MAX,
    LEDGER_ID_BLOCK_S,
    LEDGER_ID_END,
    LEDGER_ID_PAUSE_S,
    LEDGER_ID_PAUSE_S_MAX,
    METADATA_ATTEMPTS,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.codec import CounterNode
from spark_ledger.metadata.json_nodes import decode_node, encode_node
from spark_ledger.types import LedgerId, Versioned

COUNTER_PATH: Final = "ledger-id-counter"

FIRST_LEDGER_ID: Final = 1


class LedgerIds:
    """The ids of one client, on its loop. They ascend, with gaps."""

    def __init__(self, store: MetadataStore, draw: random.Random) -> None:
        self._store = store
        self._draw = draw
        self._next = 0
        self._block_end = 0
        self._block = LEDGER_ID_BLOCK // 2
        """How many ids were taken last; the first block doubles it."""
        self._taken_at = asyncio.get_running_loop().time()
        self._lock = asyncio.Lock()

    async def take(self) -> LedgerId:
        """An id that no other ledger has or had.

        Raises MetadataUnavailableError, OutcomeUnknownError if no attempt brought a reply,
        ConfigurationError if there are no ids left.
        """
        async with self._lock:
            if self._next == self._block_end:
                await self._take_block()
            self._next += 1
            return LedgerId(self._next - 1)

    async def _take_block(self) -> None:
        now = asyncio.get_running_loop().time()
        is_busy = now - self._taken_at < LEDGER_ID_BLOCK_S
        count = min(2 * self._block, LEDGER_ID_BLOCK_MAX) if is_busy else LEDGER_ID_BLOCK
        self._next = await self._claim(count)
        self._block_end = self._next + count
        self._block, self._taken_at = count, now

    async def _claim(self, count: int) -> int:
        """The first of ``count`` ids that are ours. A block lost to a lost reply costs only ids."""
        unknown, pause_s = 0, LEDGER_ID_PAUSE_S
        while True:
            first, version = await _counted(self._store.get)
            _check(first + count)
            try:
                await _count(self._store, first + count, version)
                return first
            except ConflictError:
                # Another client took this block, so the system makes progress: leave it room.
                await asyncio.sleep(self._draw.uniform(0.0, pause_s))
                pause_s = min(2 * pause_s, LEDGER_ID_PAUSE_S_MAX)
            except OutcomeUnknownError:
                unknown += 1
                if unknown == METADATA_ATTEMPTS:
                    raise


async def next_counted(store: MetadataStore) -> int:
    """The next id that would be given now. Raises MetadataUnavailableError, CorruptionError."""
    return (await _counted(store.get_latest))[0]


async def raise_counter(store: MetadataStore, at_least: int) -> tuple[int, int]:
    """Have no id below ``at_least`` given any more: the next id before, and now.

    Raises MetadataUnavailableError, OutcomeUnknownError if no attempt brought a reply,
    ConfigurationError if no ids would be left; the counter is as it was then.
    """
    _check(at_least)
    unknown = 0
    while True:
        before, version = await _counted(store.get_latest)
        if before >= at_least:
            return before, before
        try:
            await _count(store, at_least, version)
        except ConflictError:
            continue  # a client took ids
        except OutcomeUnknownError:
            unknown += 1
            if unknown == METADATA_ATTEMPTS:
                raise
            continue
        return before, at_least


def _check(next_id: int) -> None:
    if next_id > LEDGER_ID_END:
        raise ConfigurationError(
            f"no ledger ids are left: the next one would be {next_id}, and they end at "
            f"{LEDGER_ID_END}; the counter is the metadata node {COUNTER_PATH!r}"
        )


async def _counted(
    get: Callable[[str], Awaitable[Versioned[bytes]]],
) -> tuple[int, int | None]:
    """The next id, and the version of the counter; None: there is none yet."""
    try:
        node = await get(COUNTER_PATH)
    except NotFoundError:
        return FIRST_LEDGER_ID, None
    return decode_node(CounterNode, COUNTER_PATH, node.value).next_id, node.version


async def _count(store: MetadataStore, next_id: int, version: int | None) -> None:
    """Replace the counter that was read. Raises ConflictError if it has changed."""
    # The token: two clients that write equal bytes over one version may both succeed.
    data = encode_node(CounterNode(next_id=next_id, token=uuid.uuid4().hex))
    if version is None:
        await store.create(COUNTER_PATH, data)
    else:
        await store.put(COUNTER_PATH, data, version)
