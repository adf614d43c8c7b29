"""What all handles of a client share: stores, transport, settings, and what it knows of bookies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from spark_ledger.config import ClientConfig
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits import (
    BOOKIE_PROBE_TIMEOUT_S,
    BOOKIE_SUSPECT_S,
    METADATA_READ_AGAIN_FACTOR,
    METADATA_RETRY_DELAY_S,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.protocol.events import (
    BookiesChosen,
    ChooseBookies,
    MetadataConflict,
    MetadataFailed,
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
    directory: BookieDirectory
    transport: Transport
    config: ClientConfig
    load: Counter[BookieId] = field(default_factory=Counter)
    slow_bookies: dict[BookieId, float] = field(default_factory=dict)
    """Bookies that a speculative read overtook, each with the time until which it is asked last."""
    random: random.Random = field(default_factory=random.Random)
    writers: WeakSet[OpenHandle] = field(default_factory=WeakSet)
    """The writers that are not closed."""
    _suspects: dict[BookieId, float] = field(default_factory=dict)
    """Bookies that failed an add, each with the time until which it is probed before use."""

    def suspect(self, bookie_id: BookieId) -> None:
        """A bookie failed an add: prefer others for a while."""
        self._suspects[bookie_id] = asyncio.get_running_loop().time() + BOOKIE_SUSPECT_S

    def slow(self, bookie_id: BookieId) -> None:
        """A bookie was overtaken by speculation: ask it last for a while."""
        self.slow_bookies[bookie_id] = asyncio.get_running_loop().time() + BOOKIE_SUSPECT_S

    def slow_now(self) -> frozenset[BookieId]:
        """Bookies that reads should ask last."""
        now = asyncio.get_running_loop().time()
        self.slow_bookies = {b: until for b, until in self.slow_bookies.items() if until > now}
        return frozenset(self.slow_bookies)

    async def new_ensemble(self, count: int) -> tuple[BookieId, ...] | None:
        """Bookies for a new ledger: least loaded first, suspects only if they answer."""
        return await self._choose(count, exclude=frozenset())

    def why_no_ensemble(self, count: int) -> str:
        """What ``new_ensemble`` lacked a moment ago, and what to do."""
        return shortage(self.directory.all(), count, silent=self._suspects_now())

    def _suspects_now(self) -> set[BookieId]:
        now = asyncio.get_running_loop().time()
        return {bookie for bookie, until in self._suspects.items() if until > now}

    async def replacements(self, command: ChooseBookies) -> BookiesChosen:
        """Bookies for the failed members of an ensemble, as far as there are any (rule P10).

        Others are preferred. A failed bookie that answers again may return to its own index, and a
        silent one that answers is reported as alive (rule P11). All are asked side by side.
        """
        taken = set(command.members)
        found: dict[int, BookieId] = {}
        for bookie_index in command.indexes:
            chosen = await self._choose(1, exclude=frozenset(taken))
            if chosen is not None:
                found[bookie_index] = chosen[0]
                taken.add(chosen[0])
        writable = {info.bookie_id for info in self.directory.writable()}
        back = [i for i, b in command.failed.items() if i not in found and b in writable]
        silent = [i for i in command.silent if i not in found]
        asked = [*(command.failed[i] for i in back), *(command.silent[i] for i in silent)]
        answers = await asyncio.gather(*map(self._answers, asked))
        alive = {index for index, answers in zip([*back, *silent], answers, strict=True) if answers}
        found.update((index, command.failed[index]) for index in back if index in alive)
        return BookiesChosen(found, frozenset(index for index in silent if index in alive))

    async def _choose(
        self, count: int, *, exclude: frozenset[BookieId]
    ) -> tuple[BookieId, ...] | None:
        suspects = self._suspects_now()
        candidates = self.directory.writable()
        chosen = choose_bookies(
            candidates,
            count,
            exclude=exclude | suspects,
            load=self.load,
            shuffle=self.random.shuffle,
        )
        if chosen is not None:
            return chosen
        for bookie_id in sorted(suspects - exclude):
            if await self._answers(bookie_id):
                suspects.discard(bookie_id)
        return choose_bookies(
            candidates,
            count,
            exclude=exclude | suspects,
            load=self.load,
            shuffle=self.random.shuffle,
        )

    async def _answers(self, bookie_id: BookieId) -> bool:
        try:
            await self.transport.describe(bookie_id, timeout_s=BOOKIE_PROBE_TIMEOUT_S)
        except LedgerError:
            return False
        self._suspects.pop(bookie_id, None)
        return True

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
