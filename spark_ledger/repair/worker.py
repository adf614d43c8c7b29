"""A worker: takes marked ledgers, fewest copies first, and makes their copies again.

It may be cut off anywhere, and two may be at one ledger: what is copied is synced before it is
named, and metadata change by compare-and-set (rules R4 and R5). The lock only saves work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    BookieUnavailableError,
    ConflictError,
    LedgerClosedError,
    LedgerError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotFoundError,
    OutcomeUnknownError,
    RecoveryError,
    UnauthorizedError,
)
from spark_ledger.keeper.passes import run_passes
from spark_ledger.limits.repair import (
    LOST_LOOKED_UP_S,
    OPEN_LEDGER_GRACE_S,
    REPAIR_BYTES_PER_S,
    REPAIR_COUNTED_S,
    REPAIR_FAILED_AGAIN_S,
    REPAIR_FAILED_AGAIN_S_MAX,
    REPAIR_PASS_S,
    REPAIR_SOURCE_BYTES_PER_S,
    REPAIR_UNTOLD_AGAIN_S,
    REPAIRS_AT_ONCE,
)
from spark_ledger.metadata.base import Delete, MetadataStore, Operation
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.json_nodes import (
    decode_node,
    read_node,
    read_or_renew,
    write_node,
)
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.owners import is_alive
from spark_ledger.metadata.unsettled import id_path, pages
from spark_ledger.repair.graces import END_NOT_FOUND, Graces
from spark_ledger.repair.ledger import LedgerRepair
from spark_ledger.repair.locking import HeldLock, repair_lock
from spark_ledger.repair.nodes import (
    FAILED_PATH,
    PRIORITIES,
    STATE_PATH,
    AuditState,
    FailedRepair,
    Mark,
    RepairDone,
    count_done,
    forget_lost,
    leaving,
    mark_root,
)
from spark_ledger.repair.plan import all_names, waits_for_its_writer
from spark_ledger.repair.throttle import Throttles
from spark_ledger.types import BookieId, BookieState, LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How fast a worker works, and how long it waits for writers."""

    bytes_per_s: float = REPAIR_BYTES_PER_S
    source_bytes_per_s: float = REPAIR_SOURCE_BYTES_PER_S
    """What is read from one bookie, so that its readers and writers hardly notice."""
    at_once: int = REPAIRS_AT_ONCE
    pass_s: float = REPAIR_PASS_S
    open_grace_s: float = OPEN_LEDGER_GRACE_S
    """An open ledger whose writer lives is recovered after so long (rule R3)."""
    despite_losses: bool = False
    """Go on although too many bookies are gone: an operator has said so."""


@dataclass(slots=True)
class _Pause:
    """A ledger that could not be repaired."""

    again_at: float
    pause_s: float


