"""The keeper: looks at what is unsettled, page by page, and does what ``decisions`` says.

Everything that it does may be cut off anywhere, done twice, and done by two at once: recoveries and
deletions decide by compare-and-set. What it is about to do is never in memory only: the next one
finds the same ledgers in the index.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotFoundError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from spark_ledger.keeper.audit import Audit
from spark_ledger.keeper.audit_pages import Finding
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.decisions import Verdict, judge_open, judge_unnamed
from spark_ledger.keeper.election import Election
from spark_ledger.keeper.gone import GoneOwners
from spark_ledger.keeper.halfway import HalfwayRecoveries
from spark_ledger.keeper.nodes import STATE_PATH, Done, Found, KeeperState, read_state
from spark_ledger.keeper.optimizing import Packable, StreamOptimizer
from spark_ledger.keeper.seen import Failed, Pass, StreamOf
from spark_ledger.keeper.streams import StreamKeeper
from spark_ledger.keeper.turns import Turns
from spark_ledger.limits.keeper import (
    FAILED_AGAIN_S,
    FAILED_AGAIN_S_MAX,
    RECOVERIES_AT_ONCE,
    STREAM_SWEEP_PASSES,
)
from spark_ledger.metadata.base import Check, Delete, MetadataStore, Operation
from spark_ledger.metadata.json_nodes import encode_node, read_or_renew
from spark_ledger.metadata.ledgers import LedgerStore, is_unreadable, ledger_path
from spark_ledger.metadata.owners import OWNERS_PATH, is_alive
from spark_ledger.metadata.unsettled import OPEN_PATH, UNNAMED_PATH, id_path
from spark_ledger.tasks import wait_at_most
from spark_ledger.types import LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)


class Keeper:
    """One keeper over one connection. Belongs to the loop of the client."""

    def __init__(
        self,
        client: LedgerClient,
        config: KeeperConfig | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._store: MetadataStore = client.store
        self._ledgers = LedgerStore(self._store)
        self._config = config or KeeperConfig()
        self._clock = clock or asyncio.get_running_loop().time
        self._election = Election(self._store)
        self._stream_keeper = StreamKeeper(
            client,
            self._check,
            self._config,
            clock=self._clock,
            worked_s=self._worked_s,
        )
        self._audit = Audit(
            client,
            self._check,
            worked_s=self._worked_s,
            interval_s=self._config.audit_s,
            grace_s=self._config.unnamed_grace_s,
            deletes_per_s=self._config.deletes_per_s,
            dry_run=self._config.dry_run,
        )
        self._optimizer = StreamOptimizer(
            client,
            clock=self._clock,
            interval_s=self._config.optimize_s,
            bytes_per_s=self._config.optimize_bytes_per_s,
        )
        self._turns = Turns(self._store, self._clock, dry_run=self._config.dry_run)
        self._gone = self._new_count({})
        self._halfway = HalfwayRecoveries(self._new_count({}))
        self._state: Versioned[KeeperState] | None = None
        self.done: Counter[str] = Counter()
        """What was done, by this one and those before: recovered, deleted, streams; and by
        audits of this one: audited."""
        self._owner_of: dict[LedgerId, str] = {}
        """Owners of the listed ledgers: an owner that lives costs no read."""
        self._stream_of: dict[LedgerId, StreamOf] = {}
        """Streams of the unnamed ones that were read: before the grace they cost no read either."""
        self._locked: set[LedgerId] = set()
        self._failed: dict[LedgerId, Failed] = {}
        self._worked_before_s = 0.0
        """For how long keepers had worked when this one took over."""
        self._began = self._clock()
        self._passes = 0
        self._audit_fails = False
        self._last_error = ""
        self.found = Found()
        """What the last pass saw."""

    def _new_count(self, saved: dict[str, float]) -> GoneOwners:
        # A keeper that stood still for an hour does not count that; any pass that works counts.
        return GoneOwners(10 * self._config.pass_s + 60.0, saved)

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Be elected, and work until ``stop`` is set. Outages are waited out.

        Raises MetadataRestoredError, no longer elected: go on with a new process (rule K6).
        """
        stop = stop or asyncio.Event()
        try:
            while not stop.is_set():
                await self._election.win()
                await self._tenure(stop)
                await self._optimizer.stop()
        finally:
            await self._optimizer.stop()
            await self._election.resign()

    async def _tenure(self, stop: asyncio.Event) -> None:
        """Passes, until another one is elected."""
        self._state = None
        while not stop.is_set():
            try:
                if not await self._election.is_won():
                    logger.warning("this keeper is not the elected one any more")
                    self._state = None
                    return
                if self._state is None:
                    await self._take_over()
                await self.run_pass()
                await self._save()
            except LedgerClosedError:
                return
            except MetadataRestoredError:
                raise
            except LedgerError as error:
                self._last_error = str(error)
                logger.warning("the pass is broken off, the next one goes on: %s", error)
                if self._state is not None and not isinstance(error, MetadataUnavailableError):
                    with contextlib.suppress(LedgerError):  # what fails may fail each time
                        await self._save()
            await wait_at_most(stop, self._config.pass_s)

    @property
    def is_elected(self) -> bool:
        """Whether this one is at work as the elected keeper, for all that it knows."""
        return self._state is not None

    @property
    def packed(self) -> int:
        """How many packs this one has made (rule K10)."""
        return self._optimizer.packed

    async def elect(self) -> bool:
        """Be elected if nobody is, and take over what the one before knew."""
        won = await self._election.win(wait=False)
        if won:
            await self._take_over()
        return won

    async def look(self) -> list[tuple[Verdict, LedgerId]]:
        """One pass that does nothing: what would be done now, but for recoveries that were left in
        the middle, which one look cannot tell from others (rule K3)."""
        state = await read_state(self._store)
        self._gone = self._new_count({} if state is None else state.value.gone_s)
        return await self.run_pass()

    async def packable(self) -> AsyncGenerator[Packable, None]:
        """What would be packed now (rule K10)."""
        async with aclosing(self._optimizer.look()) as found:
            async for each in found:
                yield each

    async def audit(self) -> AsyncGenerator[list[Finding], None]:
        """One audit that does nothing: what no index lists and nothing names, page by page (rule
        K9)."""
        state = await read_state(self._store)
        self._worked_before_s = 0.0 if state is None else state.value.worked_s
        async with aclosing(self._audit.look()) as pages:
            async for found in pages:
                yield found

    # -- what it knows -----------------------------------------------------------------------------

    async def _take_over(self) -> None:
        self._audit.check_again()
        me = self._election.me
        state = KeeperState(host=me.host, pid=me.pid)
        before = await read_or_renew(self._store, state, STATE_PATH)
        if before is None:
            await self._store.create(STATE_PATH, encode_node(state))
            before = Versioned(state, 0)
        self._state = before
        self._gone = self._new_count(before.value.gone_s)
        self._worked_before_s, self._began = before.value.worked_s, self._clock()
        self.done = before.value.done.counts()

    def _check(self) -> Check:
        """Of each change to streams (rule K5); and a sign of work (rule K2)."""
        self._at_work()
        return self._election.check

    def _at_work(self) -> None:
        """A sign of work, for all that is counted in such time (rules K2 and K3)."""
        self._gone.at_work(self._clock())
        self._halfway.at_work(self._clock())

    def _worked_s(self) -> float:
        """For how long this cluster has had a keeper at work (rule K8)."""
        return self._worked_before_s + max(0.0, self._clock() - self._began)

    async def _save(self) -> None:
        """Write down what was done. Raises ConflictError if another keeper has."""
        assert self._state is not None, "taken over"
        me = self._election.me
        state = KeeperState(
            host=me.host,
            pid=me.pid,
            passes=self._state.value.passes + 1,
            time_ms=time.time_ns() // 1_000_000,
            worked_s=math.floor(self._worked_s() * 10) / 10,  # never more than was worked
            done=Done.of(self.done),
            found=self.found,
            gone_s=self._gone.saved(),
            last_error=self._last_error,
        )
        try:
            version = await self._store.put(STATE_PATH, encode_node(state), self._state.version)
        except (ConflictError, NotFoundError, OutcomeUnknownError):
            self._state = None  # read again, if this one is still elected
            raise
        self._state = Versioned(state, version)
        self._last_error = ""

    # -- one pass ----------------------------------------------------------------------------------

    async def run_pass(self) -> list[tuple[Verdict, LedgerId]]:
        """Look at everything that is unsettled, and do what is due; what that was.

        Raises what the store raises: then the rest is left to the next pass (rule K6).
        """
        if self._store.restored:
            self._audit.drop()
            raise MetadataRestoredError(self._store.restored)
        if self._election.is_on_new_connection():
            self._read_anew()
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
        self.found = work.found(locked=len(self._locked), failing=len(self._failed))
        if not self._config.dry_run:
            await self._care_for_streams(is_sweep=self._passes % STREAM_SWEEP_PASSES == 0)
        return work.plan

    def _read_anew(self) -> None:
        """Forget what was read on a connection of before: the store may have been restored since,
        without a sign of it, and have other nodes of the same versions (rule K6)."""
        self._stream_keeper.forget()
        self._audit.drop()
        self._owner_of.clear()
        self._stream_of.clear()

    async def _care_for_streams(self, *, is_sweep: bool) -> None:
        failed: LedgerError | None = None
        if is_sweep or self._stream_keeper.hurries:
            try:
                await self._sweep(whole=is_sweep)
            except LedgerError as error:  # a sweep that fails each time holds up no audit
                failed = error
        if failed is None:  # an audit that fails each time holds up no sweep
            self._passes += 1
        self._optimizer.go_on()
        may_begin, self._audit_fails = is_sweep or self._audit_fails, True
        await self._audit.go_on(may_begin=may_begin)
        self._audit_fails = False
        self.done["audited"] = self._audit.deleted
        if failed is not None:
            raise failed

    async def _sweep(self, *, whole: bool) -> None:
        try:
            await self._stream_keeper.sweep(whole=whole)
        finally:
            for what in ("reclaimed", "streams"):
                self.done[what] += self._stream_keeper.done.pop(what, 0)
        self._last_error = self._stream_keeper.last_error or self._last_error

    async def _each(
        self, root: str, work: Pass, look: Callable[[Pass, LedgerId], Awaitable[None]]
    ) -> None:
        async with aclosing(self._turns.of(root)) as listed:
            async for ledger_id, has_turn in listed:
                work.ledgers.add(ledger_id)
                work.counts[root] += 1
                self._at_work()
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
        await self._store.transaction([self._election.check, *operations])

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
        self._last_error = f"ledger {ledger_id}: {error}"
        logger.warning("ledger %d %s: %s", ledger_id, what, error)
