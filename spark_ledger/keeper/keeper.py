"""The keeper: is elected, and goes through passes of all that it has to do.

Everything that it does may be cut off anywhere, done twice, and done by two at once. What it is
about to do is never in memory only: the next one finds the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.keeper.audit import Audit
from spark_ledger.keeper.audit_pages import Finding
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.decisions import Verdict
from spark_ledger.keeper.election import Election
from spark_ledger.keeper.nodes import STATE_PATH, Done, Found, KeeperState, read_state
from spark_ledger.keeper.optimizing import Packable, StreamOptimizer
from spark_ledger.keeper.settling import Settler
from spark_ledger.keeper.streams import StreamKeeper
from spark_ledger.limits.keeper import (
    STREAM_SWEEP_PASSES,
)
from spark_ledger.metadata.base import Check, MetadataStore
from spark_ledger.metadata.json_nodes import encode_node, read_or_renew
from spark_ledger.tasks import wait_at_most
from spark_ledger.types import LedgerId, Versioned

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
        self._settler = Settler(client, lambda: self._election.check, self._config, self._clock)
        self._state: Versioned[KeeperState] | None = None
        self.done: Counter[str] = Counter()
        """What was done, by this one and those before: recovered, deleted, streams; and by
        audits of this one: audited."""
        self._worked_before_s = 0.0
        """For how long keepers had worked when this one took over."""
        self._began = self._clock()
        self._passes = 0
        self._audit_fails = False
        self._last_error = ""
        self.found = Found()
        """What the last pass saw."""

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
        self._settler.take_over({} if state is None else state.value.gone_s)
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
        self._settler.take_over(before.value.gone_s)
        self._worked_before_s, self._began = before.value.worked_s, self._clock()
        self.done = before.value.done.counts()

    def _check(self) -> Check:
        """Of each change to streams (rule K5); and a sign of work (rule K2)."""
        self._settler.at_work()
        return self._election.check

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
            gone_s=self._settler.gone_s,
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
        try:
            work = await self._settler.settle()
        finally:
            for what in ("deleted", "recovered"):
                self.done[what] += self._settler.done.pop(what, 0)
            self._last_error = self._settler.last_error or self._last_error
            self._settler.last_error = ""
        self.found = self._settler.found(work)
        if not self._config.dry_run:
            await self._care_for_streams(is_sweep=self._passes % STREAM_SWEEP_PASSES == 0)
        return work.plan

    def _read_anew(self) -> None:
        """Forget what was read on a connection of before: the store may have been restored since,
        without a sign of it, and have other nodes of the same versions (rule K6)."""
        self._stream_keeper.forget()
        self._audit.drop()
        self._settler.read_anew()

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
