"""Looks at what is unsettled, page by page, and does what ``decisions`` says.

Recoveries and deletions decide by compare-and-set. What is about to be done is never in memory
only: the next keeper finds the same ledgers in the index.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataRestoredError,
    NoSuchLedgerError,
    NotFoundError,
    UnauthorizedError,
)
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.decisions import Verdict, judge_open, judge_unnamed
from spark_ledger.keeper.gone import GoneOwners
from spark_ledger.keeper.halfway import HalfwayRecoveries
from spark_ledger.keeper.nodes import Found
from spark_ledger.keeper.seen import Failed, Pass, StreamOf
from spark_ledger.keeper.turns import Turns
from spark_ledger.limits.keeper import (
    FAILED_AGAIN_S,
    FAILED_AGAIN_S_MAX,
    RECOVERIES_AT_ONCE,
)
from spark_ledger.metadata.base import Check, Delete, MetadataStore, Operation
from spark_ledger.metadata.ledgers import LedgerStore, is_unreadable, ledger_path
from spark_ledger.metadata.owners import OWNERS_PATH, is_alive
from spark_ledger.metadata.unsettled import OPEN_PATH, UNNAMED_PATH, id_path
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)


class Settler:
    """What one keeper does with ledgers that are open or unnamed. Belongs to the client's loop."""

    def __init__(
        self,
        client: LedgerClient,
        guard: Callable[[], Check],
        config: KeeperConfig,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._store: MetadataStore = client.store
        self._ledgers = LedgerStore(self._store)
        self._guard = guard
        self._config = config
        self._clock = clock
        self._turns = Turns(self._store, self._clock, dry_run=self._config.dry_run)
        self._gone = self._new_count({})
        self._halfway = HalfwayRecoveries(self._new_count({}))
        self._owner_of: dict[LedgerId, str] = {}
        """Owners of the listed ledgers: an owner that lives costs no read."""
        self._stream_of: dict[LedgerId, StreamOf] = {}
        """Streams of the unnamed ones that were read: before the grace they cost no read either."""
        self._locked: set[LedgerId] = set()
        self._failed: dict[LedgerId, Failed] = {}
        self.done: Counter[str] = Counter()
        """What was done: deleted, recovered."""
        self.last_error = ""
        """Of a ledger that is left alone for a while."""

    def _new_count(self, saved: dict[str, float]) -> GoneOwners:
        # A keeper that stood still for an hour does not count that; any pass that works counts.
        return GoneOwners(10 * self._config.pass_s + 60.0, saved)

    def take_over(self, gone_s: dict[str, float]) -> None:
        """Go on from for how long the keeper before has seen owners gone (rule K2)."""
        self._gone = self._new_count(gone_s)

    @property
    def gone_s(self) -> dict[str, float]:
        """What the next keeper goes on from."""
        return self._gone.saved()

    def at_work(self) -> None:
        """A sign of work, for all that is counted in such time (rules K2 and K3)."""
        self._gone.at_work(self._clock())
        self._halfway.at_work(self._clock())

    def read_anew(self) -> None:
        """Forget what was read on a connection of before (rule K6)."""
        self._owner_of.clear()
        self._stream_of.clear()

    def found(self, work: Pass) -> Found:
        """What people are told of a pass."""
        return work.found(locked=len(self._locked), failing=len(self._failed))

    async def settle(self) -> Pass:
        """Look at all ledgers that are open or unnamed, and do what is due. Raises what the store
        raises: then the rest is left to the next pass (rule K6)."""
        listed = frozenset(await self._store.children(OWNERS_PATH))
        work = Pass(self._clock(), listed)
        try:
            await self._each(OPEN_PATH, work, self._look_at_open)
            self._halfway.keep_only(work.ledgers)  # the open ones so far
            await self._each(UNNAMED_PATH, work, self._look_at_unnamed)
        finally:
            if work.recoveries:
                await asyncio.wait(work.recoveries)
        if work.restored is not None:
            raise work.restored
        self._forget(work)
        return work

    async def _each(
        self, root: str, work: Pass, look: Callable[[Pass, LedgerId], Awaitable[None]]
    ) -> None:
        async with aclosing(self._turns.of(root)) as listed:
            async for ledger_id, has_turn in listed:
                work.ledgers.add(ledger_id)
                work.counts[root] += 1
                self.at_work()
                if not has_turn:
                    work.left.append(ledger_id)
                    continue
                try:
                    await look(work, ledger_id)
                except LedgerError as error:
                    if not is_unreadable(error):
                        raise
                    self._fail(ledger_id, "cannot be looked at", error)

    def _forget(self, work: Pass) -> None:
        """Keep nothing of ledgers and owners that were not listed any more."""
        self._owner_of = {i: owner for i, owner in self._owner_of.items() if i in work.ledgers}
        self._stream_of = {i: each for i, each in self._stream_of.items() if i in work.ledgers}
        self._failed = {i: failed for i, failed in self._failed.items() if i in work.ledgers}
        self._locked &= work.ledgers
        for owner in work.listed:
            self._gone.alive(owner)
        left = {self._owner_of.get(ledger_id, "") for ledger_id in work.left}
        if "" not in left:  # one that was not read yet may be of any owner
            self._gone.keep_only(work.owners.keys() | left)

    async def _gone_s(self, work: Pass, owner: str) -> float | None:
        """For how long an owner was seen to be gone; None if it lives (rule K2)."""
        if owner not in work.owners:
            if owner in work.listed or await is_alive(self._store, owner):
                self._gone.alive(owner)
                work.owners[owner] = None
            else:
                work.owners[owner] = self._gone.gone(owner, self._clock())
        return work.owners[owner]

    async def _read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        """The metadata, or None if the ledger was deleted: not because a server lags."""
        try:
            return await self._ledgers.read_newest(ledger_id)
        except NoSuchLedgerError:
            return None

    async def _look_at_open(self, work: Pass, ledger_id: LedgerId) -> None:
        owner_lives = self._owner_of.get(ledger_id, "") in work.listed
        is_due = not owner_lives or self._halfway.is_due(ledger_id, self._clock())
        if not is_due or ledger_id in self._locked:
            return
        ledger = await self._read(ledger_id)
        gone_s = recovering_s = None
        if ledger is not None:
            self._owner_of[ledger_id] = ledger.value.owner
            gone_s = await self._gone_s(work, ledger.value.owner)
            recovering_s = self._halfway.seen_s(ledger.value, self._clock())
        work.counts["open dead"] += gone_s is not None
        found = None if ledger is None else ledger.value
        grace_s = self._config.owner_grace_s
        verdict = judge_open(found, gone_s=gone_s, recovering_s=recovering_s, grace_s=grace_s)
        failed = self._failed.get(ledger_id)
        if verdict is Verdict.WAIT or (failed is not None and work.now < failed.again_at):
            return
        work.plan.append((verdict, ledger_id))
        if self._config.dry_run:
            return
        if verdict is Verdict.FORGET:
            await self._unlist(OPEN_PATH, ledger_id)
        else:
            await self._begin_recovery(work, ledger_id)

    async def _look_at_unnamed(self, work: Pass, ledger_id: LedgerId) -> None:
        if self._owner_of.get(ledger_id, "") in work.listed or await self._waits(work, ledger_id):
            return
        ledger = await self._read(ledger_id)
        gone_s, has_stream = None, True
        if ledger is not None:
            self._owner_of[ledger_id] = ledger.value.owner
            gone_s = await self._gone_s(work, ledger.value.owner)
            made_for = self._stream_of[ledger_id] = StreamOf.of(ledger.value)
            has_stream = await work.has_stream(self._store, made_for)
        work.counts["unnamed dead"] += gone_s is not None
        found = None if ledger is None else ledger.value
        grace_s = self._config.unnamed_grace_s
        verdict = judge_unnamed(found, gone_s=gone_s, grace_s=grace_s, has_stream=has_stream)
        if verdict is Verdict.WAIT:
            return
        work.plan.append((verdict, ledger_id))
        if self._config.dry_run:
            return
        if ledger is None:
            await self._unlist(UNNAMED_PATH, ledger_id)
        else:
            await self._delete(ledger)

    async def _waits(self, work: Pass, ledger_id: LedgerId) -> bool:
        """Whether an unnamed ledger is known to wait, without a read of it or of its owner's node.
        Both are read before it is deleted (rule K2)."""
        if ledger_id not in self._stream_of:
            return False
        owner = self._owner_of[ledger_id]
        gone_s = work.owners.get(owner)
        if owner not in work.owners:
            gone_s = self._gone.still_gone(owner, self._clock())
        if gone_s is None or gone_s >= self._config.unnamed_grace_s:
            return False
        work.owners[owner] = gone_s
        waits = await work.has_stream(self._store, self._stream_of[ledger_id])
        work.counts["unnamed dead"] += waits
        return waits

    # -- what it does ------------------------------------------------------------------------------

    async def _unlist(self, root: str, ledger_id: LedgerId) -> None:
        with contextlib.suppress(NotFoundError):
            await self._change([Delete(id_path(root, ledger_id))])

    async def _delete(self, ledger: Versioned[LedgerMetadata]) -> None:
        """Delete a ledger as it was read, if nothing has named it since (rule K4)."""
        ledger_id = ledger.value.ledger_id
        operations: list[Operation] = [
            Delete(id_path(UNNAMED_PATH, ledger_id)),
            Delete(ledger_path(ledger_id), ledger.version),
        ]
        try:
            await self._change(operations)
        except (ConflictError, NotFoundError) as error:
            logger.info("ledger %d is left as it is, it has just changed: %s", ledger_id, error)
            return
        self.done["deleted"] += 1
        self._client.context.deletions.note()
        logger.info("ledger %d is deleted: nothing named it (%s)", ledger_id, ledger.value.owner)
        await asyncio.sleep(1.0 / self._config.deletes_per_s)

    async def _change(self, operations: list[Operation]) -> None:
        """A transaction that fails once another keeper was elected (rule K5)."""
        await self._store.transaction([self._guard(), *operations])

    async def _begin_recovery(self, work: Pass, ledger_id: LedgerId) -> None:
        while len(work.recoveries) >= RECOVERIES_AT_ONCE:
            await asyncio.wait(work.recoveries, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.get_running_loop().create_task(self._recover(work, ledger_id))
        work.recoveries.add(task)
        task.add_done_callback(work.recoveries.discard)
        await asyncio.sleep(1.0 / self._config.recoveries_per_s)

    async def _recover(self, work: Pass, ledger_id: LedgerId) -> None:
        try:
            await self._client.open_ledger(ledger_id, recover=True)
        except NotFoundError:
            pass  # deleted meanwhile
        except UnauthorizedError:
            self._locked.add(ledger_id)
            logger.warning(
                "ledger %d has to be recovered, and has a password: recover it with "
                "`ledger ledgers recover %d --password ...`",
                ledger_id,
                ledger_id,
            )
        except MetadataRestoredError as error:
            work.restored = error  # this process never recovers it: it has seen a later version
        except LedgerError as error:
            self._fail(ledger_id, "is not recovered yet", error)
        else:
            self._failed.pop(ledger_id, None)
            self.done["recovered"] += 1
            logger.info("ledger %d is recovered: who had to close it is gone", ledger_id)

    def _fail(self, ledger_id: LedgerId, what: str, error: LedgerError) -> None:
        """Leave a ledger alone for a while, and say why: it holds up no other (rule K6)."""
        before = self._failed.get(ledger_id)
        if before is not None and self._clock() < before.again_at:
            return  # it was said
        pause_s = FAILED_AGAIN_S if before is None else 2 * before.pause_s
        pause_s = min(pause_s, FAILED_AGAIN_S_MAX)
        self._failed[ledger_id] = Failed(self._clock() + pause_s, pause_s)
        self.last_error = f"ledger {ledger_id}: {error}"
        logger.warning("ledger %d %s: %s", ledger_id, what, error)
