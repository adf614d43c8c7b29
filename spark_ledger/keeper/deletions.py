"""How the elected keeper deletes ledgers (rule K5), and for how long at a time (rules K6, K11)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataRestoredError,
    NoSuchLedgerError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.limits.keeper import PASS_PART_S
from spark_ledger.limits.stream import MERGED_LEDGERS_PER_SWEEP
from spark_ledger.metadata.base import Check, Delete, Operation
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.stream.retention.deletions import Deletions
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)


class LedgerDeletions:
    """Deletes ledgers that nothing live names, as the elected keeper (rules T17, K5)."""

    def __init__(self, client: LedgerClient, guard: Callable[[], Check], per_s: float) -> None:
        self._client = client
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
        self._client.context.deletions.note()
        logger.info("ledger %d is deleted: no commit that is left names it", ledger_id)
        await asyncio.sleep(1.0 / self._per_s)
        return True

    async def recover(self, ledger_id: LedgerId) -> None:
        try:
            await self._client.open_ledger(ledger_id, recover=True)
        except MetadataRestoredError:
            raise
        except LedgerError as error:
            logger.warning("ledger %d of a former version is not closed: %s", ledger_id, error)


class Turn:
    """The turn of one stream: it is asked before each part of the work, while there is more."""

    def __init__(self, has_time: Callable[[], bool]) -> None:
        self._has_time = has_time
        self.is_left = False
        """Whether some ledgers are left."""

    def may_go_on(self) -> bool:
        self.is_left = self.is_left or not self._has_time()
        return not self.is_left

    def did(self, count: int) -> None:
        """So many of merged leaves are deleted: one visit does no more."""
        self.is_left = self.is_left or count >= MERGED_LEDGERS_PER_SWEEP


class DeletionsInTurn(Deletions):
    """Deletes ledgers of many streams, for a part of each sweep: hours of it may be due at once,
    and meanwhile nobody recovers what dead writers leave."""

    def __init__(self, inner: Deletions, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._clock = clock
        self._spent_s = 0.0
        self._under_way = 0
        self._began_s = 0.0
        self.left: dict[str, None] = {}
        """Names of the streams of which some are left, those that wait for longest first."""
        self._had_turn: set[str] = set()
        """Those of this sweep."""

    def begin(self) -> None:
        """A sweep."""
        self._spent_s = 0.0
        self._had_turn.clear()

    def has_time(self) -> bool:
        """Whether this sweep may delete more."""
        return self._spent_s < PASS_PART_S

    def in_turn(self, names: Sequence[str]) -> list[str]:
        """All streams that there are: first those of which some are left."""
        there = set(names)
        self.left = {name: None for name in self.left if name in there}
        return [*self.left, *(name for name in names if name not in self.left)]

    @contextlib.contextmanager
    def turn_of(self, name: str) -> Iterator[Turn]:
        """A visit to a stream. One of which some are left, and that had a part, goes to the end."""
        before_s, turn = self._spent_s, Turn(self.has_time)
        self._had_turn.add(name)
        try:
            yield turn
        finally:
            if not turn.is_left or self._spent_s > before_s:
                self.left.pop(name, None)
            if turn.is_left:
                self.left.setdefault(name)

    def end_visit(self, name: str) -> None:
        """A visit to a stream has ended. If it did not come to its turn, none of the next ones may:
        it waits for the next sweep of all."""
        if name not in self._had_turn:
            self.left.pop(name, None)

    def guard(self) -> Operation:
        return self._inner.guard()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the time, once for all that is under way."""
        self._began_s = self._clock() if not self._under_way else self._began_s
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._spent_s += self._clock() - self._began_s

    async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        with self._counted():
            return await self._inner.read(ledger_id)

    async def delete(self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]) -> bool:
        with self._counted():
            return await self._inner.delete(ledger, checks)

    async def recover(self, ledger_id: LedgerId) -> None:
        with self._counted():
            await self._inner.recover(ledger_id)
