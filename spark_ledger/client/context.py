"""What all handles of a client share: stores, transport, settings, and what it knows of bookies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from spark_ledger.client.caches import watch_cache
from spark_ledger.client.counters import ClientCounters
from spark_ledger.client.nearness import distances
from spark_ledger.client.suspects import Suspects
from spark_ledger.client.timer import Timer
from spark_ledger.config import ClientConfig
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.client import BOOKIE_SUSPECT_S
from spark_ledger.limits.metadata import (
    LEDGERS_SEEN_BYTES_MAX,
    METADATA_READ_AGAIN_FACTOR,
    METADATA_RETRY_DELAY_S,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.naming import Naming
from spark_ledger.metadata.owners import Owner
from spark_ledger.protocol.events import (
    BookiesChosen,
    ChooseBookies,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataUnread,
    MetadataWritten,
    WriteMetadata,
)
from spark_ledger.protocol.placement import choose_bookies, shortage
from spark_ledger.transport.base import Transport
from spark_ledger.types import BookieId, LedgerId


class OpenHandle(Protocol):
    """A handle that must be told when its connection ends."""

    async def abandon(self) -> None:
        """Fail whoever waits. Nothing is sent or scheduled any more."""


@dataclass(slots=True)
class ClientContext:
    """One connection's parts. ``load`` counts the ensembles of this client that use a bookie."""

    store: MetadataStore
    ledgers: LedgerStore
    naming: Naming
    owner: Owner
    directory: BookieDirectory
    transport: Transport
    config: ClientConfig
    load: Counter[BookieId] = field(default_factory=Counter)
    slow_bookies: dict[BookieId, float] = field(default_factory=dict)
    """Bookies that a speculative read overtook, each with the time until which it is asked last."""
    timer: Timer = field(default_factory=Timer)
    """Wakes whatever of this client waits for a time."""
    random: random.Random = field(default_factory=random.Random)
    counters: ClientCounters = field(default_factory=ClientCounters)
    writers: WeakSet[OpenHandle] = field(default_factory=WeakSet)
    """The writers that are not closed."""
    suspects: Suspects = field(init=False)
    """Bookies that failed an add, and whether they are back."""

    def __post_init__(self) -> None:
        self.suspects = Suspects(self.transport)
        watch_cache("ledgers", self.ledgers, LedgerStore.seen_bytes, LEDGERS_SEEN_BYTES_MAX)

    def suspect(self, bookie_id: BookieId) -> None:
        """A bookie failed an add: prefer others for a while."""
        self.suspects.add(bookie_id)

    def slow(self, bookie_id: BookieId) -> None:
        """A bookie was overtaken by speculation: ask it last for a while."""
        self.slow_bookies[bookie_id] = asyncio.get_running_loop().time() + BOOKIE_SUSPECT_S

    def slow_now(self) -> frozenset[BookieId]:
        """Bookies that reads should ask last."""
        now = asyncio.get_running_loop().time()
        self.slow_bookies = {b: until for b, until in self.slow_bookies.items() if until > now}
        return frozenset(self.slow_bookies)

    def distances(self, bookies: Iterable[BookieId]) -> dict[BookieId, int]:
        """How far bookies are from this process, as far as that is known."""
        known = [self.directory.get(bookie_id) for bookie_id in bookies]
        return distances([info for info in known if info is not None], self.directory.all())

    async def new_ensemble(self, count: int) -> tuple[BookieId, ...] | None:
        """Bookies for a new ledger: least loaded first, suspects only if they answer."""
        return await self._choose(count, exclude=frozenset(), ask_now=True)

    def why_no_ensemble(self, count: int) -> str:
        """What ``new_ensemble`` lacked a moment ago, and what to do."""
        return shortage(self.directory.all(), count, silent=self.suspects.now())

    async def replacements(self, command: ChooseBookies) -> BookiesChosen:
        """Bookies for the failed members of an ensemble, as far as there are any (rule P10).

        Others are preferred. A failed bookie that answers again may return to its own index. A
        silent one is alive as long as its append stream is: a keepalive that fails ends the stream,
        and then the bookie has failed (rule P11). A probe would say less: it waits in the process,
        which may stand still for the disk.
        """
        for bookie_id in command.liars:
            self.suspects.add_liar(bookie_id)
        taken = set(command.members)
        found: dict[int, BookieId] = {}
        for bookie_index in command.indexes:
            chosen = await self._choose(1, exclude=frozenset(taken), ask_now=False)
            if chosen is not None:
                found[bookie_index] = chosen[0]
                taken.add(chosen[0])
        writable = {info.bookie_id for info in self.directory.writable()}
        back = {b: i for i, b in command.failed.items() if i not in found and b in writable}
        async with aclosing(self.suspects.answering(back)) as answering:
            async for bookie_id in answering:
                found[back[bookie_id]] = bookie_id
        return BookiesChosen(found, frozenset(command.silent).difference(found))

    async def _choose(
        self, count: int, *, exclude: frozenset[BookieId], ask_now: bool
    ) -> tuple[BookieId, ...] | None:
        suspects = self.suspects.now() - exclude
        chosen = self._choose_of_others(count, exclude | suspects)
        if chosen is not None or not suspects:
            return chosen
        async with aclosing(self.suspects.answering(suspects, ask_now=ask_now)) as answering:
            async for bookie_id in answering:
                suspects.discard(bookie_id)
                chosen = self._choose_of_others(count, exclude | suspects)
                if chosen is not None:
                    return chosen
        # A suspect may have been cleared meanwhile by somebody else's probe, and others come.
        return self._choose_of_others(count, exclude | (suspects & self.suspects.now()))

    def _choose_of_others(
        self, count: int, exclude: frozenset[BookieId]
    ) -> tuple[BookieId, ...] | None:
        return choose_bookies(
            self.directory.writable(),
            count,
            exclude=exclude,
            load=self.load,
            shuffle=self.random.shuffle,
        )

    async def write_metadata(
        self, command: WriteMetadata
    ) -> MetadataWritten | MetadataConflict | MetadataFailed:
        """Compare-and-set. A change whose reply was lost is read again, not repeated (rule P6).

        MetadataUnavailableError means that nothing was changed. After a conflict or an unknown
        outcome the value is read again. If that fails until the deadline too, an unknown outcome
        stays one: the error is OutcomeUnknownError.
        """
        wait_s = METADATA_READ_AGAIN_FACTOR * self.config.metadata_timeout_s
        deadline = asyncio.get_running_loop().time() + wait_s
        ledger_id = command.metadata.ledger_id
        try:
            version = await self.ledgers.compare_and_set(command.metadata, command.version)
        except ConflictError:
            return await self._read_again(ledger_id, deadline)
        except OutcomeUnknownError as error:
            found = await self._read_again(ledger_id, deadline)
            if isinstance(found, MetadataConflict):
                return found
            error.__cause__ = found.error  # why nobody could look
            return MetadataFailed(error)
        except LedgerError as error:
            return MetadataFailed(error)
        return MetadataWritten(command.metadata, version)

    async def read_metadata(self, ledger_id: LedgerId) -> MetadataRead | MetadataUnread:
        """What is stored of a ledger now. A store that is away is asked again until the deadline of
        ``write_metadata``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + METADATA_READ_AGAIN_FACTOR * self.config.metadata_timeout_s
        while True:
            try:
                stored = await self.ledgers.read_latest(ledger_id)
            except NotFoundError:
                return MetadataRead(None)
            except LedgerError as error:
                if not isinstance(error, MetadataUnavailableError) or loop.time() >= deadline:
                    return MetadataUnread(error)
                await asyncio.sleep(METADATA_RETRY_DELAY_S)
            else:
                return MetadataRead(stored.value)

    async def _read_again(
        self, ledger_id: LedgerId, deadline: float
    ) -> MetadataConflict | MetadataFailed:
        while True:
            try:
                stored = await self.ledgers.read(ledger_id)
            except MetadataUnavailableError as error:
                if asyncio.get_running_loop().time() >= deadline:
                    return MetadataFailed(error)
                await asyncio.sleep(METADATA_RETRY_DELAY_S)
            except (NotFoundError, LedgerError) as error:
                return MetadataFailed(error)
            else:
                return MetadataConflict(stored.value, stored.version)

    def use(self, bookies: Iterable[BookieId], by: int) -> None:
        """Count bookies as used (``by`` = 1) or no longer used (-1) by an ensemble."""
        for bookie_id in bookies:
            self.load[bookie_id] += by
