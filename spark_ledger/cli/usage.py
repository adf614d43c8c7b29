"""What a cluster holds, for whom and where, and for how long its disks last; see ``ledger cluster
usage``.

Metadata are read page by page, up to ten thousand ledgers at a time, and only sums are kept. What
an open ledger holds is not in the metadata before it is closed: open ledgers are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from spark_ledger.errors import (
    ConfigurationError,
    CorruptionError,
    LedgerError,
    NoSuchStreamError,
    NotFoundError,
)
from spark_ledger.limits.metadata import METADATA_READS_IN_FLIGHT_MAX
from spark_ledger.metadata.base import MetadataStore, SizedStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.codec import decode_ledger
from spark_ledger.metadata.collection import read_collection
from spark_ledger.metadata.ledgers import LEDGERS_PATH, ledger_path
from spark_ledger.metadata.unsettled import UNNAMED_PATH, pages
from spark_ledger.stream.ledgers import stream_of
from spark_ledger.stream.nodes import STREAMS_ROOT, StreamNodes
from spark_ledger.stream.retention.handle import Extent
from spark_ledger.transport.base import Transport
from spark_ledger.types import TAG_STREAM_ID, BookieId, BookieState, LedgerId, LedgerMetadata

RATE_WINDOW_S: Final = 24 * 3600.0
"""The present rate is that of a day: work is seldom the same by day and by night."""

RATE_WINDOW_S_MIN: Final = 600.0
"""A cluster that is younger has no rate: its first load would be taken for its life."""

DESCRIBE_TIMEOUT_S: Final = 3.0
"""A bookie that does not say within this how much is free is shown without it."""


@dataclass(slots=True)
class Held:
    """Sums over ledgers."""

    ledgers: int = 0
    open: int = 0
    """Of these; their bytes are not known yet."""
    user_bytes: int = 0
    replicated_bytes: int = 0
    """User bytes times the copies; framing and index of a bookie come on top."""


@dataclass(slots=True)
class StreamUsage:
    """One stream, or one that is gone and of which ledgers are left."""

    name: str
    exists: bool = True
    commits: int = 0
    """Those that were not dropped."""
    is_at_its_limit: bool = False
    """Retention has begun to drop rows: as much goes as comes, so it takes no more of the disks."""
    dropped_bytes: int | None = 0
    """User data that is dropped and not given back yet; None: it could not be read."""
    held: Held = field(default_factory=Held)


@dataclass(slots=True)
class BookieUsage:
    """One bookie. What is None could not be learnt."""

    state: str
    live_bytes: int = 0
    """What closed ledgers of the metadata have on it, by their fragments."""
    reclaimable_bytes: int | None = None
    """What ledgers that are deleted still take on its disks, as of its last pass of collection."""
    ledgers: int | None = None
    free_bytes: int | None = None


@dataclass(slots=True)
class Usage:
    """A cluster."""

    streams: dict[str, StreamUsage] = field(default_factory=dict)
    """By id."""
    raw: Held = field(default_factory=Held)
    """Ledgers that applications made for themselves."""
    bookies: dict[BookieId, BookieUsage] = field(default_factory=dict)
    unnamed: int = 0
    unknown: int = 0
    """Ledgers and streams whose nodes are damaged or of a later format: they are in no sum."""
    unknown_why: str = ""
    """Of the first one."""
    metadata_nodes: int | None = None
    metadata_bytes: int | None = None
    rate_bytes_s: float | None = None
    """Replicated bytes that closed ledgers of the window have brought, by second; None: not known
    yet. What was deleted since does not count, nor do streams that are at their limit."""
    rate_window_s: float = 0.0
    """The time that the rate was measured over."""

    def count_unknown(self, error: LedgerError) -> None:
        """One more that cannot be read."""
        self.unknown += 1
        self.unknown_why = self.unknown_why or str(error)

    @property
    def dropped_bytes(self) -> int:
        """User data that streams have dropped and that is not given back, as far as it is known."""
        return sum(stream.dropped_bytes or 0 for stream in self.streams.values())

    @property
    def free_bytes(self) -> int:
        """On the disks of bookies that take entries."""
        return sum(
            bookie.free_bytes or 0
            for bookie in self.bookies.values()
            if bookie.state == BookieState.WRITABLE.value
        )

    @property
    def days_left(self) -> float | None:
        """Until the disks are full, at the present rate; None if it is unknown or nothing grows."""
        if not self.rate_bytes_s:
            return None
        return self.free_bytes / self.rate_bytes_s / 86_400

    @property
    def total(self) -> Held:
        """All ledgers."""
        parts = [self.raw, *(stream.held for stream in self.streams.values())]
        return Held(
            ledgers=sum(part.ledgers for part in parts),
            open=sum(part.open for part in parts),
            user_bytes=sum(part.user_bytes for part in parts),
            replicated_bytes=sum(part.replicated_bytes for part in parts),
        )


async def measure(
    store: SizedStore,
    transport: Transport,
    advance: Callable[[int], None],
    extent_of: Callable[[str], Awaitable[Extent]],
    *,
    now_s: Callable[[], float] = time.time,
) -> Usage:
    """Add everything up. ``advance`` is called with numbers of ledgers that were read, and
    ``extent_of`` with the names of streams that have dropped rows.

    Raises what the metadata store raises; a bookie that does not answer is shown without figures.
    """
    usage = Usage()
    await _add_streams(store, extent_of, usage)
    await _add_bookies(store, transport, usage)
    await _add_ledgers(store, usage, advance, int(now_s() * 1000))
    async for page in pages(store, UNNAMED_PATH):
        usage.unnamed += len(page.ids)
    size = await store.size()
    usage.metadata_nodes, usage.metadata_bytes = size.nodes, size.bytes
    return usage


async def _add_streams(
    store: MetadataStore, extent_of: Callable[[str], Awaitable[Extent]], usage: Usage
) -> None:
    for name in await store.children(STREAMS_ROOT):
        try:
            nodes = StreamNodes(store, name)
            head, config = (await nodes.head()).value, (await nodes.config()).value
        except NoSuchStreamError:
            continue  # deleted since it was listed
        except (CorruptionError, ConfigurationError) as error:
            usage.count_unknown(error)
            continue
        live = head.next_commit - head.earliest_commit
        is_at_its_limit = head.earliest_commit > 0 and not config.retention.is_for_ever
        dropped = await _dropped_bytes(extent_of, name) if head.earliest_commit else 0
        usage.streams[head.stream_id] = StreamUsage(name, True, live, is_at_its_limit, dropped)


async def _dropped_bytes(extent_of: Callable[[str], Awaitable[Extent]], name: str) -> int | None:
    try:
        return (await extent_of(name)).reclaimable_bytes
    except LedgerError:  # the bookies of its manifests are down, say: the rest is worth showing
        return None


async def _add_bookies(store: MetadataStore, transport: Transport, usage: Usage) -> None:
    registry = BookieRegistry(store)
    for bookie_id in await registry.list_cookies():
        usage.bookies[bookie_id] = BookieUsage("down")
    for info in await registry.list():
        usage.bookies[info.bookie_id] = BookieUsage(info.state.value, free_bytes=info.free_bytes)
    gate = asyncio.Semaphore(METADATA_READS_IN_FLIGHT_MAX)

    async def ask(bookie_id: BookieId, bookie: BookieUsage) -> None:
        async with gate:
            try:
                words = await transport.describe(bookie_id, timeout_s=DESCRIBE_TIMEOUT_S)
                bookie.ledgers, bookie.free_bytes = words.ledgers, words.free_bytes
                said = await read_collection(store, bookie_id)
            except LedgerError:  # metadata that are away are noticed below, too
                return
        if said is not None and said.value.report is not None:
            bookie.reclaimable_bytes = said.value.report.reclaimable_bytes

    async with asyncio.TaskGroup() as group:
        for bookie_id, bookie in usage.bookies.items():
            if bookie.state != "down":
                group.create_task(ask(bookie_id, bookie))


async def _add_ledgers(
    store: MetadataStore, usage: Usage, advance: Callable[[int], None], now_ms: int
) -> None:
    since_ms, oldest_ms, recent_bytes = now_ms - int(RATE_WINDOW_S * 1000), now_ms, 0
    async for page in pages(store, LEDGERS_PATH):
        for start in range(0, len(page.ids), METADATA_READS_IN_FLIGHT_MAX):
            part = page.ids[start : start + METADATA_READS_IN_FLIGHT_MAX]
            for ledger in await asyncio.gather(*(_read(store, each, usage) for each in part)):
                if ledger is None:
                    continue
                growth = _add(ledger, usage)
                if ledger.creation_time_ms:
                    oldest_ms = min(oldest_ms, ledger.creation_time_ms)
                    recent_bytes += growth * (ledger.creation_time_ms >= since_ms)
            advance(len(part))
    usage.rate_window_s = min(RATE_WINDOW_S, (now_ms - oldest_ms) / 1000)
    if usage.rate_window_s >= RATE_WINDOW_S_MIN:
        usage.rate_bytes_s = recent_bytes / usage.rate_window_s


async def _read(store: MetadataStore, ledger_id: LedgerId, usage: Usage) -> LedgerMetadata | None:
    path = ledger_path(ledger_id)
    try:
        return decode_ledger(path, ledger_id, (await store.get(path)).value)
    except NotFoundError:
        return None  # deleted since it was listed
    except (CorruptionError, ConfigurationError) as error:
        usage.count_unknown(error)
        return None


def _add(ledger: LedgerMetadata, usage: Usage) -> int:
    """Add a ledger to the sums; the replicated bytes by which the disks are fuller for good."""
    held, stays = usage.raw, True
    if name := stream_of(ledger):
        gone = StreamUsage(name, exists=False)
        stream = usage.streams.setdefault(ledger.custom_metadata[TAG_STREAM_ID], gone)
        held, stays = stream.held, not stream.is_at_its_limit
    copies = ledger.length * ledger.quorums.write_quorum if ledger.is_closed else 0
    held.ledgers += 1
    held.open += not ledger.is_closed
    held.user_bytes += ledger.length if ledger.is_closed else 0
    held.replicated_bytes += copies
    if copies:
        _spread(ledger, copies, usage)
    return copies if stays else 0


def _spread(ledger: LedgerMetadata, copies: int, usage: Usage) -> None:
    """Share a closed ledger's bytes out: by the entries of each fragment, evenly in its ensemble.
    What is lost by rounding goes to the last one."""
    entries, left = ledger.last_entry_id + 1, copies
    ends = [each.first_entry for each in ledger.fragments[1:]] + [entries]
    for fragment, end in zip(ledger.fragments, ends, strict=True):
        share = copies * max(0, end - fragment.first_entry) // entries
        for bookie_id in fragment.bookies:
            bookie = usage.bookies.setdefault(bookie_id, BookieUsage("gone"))
            bookie.live_bytes += share // len(fragment.bookies)
            left -= share // len(fragment.bookies)
    usage.bookies[ledger.last_fragment.bookies[-1]].live_bytes += left
