"""What all handles of a client share: stores, transport, settings, and what it knows of bookies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from spark_ledger.client.caches import watch_cache
from spark_ledger.client.counters import ClientCounters
from spark_ledger.client.followed import FollowedLedgers
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
from spark_ledger.metadata.base import MetadataStore, Operation
from spark_ledger.metadata.deletions import Deletions
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
from spark_ledger.protocol.placement import preferred, shortage
from spark_ledger.protocol.racks import Placed, faults, moves, place
from spark_ledger.transport.base import Transport
from spark_ledger.types import BookieId, LedgerId, Quorums


class OpenHandle(Protocol):
    """A handle that must be told when its connection ends."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def is_closed(self) -> bool: ...

    async def abandon(self) -> None:
        """Fail whoever waits. Nothing is sent or scheduled any more."""

    async def end(self, error: LedgerError) -> None:
        """The same, with an error that says why: its ledger is not there any more."""


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
    followed: FollowedLedgers = field(default_factory=FollowedLedgers)
    """What tails of the same ledger share."""
    suspects: Suspects = field(init=False)
    """Bookies that failed an add, and whether they are back."""
    deletions: Deletions = field(init=False)
    """Tells bookies that ledgers were deleted."""

    def __post_init__(self) -> None:
        self.deletions = Deletions(self.store)
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
        wanted = [info for info in known if info is not None]
        return distances(wanted, self.directory.all(), self.config.rack)

    @property
    def is_strict(self) -> bool:
        """Whether nothing is placed against the cluster's placement policy."""
        return self.directory.policy.strict

    async def new_ensemble(self, quorums: Quorums) -> tuple[BookieId, ...] | None:
        """Bookies for a new ledger: least loaded first, suspects only if they answer, spread over
        racks (rule P21)."""
        wanted = [None] * quorums.ensemble_size
        placed = await self._place(wanted, quorums, frozenset(), ask_now=True, allowed=0)
        return None if placed is None else tuple(placed[i] for i in range(quorums.ensemble_size))

    def why_no_ensemble(self, quorums: Quorums) -> str:
        """What ``new_ensemble`` lacked a moment ago, and what to do."""
        count, suspects = quorums.ensemble_size, self.suspects.now()
        placed = self._placed_of([None] * count, quorums, frozenset(suspects))
        if placed is None:
            return shortage(self.directory.all(), count, silent=suspects)
        return (
            "would break the cluster's placement policy, which is strict: "
            f"{', and '.join(sorted(set(placed.faults)))}. Start bookies in other racks (see "
            "ledger bookies list), change the policy (see ledger cluster placement)"
        )

    async def replacements(self, command: ChooseBookies) -> BookiesChosen:
        """Bookies for the failed members of an ensemble, as far as there are any (rule P10).

        Others are preferred. A failed bookie that answers again may return to its own index. A
        silent one is alive as long as its append stream is: a keepalive that fails ends the stream,
        and then the bookie has failed (rule P11). A probe would say less: it waits in the process,
        which may stand still for the disk.
        """
        for bookie_id in command.liars:
            self.suspects.add_liar(bookie_id)
        taken = set(command.excluded)
        found: dict[int, BookieId] = {}
        quorums, policy = command.quorums, self.directory.policy
        racks: list[str | None] = [self.directory.rack(b) for b in command.ensemble]
        allowed = len(faults(racks, quorums, policy))  # what is so already is no reason to refuse
        for bookie_index in command.indexes:
            # Those that are looked for next are vacant too: one choice must not spoil the others.
            vacant = [i for i in command.indexes if i not in found]
            wanted = [None if i in vacant else rack for i, rack in enumerate(racks)]
            own = [None if i == bookie_index else rack for i, rack in enumerate(racks)]
            exclude = frozenset(taken)
            chosen = await self._place(
                wanted, quorums, exclude, ask_now=False, allowed=allowed, otherwise=own
            )
            if chosen is not None:
                found[bookie_index] = chosen[bookie_index]
                racks[bookie_index] = self.directory.rack(found[bookie_index])
                taken.add(found[bookie_index])
        writable = {info.bookie_id for info in self.directory.writable()}
        back = {b: i for i, b in command.failed.items() if i not in found and b in writable}
        async with aclosing(self.suspects.answering(back)) as answering:
            async for bookie_id in answering:
                found[back[bookie_id]] = bookie_id
        return BookiesChosen(found, frozenset(command.silent).difference(found))

    def moves(
        self, bookies: Sequence[BookieId], quorums: Quorums, exclude: Collection[BookieId]
    ) -> dict[int, BookieId]:
        """Who has to be replaced so that a final fragment adheres to the policy, and by whom; none
        if it does, if that cannot be, or while a member is not there (rule R15)."""
        members = [self.directory.get(each) for each in bookies]
        racks = [info.rack for info in members if info is not None]
        if len(racks) < len(members) or not faults(racks, quorums, self.directory.policy):
            return {}
        usable = preferred(
            self.directory.writable(),
            exclude=frozenset(bookies) | frozenset(exclude) | self.suspects.now(),
            load=self.load,
            shuffle=self.random.shuffle,
        )
        return moves(racks, usable, quorums, self.directory.policy)

    async def _place(
        self,
        wanted: Sequence[str | None],
        quorums: Quorums,
        exclude: frozenset[BookieId],
        *,
        ask_now: bool,
        allowed: int,
        otherwise: Sequence[str | None] | None = None,
    ) -> dict[int, BookieId] | None:
        """Bookies for the vacant indexes, of suspects only those that answer.

        Suspects are asked when the others are too few, and when they cannot be placed with
        ``allowed`` faults. Then a strict policy has nobody, and another one the best there is.
        """
        suspects = self.suspects.now() - exclude
        placed = self._placed_of(wanted, quorums, exclude | suspects, otherwise)
        if suspects and (placed is None or len(placed.faults) > allowed):
            async with aclosing(self.suspects.answering(suspects, ask_now=ask_now)) as answering:
                async for bookie_id in answering:
                    suspects.discard(bookie_id)
                    placed = self._placed_of(wanted, quorums, exclude | suspects, otherwise)
                    if placed is not None and len(placed.faults) <= allowed:
                        return placed.bookies
            # A suspect may have been cleared meanwhile by somebody else's probe, and others come.
            suspects &= self.suspects.now()
            placed = self._placed_of(wanted, quorums, exclude | suspects, otherwise)
        if placed is None:
            return None
        if len(placed.faults) > allowed:
            if self.is_strict:
                return None
            self.counters.misplaced += 1
        return placed.bookies

    def _placed_of(
        self,
        wanted: Sequence[str | None],
        quorums: Quorums,
        exclude: frozenset[BookieId],
        otherwise: Sequence[str | None] | None = None,
    ) -> Placed | None:
        """The choice among bookies outside of ``exclude``; ``otherwise``: what is wanted if there
        are not enough for all of it."""
        usable = preferred(
            self.directory.writable(),
            exclude=exclude,
            load=self.load,
            shuffle=self.random.shuffle,
        )
        placed = place(wanted, usable, quorums, self.directory.policy)
        if placed is None and otherwise is not None:
            placed = place(otherwise, usable, quorums, self.directory.policy)
        return placed

    async def write_metadata(
        self, command: WriteMetadata, *, closes: bool = True, also: Sequence[Operation] = ()
    ) -> MetadataWritten | MetadataConflict | MetadataFailed:
        """Compare-and-set. A change whose reply was lost is read again, not repeated (rule P6).
        ``closes`` and ``also``: see ``LedgerStore.compare_and_set``.

        MetadataUnavailableError means that nothing was changed. After a conflict or an unknown
        outcome the value is read again. If that fails until the deadline too, an unknown outcome
        stays one: the error is OutcomeUnknownError.
        """
        wait_s = METADATA_READ_AGAIN_FACTOR * self.config.metadata_timeout_s
        deadline = asyncio.get_running_loop().time() + wait_s
        ledger_id = command.metadata.ledger_id
        try:
            version = await self.ledgers.compare_and_set(
                command.metadata, command.version, closes=closes, also=also
            )
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
            except LedgerError as error:
                return MetadataFailed(error)
            else:
                return MetadataConflict(stored.value, stored.version)

    def use(self, bookies: Iterable[BookieId], by: int) -> None:
        """Count bookies as used (``by`` = 1) or no longer used (-1) by an ensemble."""
        for bookie_id in bookies:
            self.load[bookie_id] += by
