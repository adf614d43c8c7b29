"""The garbage collection of a bookie: a pass now and then, at a sign, or when it is ordered.

Nothing here is in a hurry: whatever goes wrong ends a pass, is said, and the next pass begins anew.
Time is measured by the loop's clock, which nobody can set; the clock on the wall is for reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bookie_server.collection.collecting import CollectionConfig, Found, Holder, Pass
from bookie_server.collection.mark import HistoryMark, OnDisk, PassAbortedError, on_disk
from bookie_server.core.collection import Cause, CollectionStats
from bookie_server.storage.fs.vfs import FileSystem
from spark_ledger.errors import CorruptionError, LedgerError
from spark_ledger.limits.collection import (
    COLLECTION_FULL_INTERVAL_S,
    COLLECTION_INTERVAL_S,
    COLLECTION_MARK_S,
    COLLECTION_SIGN_PAUSE_FACTOR,
    COLLECTION_SIGN_PAUSE_S,
    COLLECTION_SOON_SHARE,
    COLLECTION_STOP_S,
    COLLECTION_WHOLE_INTERVAL_S,
)
from spark_ledger.metadata.base import MetadataStore, Watch
from spark_ledger.metadata.collection import (
    CollectionOrder,
    PassReport,
    order_path,
    read_collection,
    read_order,
)
from spark_ledger.metadata.deletions import read_sign
from spark_ledger.tasks import cancel
from spark_ledger.types import BookieId

logger = logging.getLogger(__name__)

_PASSING: Final = frozenset({Cause.METADATA, Cause.DISK, Cause.CHANGED})
"""Why a pass ended early that another one may not meet: what the sign told of is still there."""


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """When passes begin, and how far they go."""

    interval_s: float = COLLECTION_INTERVAL_S
    full_interval_s: float = COLLECTION_FULL_INTERVAL_S
    whole_interval_s: float = COLLECTION_WHOLE_INTERVAL_S
    mark_s: float = COLLECTION_MARK_S
    sign_pause_s: float = COLLECTION_SIGN_PAUSE_S
    each: CollectionConfig = field(default_factory=CollectionConfig)


class LedgerCollector:
    """Collects the garbage of one bookie. Belongs to the loop of the metadata store."""

    def __init__(
        self,
        holder: Holder,
        store: MetadataStore,
        bookie_id: BookieId,
        config: CollectorConfig,
        *,
        files: FileSystem,
        directory: Path,
        run_on_disk: OnDisk,
        new_ledgers: Callable[[], int],
        is_full: Callable[[], bool],
        why_not: Callable[[], str],
        reclaimable_bytes: Callable[[], int] = int,
        draw: random.Random | None = None,
    ) -> None:
        """``directory`` keeps the mark. ``new_ledgers``: how many were taken since the start;
        ``is_full``: only deletions make room here; ``why_not``: why no pass may go on now."""
        self._holder = holder
        self._store = store
        self._bookie_id = bookie_id
        self._config = config
        self._run_on_disk = run_on_disk
        self._new_ledgers = new_ledgers
        self._is_full = is_full
        self._why_not = why_not
        self._reclaimable_bytes = reclaimable_bytes
        self._draw = draw or random.Random()  # noqa: S311 - jitter
        self._mark = HistoryMark(store, bookie_id, files, directory, self._on_disk)
        self._marked = -1
        """The new ledgers that the last mark came after. None did in this process: the one before
        may have ended between the last ledger that it took and the mark behind it (rule G4)."""
        self._wanted = asyncio.Event()
        self._handled = ""
        """The order that was followed last; "" before the metadata were asked."""
        self._sign: int | None = None
        """Of deletions, the last one that a pass came after; None before the first look."""
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._disk_work: asyncio.Future[None] | None = None
        self._cause: Cause | None = None
        self._aborted = 0
        self.last_error = ""
        self.report = PassReport()
        """How the last pass went, with totals since the start."""

    def start(self) -> None:
        """Work from now on."""
        loop = asyncio.get_running_loop()
        self._watch = self._store.watch(order_path(self._bookie_id), self._wanted.set)
        self._wanted.set()  # an order of before
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(_ended)

    async def stop(self) -> None:
        """End the pass, after the deletion that it is in: for that it waits a bounded time."""
        if self._watch is not None:
            self._watch.cancel()
        if self._task is not None:
            await cancel(self._task)
        if self._disk_work is not None and not self._disk_work.done():
            with contextlib.suppress(TimeoutError, OSError, CorruptionError):
                async with asyncio.timeout(COLLECTION_STOP_S):
                    await asyncio.shield(self._disk_work)

    def stats(self) -> CollectionStats:
        """How it goes; any thread."""
        report = self.report
        return CollectionStats(
            passes=report.passes_total,
            aborted=self._aborted,
            held=report.held,
            candidates=report.candidates,
            deleted=report.deleted_total,
            freed_bytes=report.freed_bytes_total,
            last_pass_s=report.duration_s,
            ended_at=report.time_ms / 1000,
            cause=self._cause,
            reason=report.aborted,
        )

    async def run_pass(
        self, order: CollectionOrder | None = None, *, whole: bool = False
    ) -> PassReport:
        """One pass now; how it went. Errors are part of that.

        ``whole``: it reads the node of each ledger, and so finds copies that are named elsewhere
        (rule G9). One that an operator orders does.
        """
        order = order or CollectionOrder(token="")
        started = asyncio.get_running_loop().time()
        found, aborted, cause = Found(), "", None
        try:
            one = await self._begin(order, whole=whole)
            found = one.found
            await one.run()
        except (PassAbortedError, LedgerError, OSError) as error:
            aborted, cause = str(error), _cause_of(error)
        self._cause = cause
        self._aborted += cause is not None
        self._note(found, aborted, asyncio.get_running_loop().time() - started, order)
        return self.report

    # -- inside ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._pause_s()
        full_due = sign_due = loop.time()
        whole_due = loop.time() + self._config.whole_interval_s * self._draw.uniform(0.0, 0.25)
        while True:
            # At random: bookies that start together do not all begin a pass at the same sign.
            look_s = self._config.mark_s * self._draw.uniform(0.5, 1.0)
            await self._wait_until(min(due, loop.time() + look_s))
            try:
                order = await self._order()
            except LedgerError as error:
                logger.warning("orders for the garbage collection cannot be read: %s", error)
                order = None
            # Read before the pass that it starts: what is deleted meanwhile has the next sign.
            sign, is_new = await self._look_for_sign()
            now = loop.time()
            if (
                order is not None
                or now >= due
                or (self._is_full() and now >= full_due)
                or (is_new and now >= sign_due)
            ):
                whole = now >= whole_due
                await self.run_pass(order, whole=whole)
                if self._cause not in _PASSING:
                    self._sign = sign
                if whole and self._cause is None:
                    whole_due = now + self._config.whole_interval_s
                await self._publish()
                due = loop.time() + self._pause_s()
                full_due = loop.time() + self._config.full_interval_s
                sign_due = loop.time() + self._sign_pause_s()
            else:
                await self._mark_new_ledgers()

    async def _look_for_sign(self) -> tuple[int | None, bool]:
        """The last sign that ledgers were deleted, and whether no pass came after it (rule G10)."""
        try:
            sign = await read_sign(self._store)
        except LedgerError:
            return self._sign, False
        if self._sign is None:  # those of before this process: it has its first pass anyway
            self._sign = sign
        return sign, sign != self._sign

    def _sign_pause_s(self) -> float:
        """From the end of the last pass to one that a sign starts."""
        last = self.report
        paused_s = self._config.each.pause_s if last.candidates else 0.0
        busy_s = max(0.0, last.duration_s - paused_s)
        return max(self._config.sign_pause_s, COLLECTION_SIGN_PAUSE_FACTOR * busy_s)

    async def _begin(self, order: CollectionOrder, *, whole: bool) -> Pass:
        """A pass, behind a new mark. Raises as ``HistoryMark.renew``."""
        reason = self._why_not()
        if reason:
            raise PassAbortedError(Cause.DISK, reason)
        looks_only = order.dry_run and order.accept_restored
        if not looks_only:
            accept = await self._accepts(order)
            new_ledgers = self._new_ledgers()
            await self._mark.renew(
                accept=order.token if accept else None, kept_below=await self._keep(order, accept)
            )
            self._marked = new_ledgers
        kept_below = 0 if order.give_back else await self._mark.kept_below()
        each = self._config.each
        return Pass(
            self._holder,
            self._store,
            None if looks_only else self._mark,
            self._bookie_id,
            each if order.share_max is None else replace(each, share_max=order.share_max),
            self._on_disk,
            why_not=self._why_not,
            reads_all=order.accept_restored or bool(order.token) or whole,
            kept_below=kept_below,
            dry_run=order.dry_run,
        )

    async def _accepts(self, order: CollectionOrder) -> bool:
        """Whether an order has other metadata accepted. Each does so once: one that comes back with
        a backup was not given for that (rule G4)."""
        if not order.accept_restored or await self._mark.may_accept(order.token):
            return order.accept_restored
        logger.warning(
            "the order to accept restored metadata was followed before: it does not count again"
        )
        return False

    async def _keep(self, order: CollectionOrder, accept: bool) -> int | None:
        """Which copies that are named elsewhere shall stay; None: as before (rule G9)."""
        if accept:
            return await on_disk(self._on_disk, self._holder.next_ledger_id)
        return 0 if order.give_back and not order.dry_run else None

    def _pause_s(self) -> float:
        """At random: the bookies of a cluster start at the same time. Shorter behind a pass that
        found much, as then there is more to come."""
        interval_s = self._config.interval_s
        if self.report.deleted > COLLECTION_SOON_SHARE * self.report.held:
            interval_s = min(interval_s, self._config.full_interval_s)
        return interval_s * self._draw.uniform(0.5, 1.0)

    async def _wait_until(self, due: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._wanted.wait()
        self._wanted.clear()

    async def _order(self) -> CollectionOrder | None:
        """An order that was not followed yet."""
        found = await read_order(self._store, self._bookie_id)
        if found is None or found.value.token == self._handled:
            return None
        if not self._handled:  # of a process before this one, perhaps
            try:
                node = await read_collection(self._store, self._bookie_id)
            except CorruptionError:  # the order may be the one that mends it
                return found.value
            report = node.value.report if node is not None else None
            if report is not None and report.order == found.value.token:
                self._handled = report.order
                return None
        return found.value

    async def _mark_new_ledgers(self) -> None:
        """Another mark if there are ledgers that came after the last one (rule G4)."""
        new_ledgers = self._new_ledgers()
        if new_ledgers == self._marked:
            return
        try:
            await self._mark.renew()
            self._marked = new_ledgers
        except (PassAbortedError, LedgerError, OSError) as error:
            self._say(str(error))

    def _note(self, found: Found, aborted: str, duration_s: float, order: CollectionOrder) -> None:
        before = self.report
        self.report = PassReport(
            time_ms=max(0, time.time_ns() // 1_000_000),
            duration_s=round(duration_s, 3),
            held=found.held,
            candidates=found.candidates,
            kept=found.kept,
            deleted=found.deleted,
            freed_bytes=found.freed_bytes,
            deleted_total=before.deleted_total + found.deleted,
            freed_bytes_total=before.freed_bytes_total + found.freed_bytes,
            passes_total=before.passes_total + 1,
            aborted=aborted,
            dry_run=order.dry_run,
            order=order.token or before.order or self._handled,
            reclaimable_bytes=self._reclaimable_bytes(),
        )
        self._handled = order.token or self._handled
        if found.deleted:
            logger.info("collected %d deleted ledgers, %d bytes", found.deleted, found.freed_bytes)
        self._say(aborted)

    def _say(self, aborted: str) -> None:
        """Log why nothing is collected, once for each reason."""
        if aborted and aborted != self.last_error:
            logger.warning("garbage collection: %s", aborted)
        self.last_error = aborted

    async def _publish(self) -> None:
        try:
            await self._mark.publish(self.report)
        except (PassAbortedError, LedgerError) as error:
            logger.warning("the report of the garbage collection is not published: %s", error)

    async def _on_disk(self, work: Callable[[], None]) -> None:
        """On a thread of its own, and to its end even if this task is cancelled."""
        self._disk_work = asyncio.ensure_future(self._run_on_disk(work))
        await asyncio.shield(self._disk_work)


def _ended(task: asyncio.Task[None]) -> None:
    """It ends when it is stopped, or by a bug of ours: the bookie goes on without it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("garbage collection ended; start the bookie anew", exc_info=error)


def _cause_of(error: Exception) -> Cause:
    if isinstance(error, PassAbortedError):
        return error.cause
    return Cause.DISK if isinstance(error, OSError) else Cause.METADATA
