"""The auditor: sees which bookies are lost, and marks the ledgers that lack copies because of it.

One of a cluster is at work, beside the elected keeper; two do no harm, since a mark says only where
to look (rule R7).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    MetadataRestoredError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.keeper.gone import GoneOwners
from spark_ledger.keeper.passes import run_passes
from spark_ledger.limits.metadata import METADATA_READS_IN_FLIGHT_MAX
from spark_ledger.limits.repair import (
    AUDIT_INTERVAL_S,
    AUDIT_READS_PER_S,
    LOST_BOOKIE_DELAY_S,
    MASS_LOSS_SHARE,
    REPAIR_PASS_S,
)
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.json_nodes import read_or_renew, write_node
from spark_ledger.metadata.ledgers import LEDGERS_PATH, LedgerStore, is_unreadable
from spark_ledger.metadata.unsettled import pages_in_use
from spark_ledger.repair.lost import Losses, losses
from spark_ledger.repair.nodes import (
    COUNTS_PATH,
    FAILED_PATH,
    PRIORITIES,
    STATE_PATH,
    AuditState,
    RepairCounts,
    leaving,
    mark,
    mark_root,
    write_seen,
)
from spark_ledger.repair.plan import all_names, bytes_on, copies_left, final_fragments
from spark_ledger.types import (
    BookieId,
    BookieState,
    LedgerId,
    LedgerMetadata,
    PlacementPolicy,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditorConfig:
    """How long the auditor waits before it counts a bookie as lost."""

    lost_bookie_delay_s: float = LOST_BOOKIE_DELAY_S
    pass_s: float = REPAIR_PASS_S
    mass_loss_share: float = MASS_LOSS_SHARE
    audit_interval_s: float = AUDIT_INTERVAL_S
    reads_per_s: float = AUDIT_READS_PER_S


class _Bookies(NamedTuple):
    """The bookies at one look."""

    registered: frozenset[BookieId]
    known: frozenset[BookieId]
    """Those that are registered or have a cookie."""
    without_cookie: frozenset[BookieId]
    """Those that have none and are registered, or were: in a ZooKeeper that was restored to before
    its format a bookie runs on."""


class Auditor:
    """One auditor over one connection. Belongs to the loop of the client."""

    def __init__(
        self,
        client: LedgerClient,
        config: AuditorConfig | None = None,
        *,
        clock: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``wall``: time of day, by which the next auditor goes on too."""
        self._store: MetadataStore = client.store
        self._context = client.context
        self._config = config or AuditorConfig()
        self._clock = clock or asyncio.get_running_loop().time
        self._wall = wall
        self._ledgers = LedgerStore(self._store)
        self._registry = BookieRegistry(self._store)
        self._gone: GoneOwners | None = None
        """None: read what the auditor before has counted."""
        self._leaving_here: frozenset[BookieId] = frozenset()
        """Who leaves and was registered at a look: all ledgers are looked at once more when it is
        gone (rule R10)."""
        self._audited_at: float | None = None
        self.named_bytes = 0
        """What lost bookies have to hold of the ledgers that name them, as of the last audit."""
        self.misplaced = 0
        """Ledgers that it marked since they can be placed as the policy wants, and are not."""
        self.unreadable: LedgerError | None = None
        """Why a ledger could not be looked at at the last audit: it may name any bookie."""
        self._places: object = None
        """Those of the last audit, see ``_places_now``; or of the last look at which no other ones
        wanted an audit."""

    async def run(self, stop: asyncio.Event, is_elected: Callable[[], bool]) -> None:
        """Audit while elected, until ``stop`` is set. Outages are waited out."""

        async def run_pass() -> None:
            if is_elected():
                await self.run_pass()
            else:
                self._gone = None

        def on_error(error: LedgerError) -> None:
            logger.warning("the audit is broken off, the next one goes on: %s", error)

        await run_passes(stop, self._config.pass_s, run_pass, on_error)

    async def run_pass(self) -> Losses:
        """Look who is gone; mark what that costs. Raises what the store raises."""
        if self._store.restored:
            raise MetadataRestoredError(self._store.restored)
        before = await read_or_renew(self._store, AuditState(), STATE_PATH)
        state = AuditState() if before is None else before.value
        if self._gone is None:
            self._gone = GoneOwners(10 * self._config.pass_s + 60.0, state.gone_s)
        registered, known, without_cookie = await self._bookies(state)
        now = self._clock()
        gone_s = {}
        for bookie_id in known | without_cookie:
            if bookie_id in registered:
                self._gone.alive(bookie_id)
            else:
                gone_s[bookie_id] = self._gone.gone(bookie_id, now)
        self._gone.keep_only(gone_s)
        told = await leaving(self._store)
        audited = frozenset(map(BookieId, state.audited)) & (frozenset(gone_s) | told)
        self._leaving_here = told & (self._leaving_here | registered)
        audited -= self._leaving_here - registered
        found = losses(
            known | without_cookie,
            gone_s,
            told,
            audited,
            delay_s=self._config.lost_bookie_delay_s,
            share_max=self._config.mass_loss_share,
        )
        if found.stopped and found.stopped != state.stopped:
            logger.error("%s", found.stopped)
        now_ms = round(1000 * self._wall())
        # Not in the future: a clock may have been ahead, perhaps by years.
        audit_time_ms = min(state.audit_time_ms or now_ms, now_ms)
        audited_at = now if self._audited_at is None else self._audited_at
        places = self._places_now()
        is_wanted = places != self._places and self._context.directory.policy != PlacementPolicy()
        due = now - audited_at > self._config.audit_interval_s or is_wanted
        due = due or now_ms - audit_time_ms > 1000 * self._config.audit_interval_s
        due = due and not found.stopped
        if found.lost - audited or due:
            try:
                # Those of before, too: a mark may have been lost, or have gone too early.
                await self.audit(found.lost | audited, known)
            except LedgerError:  # it may fail each time: who else is gone is seen all the same
                names, gone = tuple(sorted(without_cookie)), self._gone.saved()
                seen = msgspec.structs.replace(state, gone_s=gone, without_cookie=names)
                await write_seen(self._store, seen, before)
                raise
            audited, self._audited_at = found.lost | audited, now
            self._leaving_here &= registered
            audit_time_ms = round(1000 * self._wall())
            self._places = places
        else:
            self._audited_at = audited_at
            if not is_wanted:  # else it stays wanted until an audit was made
                self._places = places
        after = AuditState(
            time_ms=time.time_ns() // 1_000_000,
            gone_s=self._gone.saved(),
            without_cookie=tuple(sorted(without_cookie - (audited - registered))),
            audited=tuple(sorted(audited)),
            audit_time_ms=audit_time_ms,
            stopped=found.stopped,
        )
        await write_seen(self._store, after, before)
        await self._count(len(audited | found.lost))
        return found

    def _places_now(self) -> object:
        """The policy, and the racks to place copies in: with others all ledgers are looked at."""
        directory = self._context.directory
        return directory.policy, frozenset(info.rack for info in directory.writable())

    async def _count(self, lost: int) -> None:
        """Write down how much is marked, if that has changed."""
        by_copies = [await _count_ids(self._store, mark_root(copies)) for copies in PRIORITIES]
        counts = RepairCounts(
            lost=lost,
            marked=sum(by_copies),
            marked_at_one=sum(by_copies[:2]),
            failing=await _count_ids(self._store, FAILED_PATH),
            misplaced=self.misplaced,
        )
        known = await read_or_renew(self._store, RepairCounts(), COUNTS_PATH)
        if known is None or known.value != counts:
            with contextlib.suppress(ConflictError, NotFoundError):
                await write_node(self._store, COUNTS_PATH, counts, known)

    async def _bookies(self, state: AuditState) -> _Bookies:
        """Who is there, and who was there at looks before."""
        registered: set[BookieId] = set()
        for each in (BookieState.WRITABLE, BookieState.READ_ONLY):
            registered.update((await self._registry.names(each)).value)
        cookies = frozenset(await self._registry.list_cookies())
        seen = state.known_here_only | registered
        return _Bookies(frozenset(registered), cookies | registered, seen - cookies)

    # -- all ledgers -------------------------------------------------------------------------------

    async def audit(
        self, lost: Collection[BookieId], known: Collection[BookieId] | None = None
    ) -> int:
        """Read the metadata of all ledgers, and mark those that name a lost bookie; how many do.

        A bookie that is not ``known`` has no cookie and is not registered: it cannot come back, and
        is lost as well. Page by page, at a bounded rate: never all at once. A ledger whose node
        cannot be read is left out, see ``unreadable``.
        """
        marked, gone = 0, frozenset(lost)
        self.named_bytes = self.misplaced = 0
        self.unreadable = None
        logger.info("all ledgers are looked at; lost or leaving: %s", ", ".join(sorted(gone)))
        async for page in pages_in_use(self._store, LEDGERS_PATH):
            for start in range(0, len(page.ids), METADATA_READS_IN_FLIGHT_MAX):
                part = page.ids[start : start + METADATA_READS_IN_FLIGHT_MAX]
                looks = await asyncio.gather(*(self._look(each, gone, known) for each in part))
                marked += sum(looks)
                await asyncio.sleep(len(part) / self._config.reads_per_s)
        logger.info("%d ledgers lack copies", marked)
        return marked

    async def _look(
        self, ledger_id: LedgerId, lost: frozenset[BookieId], known: Collection[BookieId] | None
    ) -> bool:
        try:
            ledger = (await self._ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            return False
        except LedgerError as error:
            if not is_unreadable(error):
                raise
            self._skip(ledger_id, error)
            return False
        if known is not None:
            lost |= all_names(ledger).difference(known)
        named = all_names(ledger) & lost
        if not named:
            if self._is_to_be_moved(ledger, lost):
                self.misplaced += 1
                await mark(self._store, ledger_id, named, ledger.quorums.write_quorum)
            return False
        self.named_bytes += bytes_on(ledger, named)
        await mark(self._store, ledger_id, named, copies_left(ledger, lost))
        return True

    def _skip(self, ledger_id: LedgerId, error: LedgerError) -> None:
        """A ledger whose node says nothing keeps no other from its copies (rule R6)."""
        if self.unreadable is None:
            logger.error("ledger %d, and others like it, cannot be audited: %s", ledger_id, error)
        self.unreadable = self.unreadable or error

    def _is_to_be_moved(self, ledger: LedgerMetadata, lost: frozenset[BookieId]) -> bool:
        """Whether a final fragment does not adhere to the policy, and can (rule R15)."""
        moves, quorums = self._context.moves, ledger.quorums
        return any(moves(each.bookies, quorums, lost) for each in final_fragments(ledger))


async def _count_ids(store: MetadataStore, path: str) -> int:
    return sum([len(page.ids) async for page in pages_in_use(store, path)])