class Worker:
    """One worker over one connection. Belongs to the loop of the client."""

    def __init__(
        self,
        client: LedgerClient,
        config: WorkerConfig | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._config = config or WorkerConfig()
        self._store: MetadataStore = client.store
        self._ledgers = LedgerStore(self._store)
        self._registry = BookieRegistry(self._store)
        self._clock = clock or asyncio.get_running_loop().time
        self._throttles = Throttles(self._config.bytes_per_s, self._config.source_bytes_per_s)
        self._paused: dict[LedgerId, _Pause] = {}
        self._here: frozenset[tuple[BookieId, BookieState]] = frozenset()
        """The registered bookies at the last pass."""
        self._lost: frozenset[BookieId] = frozenset()
        """Those whose ledgers were marked, or are about to be, as of the last look."""
        self._lost_before: frozenset[BookieId] = frozenset()
        self._gone: frozenset[BookieId] = frozenset()
        """Those that the last look found lost, and when that was."""
        self._looked_at = float("-inf")
        self._told: frozenset[BookieId] = frozenset()
        """Those of them that an operator takes out."""
        self._graces = Graces(client, self._clock)
        self._went_back: MetadataRestoredError | None = None
        """This process can repair that ledger never again: it has seen a later version."""
        self._failing: set[LedgerId] = set()
        """Ledgers of which the metadata say why they failed, as of the last look and since."""
        self._tried: set[str] = set()
        """Marks that stayed although their ledgers were tried; they let others go first."""
        self._uncounted: Counter[str] = Counter()
        """What was done and is not written down yet."""
        self._counted_at = self._clock()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set. Outages are waited out."""

        def on_error(error: LedgerError) -> None:
            logger.warning("repair is broken off, the next pass goes on: %s", error)

        await run_passes(stop, self._config.pass_s, self.run_pass, on_error)

    async def run_pass(self) -> int:
        """Repair whatever is marked and not paused; how many ledgers were tried.

        It may last for days: every few seconds it looks again what has the fewest copies left, and
        whether it may go on (rules R7 and R9). Raises what the store raises: then the rest is left
        to the next pass.
        """
        running: dict[LedgerId, asyncio.Task[None]] = {}
        counting = asyncio.get_running_loop().create_task(self._keep_counting())
        try:
            return await self._take_all(running)
        finally:
            for task in (counting, *running.values()):
                task.cancel()
            await asyncio.gather(counting, *running.values(), return_exceptions=True)
            with contextlib.suppress(LedgerError):
                await self._count()

    async def _take_all(self, running: dict[LedgerId, asyncio.Task[None]]) -> int:
        count = 0
        self._tried.clear()
        while await self._may_begin():
            if len(running) >= self._config.at_once:
                await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
            begun, is_whole = await self._begin(running)
            count += begun
            if not is_whole:
                continue
            if running:
                await asyncio.wait(running.values(), timeout=self._config.pass_s)
            if not running:
                return count
            self._tried.clear()
        if running:
            await asyncio.wait(running.values())
        return count

    async def _may_begin(self) -> bool:
        if self._store.restored:
            raise MetadataRestoredError(self._store.restored)
        if self._went_back is not None:
            raise self._went_back
        state = await read_node(self._store, AuditState, STATE_PATH)
        audited = frozenset[BookieId]() if state is None else state.value.lost
        self._told = await leaving(self._store)
        self._lost = audited | self._told
        is_stopped = state is not None and bool(state.value.stopped)
        return self._config.despite_losses or not is_stopped  # rule R9

    async def _begin(self, running: dict[LedgerId, asyncio.Task[None]]) -> tuple[int, bool]:
        """Begin with what has the fewest copies left, a few ledgers at a time; how many, and
        whether all marks were seen. If not, it is time to look again which come first."""
        self._end_pauses()
        count, until = 0, self._clock() + self._config.pass_s
        await self._look_who_fails()
        unlisted = self._paused.keys() | self._graces.ledgers | self._failing
        async with aclosing(self._waiting(unlisted)) as waiting:
            async for ledger_id, path in waiting:
                if ledger_id in running:
                    continue
                if len(running) >= self._config.at_once:
                    await asyncio.wait(running.values(), return_when=asyncio.FIRST_COMPLETED)
                    if self._clock() >= until:
                        return count, False
                count += 1
                self._tried.add(path)
                self._start(running, ledger_id, path)
        await self._forget(unlisted - running.keys())
        return count, True

    async def _look_who_fails(self) -> None:
        """Read once for many ledgers, and not for each that is repaired."""
        self._failing.clear()
        async for page in pages(self._store, FAILED_PATH):
            self._failing.update(page.ids)

    async def _waiting(self, unlisted: set[LedgerId]) -> AsyncGenerator[tuple[LedgerId, str], None]:
        """Marked ledgers with their marks, fewest copies first; they leave ``unlisted``."""
        for copies in PRIORITIES:
            async for page in pages(self._store, mark_root(copies)):
                unlisted.difference_update(page.ids)
                for ledger_id in page.ids:
                    path = id_path(mark_root(copies), ledger_id)
                    if path not in self._tried and not self._is_paused(ledger_id):
                        yield ledger_id, path

    def _start(
        self, running: dict[LedgerId, asyncio.Task[None]], ledger_id: LedgerId, mark_path: str
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._try(ledger_id, mark_path))
        running[ledger_id] = task
        task.add_done_callback(lambda _: running.pop(ledger_id))

    async def _forget(self, repaired: Collection[LedgerId]) -> None:
        """Forget ledgers that were repaired, here or by others: one that is marked anew begins
        anew, and its writer has all of its grace (rule R3)."""
        for ledger_id in repaired:
            self._paused.pop(ledger_id, None)
            self._graces.forget(ledger_id)
            if ledger_id in self._failing:
                with contextlib.suppress(NotFoundError):
                    await self._store.delete(id_path(FAILED_PATH, ledger_id))
                self._failing.discard(ledger_id)

    async def _keep_counting(self) -> None:
        while True:
            await asyncio.sleep(REPAIR_COUNTED_S)
            with contextlib.suppress(LedgerError):
                await self._count()

    async def _count(self) -> None:
        """Write down what was done since the last time. Only people read it."""
        more = Counter(self._uncounted)
        self._uncounted.clear()  # the same object: repairs under way go on counting in it
        now = self._clock()
        elapsed_s, self._counted_at = now - self._counted_at, now
        waited_s, self._throttles.source_waited_s = self._throttles.source_waited_s, 0.0
        if more:
            await count_done(
                self._store,
                RepairDone(
                    ledgers=more["ledgers"],
                    copied_entries=more["entries"],
                    copied_bytes=more["bytes"],
                    source_waited_ms=round(1e3 * waited_s),
                    bytes_per_s=round(more["bytes"] / max(elapsed_s, 0.1)),
                    time_ms=time.time_ns() // 1_000_000,
                ),
            )

    def _end_pauses(self) -> None:
        """A bookie that has come may be what failed ledgers wait for: they are tried at once. So
        they are once another one is lost: what they waited for may be that, and it is more urgent.
        """
        directory = self._client.context.directory
        here = frozenset((info.bookie_id, info.state) for info in directory.all())
        if here - self._here or self._lost - self._lost_before:
            self._paused.clear()
        self._here, self._lost_before = here, self._lost

    def _is_paused(self, ledger_id: LedgerId) -> bool:
        pause = self._paused.get(ledger_id)
        return pause is not None and self._clock() < pause.again_at

    # -- one ledger --------------------------------------------------------------------------------

    async def _try(self, ledger_id: LedgerId, mark_path: str) -> None:
        """Repair one ledger under its lock; what goes wrong is written down (rule R6)."""
        connections = self._store.connections
        async with repair_lock(self._store, ledger_id) as lock:
            if lock is None:
                return  # another worker is at it
            marked = None
            try:
                marked = await self._read_mark(mark_path, connections)
                if marked is not None:  # else it was done meanwhile
                    await self._repair(ledger_id, mark_path, marked, lock, connections)
            except MetadataRestoredError as error:
                self._went_back = error
            except LedgerError as error:
                if marked is None or not await self._is_marked_anew(mark_path, marked.version):
                    await self._failed(ledger_id, error)

    async def _read_mark(self, mark_path: str, connections: int) -> Versioned[Mark] | None:
        """The mark, no older than the lock, which was taken after ``connections`` were counted:
        over one connection no answer is older than those before it (rule R7)."""
        try:
            node = await self._store.get(mark_path)
            if self._store.connections != connections:
                node = await self._store.get_latest(mark_path)
        except NotFoundError:
            return None
        return Versioned(decode_node(Mark, mark_path, node.value), node.version)

    async def _metadata(self, ledger_id: LedgerId, connections: int) -> Versioned[LedgerMetadata]:
        """Metadata that are no older than the mark, by the same argument."""
        try:
            found = await self._ledgers.read(ledger_id)
        except NoSuchLedgerError:
            if self._store.connections == connections:
                raise
        else:
            if self._store.connections == connections:
                return found
        return await self._ledgers.read_latest(ledger_id)

    async def _is_marked_anew(self, mark_path: str, version: int) -> bool:
        """Whether what failed is out of date: something else is lost since, or found missing."""
        with contextlib.suppress(LedgerError):
            now = await read_node(self._store, Mark, mark_path)
            return now is not None and now.version != version
        return False

    async def _repair(
        self,
        ledger_id: LedgerId,
        mark_path: str,
        marked: Versioned[Mark],
        lock: HeldLock,
        connections: int,
    ) -> None:
        try:
            ledger = await self._metadata(ledger_id, connections)
        except NoSuchLedgerError:
            await self._unmark(ledger_id, mark_path, marked.version)
            return
        # A ledger has a mark for each number of copies: another one may name more of its bookies.
        more = all_names(ledger.value) & self._lost
        lost = await self.lost_now(more.union(map(BookieId, marked.value.bookies)))
        still_open: LedgerError | None = None
        if waits_for_its_writer(ledger.value, lost):
            try:
                ledger = await self._recover_if_due(ledger)
            except END_NOT_FOUND as error:
                still_open = error  # its other fragments are none the worse
                ledger = await self._ledgers.read_latest(ledger_id)
        context, counts = self._client.context, self._uncounted
        repair = LedgerRepair(context, ledger, lock.key, self._throttles, counts)

        # In one transaction with the last name: of many small ledgers each write counts.
        def done() -> list[Operation]:
            unlocks = [] if lock.may_be_lost else [Delete(lock.path)]
            return [Delete(mark_path, marked.version), *unlocks]

        ledger = await repair.run(lost, tuple if still_open else done)
        if repair.is_settled:
            lock.is_released = not lock.may_be_lost
            self._uncounted["ledgers"] += 1
            await self._unmarked(ledger_id, mark_path)
            return
        if still_open is not None:
            raise still_open
        if repair.unknown:  # a mark with lost bookies may be there because of holes, too
            raise BookieUnavailableError(
                f"ledger {ledger_id}: {', '.join(sorted(repair.unknown))} may lack entries, and "
                "did not answer or take them"
            )
        # What was marked since is not done: the mark has another version then (rule R7).
        if not all_names(ledger.value) & lost:
            self._uncounted["ledgers"] += repair.changed
            await self._unmark(ledger_id, mark_path, marked.version)

    async def lost_now(self, bookies: frozenset[BookieId]) -> frozenset[BookieId]:
        """Those of the marked bookies that are lost still: one that came back is not (rule R1).

        Ledgers that are begun at the same time share a look as long as it finds all lost. That one
        is there, and its mark may go, only a look says that is later than the mark.
        """
        if self._clock() - self._looked_at >= LOST_LOOKED_UP_S or not bookies <= self._gone:
            present = await self._present()
            await forget_lost(self._store, bookies & present)
            self._gone, self._looked_at = (bookies | self._lost) - present, self._clock()
        return bookies & self._gone

    async def _present(self) -> frozenset[BookieId]:
        """Who is registered, and does not leave."""
        registered: set[BookieId] = set()
        for state in (BookieState.WRITABLE, BookieState.READ_ONLY):
            registered.update((await self._registry.names(state)).value)
        return frozenset(registered) - await leaving(self._store)

    async def _recover_if_due(self, ledger: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
        """Close an open ledger that keeps naming a lost bookie, once its writer had time (R3)."""
        ledger_id = ledger.value.ledger_id
        if not await self._graces.is_over(ledger, self._config.open_grace_s, self._told):
            return ledger
        if ledger.value.has_password:
            raise UnauthorizedError(
                f"ledger {ledger_id}: its last fragment names a lost bookie, its writer adds "
                "nothing, and only who knows the password can close it: run ledger ledgers recover"
            )
        owner = ledger.value.owner
        alive = bool(owner) and await is_alive(self._store, owner)
        logger.info(
            "ledger %d names lost bookies, and its writer %s: it is recovered",
            ledger_id,
            "adds nothing" if alive else "is gone",
        )
        await self._client.open_ledger(ledger_id, recover=True)
        self._graces.forget(ledger_id)
        return await self._ledgers.read_latest(ledger_id)

    async def _unmark(self, ledger_id: LedgerId, path: str, version: int) -> None:
        with contextlib.suppress(ConflictError, NotFoundError):
            await self._store.delete(path, version)
        await self._unmarked(ledger_id, path)

    async def _unmarked(self, ledger_id: LedgerId, path: str) -> None:
        """A ledger lacks nothing any more. One that is marked anew is taken in its turn."""
        self._tried.discard(path)
        await self._forget({ledger_id})

    async def _failed(self, ledger_id: LedgerId, error: LedgerError) -> None:
        """Try it again later, twice as late each time, and say why (rule R6)."""
        before = self._paused.get(ledger_id)
        pause_s = REPAIR_FAILED_AGAIN_S if before is None else 2 * before.pause_s
        nobody_tells = isinstance(error, UnauthorizedError) or (
            isinstance(error, BookieUnavailableError | RecoveryError)
            and await self._are_registered(ledger_id)
        )
        longest_s = REPAIR_UNTOLD_AGAIN_S if nobody_tells else REPAIR_FAILED_AGAIN_S_MAX
        pause_s = min(pause_s, longest_s)
        self._paused[ledger_id] = _Pause(self._clock() + pause_s, pause_s)
        log = logger.error if isinstance(error, NoSuchEntryError) else logger.warning
        log("ledger %d is not repaired yet: %s", ledger_id, error)
        if isinstance(error, MetadataUnavailableError | OutcomeUnknownError | LedgerClosedError):
            return  # not the ledger's fault, and nowhere to write it
        path = id_path(FAILED_PATH, ledger_id)
        with contextlib.suppress(LedgerError):
            known = await read_or_renew(self._store, FailedRepair(reason="", tries=0), path)
            tries = 1 if known is None else known.value.tries + 1
            again_ms = round(1e3 * (time.time() + pause_s))
            node = FailedRepair(reason=str(error), tries=tries, again_ms=again_ms)
            self._failing.add(ledger_id)
            await write_node(self._store, path, node, known)

    async def _are_registered(self, ledger_id: LedgerId) -> bool:
        """Whether all bookies that a ledger names are, but those that are lost: one that does not
        answer for a while will not come anew, and nobody tells when it answers again."""
        directory = self._client.context.directory
        with contextlib.suppress(LedgerError):
            names = all_names((await self._ledgers.read(ledger_id)).value)
            return all(directory.get(each) is not None for each in names - self._gone)
        return False
