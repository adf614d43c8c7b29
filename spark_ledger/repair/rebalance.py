"""Moves copies of closed ledgers from full bookies to empty ones: for a bookie that is new.

It may be cut off anywhere, and begun again: what is to move is decided from the metadata of the
moment, and each move is one of repair (rules R16 and R17).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import ConflictError, LedgerError, NoSuchLedgerError
from spark_ledger.limits.metadata import METADATA_READS_IN_FLIGHT_MAX
from spark_ledger.limits.repair import (
    AUDIT_READS_PER_S,
    REBALANCE_TOLERANCE,
    REPAIR_BYTES_PER_S,
    REPAIR_SOURCE_BYTES_PER_S,
    REPAIRS_AT_ONCE,
)
from spark_ledger.metadata.ledgers import LEDGERS_PATH, LedgerStore, is_unreadable
from spark_ledger.metadata.unsettled import pages
from spark_ledger.repair.balance import Balance, Move, Share, copies_held
from spark_ledger.repair.ledger import LedgerRepair
from spark_ledger.repair.locking import repair_lock
from spark_ledger.repair.nodes import REBALANCE_PATH, leaving
from spark_ledger.repair.plan import renamed
from spark_ledger.repair.throttle import Throttles
from spark_ledger.types import BookieId, LedgerId, LedgerMetadata

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RebalanceConfig:
    """How far a rebalance goes, and how fast."""

    tolerance: float = REBALANCE_TOLERANCE
    """How far from the mean the share of a bookie may be, in parts of the mean."""
    moves_max: int | None = None
    bytes_per_s: float = REPAIR_BYTES_PER_S
    source_bytes_per_s: float = REPAIR_SOURCE_BYTES_PER_S
    at_once: int = REPAIRS_AT_ONCE
    reads_per_s: float = AUDIT_READS_PER_S
    dry_run: bool = False
    """Say what would move, and move nothing."""


@dataclass(slots=True)
class Rebalanced:
    """What a rebalance has done, or would do."""

    before: dict[BookieId, Share]
    after: dict[BookieId, Share] = field(default_factory=dict)
    mean: float = 0.0
    """The share that all would have if they were even."""
    excess_bytes: int = 0
    """What had to move at the begin, about."""
    moves: int = 0
    moved_bytes: int = 0
    is_even: bool = False
    failed: dict[LedgerId, str] = field(default_factory=dict)
    """Ledgers of which a copy stayed where it was at the last try, and why."""


class Rebalance:
    """One run. Belongs to the loop of the client; used once."""

    def __init__(
        self,
        client: LedgerClient,
        config: RebalanceConfig,
        *,
        told: Callable[[Rebalanced], None] = lambda _: None,
    ) -> None:
        """``told`` hears what was done so far: at the begin, and after each move."""
        self._client, self._context, self._store = client, client.context, client.store
        self._config, self._told = config, told
        self._ledgers = LedgerStore(client.store)
        self._throttles = Throttles(config.bytes_per_s, config.source_bytes_per_s)
        self._refused: set[BookieId] = set()
        """They took no copy in this pass, or were told to leave in it."""
        self._begun = 0
        """Moves that were begun and not given back."""

    async def run(self) -> Rebalanced:
        """Move copies until all shares are within the tolerance, or no move helps any more.

        Raises ConflictError while another rebalance runs, and what the metadata store raises: what
        was moved by then stays moved.
        """
        try:
            await self._store.create(REBALANCE_PATH, b"", ephemeral=True)
        except ConflictError:
            raise ConflictError("another rebalance of this cluster runs") from None
        try:
            return await self._run()
        finally:
            with contextlib.suppress(LedgerError):  # it goes with the session
                if await self._store.is_own(REBALANCE_PATH):
                    await self._store.delete(REBALANCE_PATH)

    async def _run(self) -> Rebalanced:
        balance = await self._look()
        result = Rebalanced(balance.shares, mean=balance.mean, excess_bytes=balance.excess_bytes)
        self._told(result)
        while not balance.is_even and self._may_begin:
            before = result.moves
            await self._pass(balance, result)
            if result.moves == before or self._config.dry_run:
                break
        result.after, result.is_even = balance.shares, balance.is_even
        return result

    async def _look(self) -> Balance:
        """How full all bookies are that are there to stay."""
        directory = self._context.directory
        await directory.refresh(all_again=True)
        gone = await leaving(self._store)
        held: Counter[BookieId] = Counter()
        async for ledger in self._all_ledgers():
            held.update(copies_held(ledger))
        bookies = [each for each in directory.all() if each.bookie_id not in gone]
        return Balance(bookies, held, self._config.tolerance)

    async def _all_ledgers(self) -> AsyncGenerator[LedgerMetadata, None]:
        """Page by page, at a bounded rate: never all at once."""
        async for page in pages(self._store, LEDGERS_PATH):
            for start in range(0, len(page.ids), METADATA_READS_IN_FLIGHT_MAX):
                part = page.ids[start : start + METADATA_READS_IN_FLIGHT_MAX]
                for found in await asyncio.gather(*(self._read(each) for each in part)):
                    if found is not None:
                        yield found
                await asyncio.sleep(len(part) / self._config.reads_per_s)

    async def _read(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        try:
            return (await self._ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            return None
        except LedgerError as error:
            if not is_unreadable(error):
                raise
            logger.warning("ledger %d stays where it is: %s", ledger_id, error)
            return None

    # -- one pass ----------------------------------------------------------------------------------

    @property
    def _may_begin(self) -> bool:
        return self._config.moves_max is None or self._begun < self._config.moves_max

    async def _pass(self, balance: Balance, result: Rebalanced) -> None:
        """Look at each ledger once, and move those of its copies that make bookies more even."""
        self._refused = set(self._context.suspects.now())
        result.failed.clear()
        running: set[asyncio.Task[None]] = set()
        try:
            async with aclosing(self._all_ledgers()) as ledgers:
                async for ledger in ledgers:
                    if balance.is_even or not self._may_begin:
                        break
                    if self._next_move(balance, ledger) is None:
                        continue
                    if self._config.dry_run:
                        self._plan(balance, ledger, result)
                        continue
                    while len(running) >= self._config.at_once:
                        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    moving = self._move_copies(balance, ledger.ledger_id, result)
                    task = asyncio.get_running_loop().create_task(moving)
                    running.add(task)
                    task.add_done_callback(running.discard)
            if running:
                await asyncio.wait(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _next_move(self, balance: Balance, ledger: LedgerMetadata) -> Move | None:
        return balance.next_move(ledger, self._context.directory.policy, self._refused)

    def _plan(self, balance: Balance, ledger: LedgerMetadata, result: Rebalanced) -> None:
        """What would move of a ledger."""
        while self._may_begin and (move := self._next_move(balance, ledger)) is not None:
            balance.take(move)
            self._begun += 1
            self._count(move, result)
            planned = renamed(ledger, move.fragment, {move.bookie_index: move.target})
            assert planned is not None, "the move was found in these metadata"
            ledger = planned

    async def _move_copies(self, balance: Balance, ledger_id: LedgerId, result: Rebalanced) -> None:
        """Move copies of one ledger under its lock: who repairs it does so alone (rule R16)."""
        try:
            async with repair_lock(self._store, ledger_id) as lock:
                while lock is not None and await self._move_one(
                    balance, ledger_id, lock.key, result
                ):
                    pass
        except NoSuchLedgerError:
            return  # deleted meanwhile
        except LedgerError as error:
            logger.warning("ledger %d: a copy stays where it is: %s", ledger_id, error)
            result.failed[ledger_id] = str(error)

    async def _move_one(
        self, balance: Balance, ledger_id: LedgerId, key: bytes, result: Rebalanced
    ) -> bool:
        """Move one copy, chosen from the metadata as they are now; whether there may be another."""
        self._refused |= await leaving(self._store)  # it may have begun since the last pass did
        ledger = await self._ledgers.read_latest(ledger_id)
        move = self._next_move(balance, ledger.value)
        if move is None or not self._may_begin:
            return False
        balance.take(move)  # others that are chosen meanwhile count with it
        self._begun += 1
        moved = False
        repair = LedgerRepair(self._context, ledger, key, self._throttles, Counter())
        try:
            moved = await repair.move(move.fragment, {move.bookie_index: move.target})
        finally:
            if not moved:
                balance.put_back(move)
                self._begun -= 1
        if moved:
            self._count(move, result)
        else:
            self._refused.add(move.target)
            result.failed[ledger_id] = f"{move.target} took no copy"
        return moved

    def _count(self, move: Move, result: Rebalanced) -> None:
        result.moves += 1
        result.moved_bytes += move.size_bytes
        self._told(result)
