"""What only a bookie has that is to go, and that nothing names for it.

Metadata that were restored from a backup name bookies that have given their copies back since. Who
holds them keeps them (rule G9), so one that is to go is asked what it holds (rule R13).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import BookieUnavailableError, LedgerError, NoSuchLedgerError
from spark_ledger.limits.repair import CHECK_HUNG_S, LOST_BOOKIE_DELAY_S
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.json_nodes import read_or_renew
from spark_ledger.metadata.ledgers import LEDGERS_PATH, LedgerStore, is_unreadable
from spark_ledger.metadata.unsettled import id_path, pages
from spark_ledger.repair.held import BusyPauses, held_parts
from spark_ledger.repair.nodes import (
    CHECK_PATH,
    FAILED_PATH,
    PRIORITIES,
    CheckState,
    FailedRepair,
    Mark,
    mark,
    mark_root,
)
from spark_ledger.repair.plan import (
    FinalFragment,
    LaneCopy,
    all_names,
    final_fragments,
    lane_copies,
    missing,
    within,
)
from spark_ledger.types import BookieId, BookieState, BookieStatus, LedgerId, LedgerMetadata

_TRIES = 3
"""A ledger that could not be repaired so often is not waited for, if others hold its entries: half
a minute, longer than most bookies take to start again."""

_NO_END = 2**62
"""Behind all entries of a ledger."""

Ranges = Sequence[tuple[int, int]]


class _Asked(NamedTuple):
    """What the members of a ledger say of the entries that the bookie holds."""

    is_only_here: bool = False
    """No member that answers holds one of them. Silence of a member is no copy."""
    is_lacking: bool = False
    """A member that answers lacks one of them."""
    silent: frozenset[BookieId] = frozenset()
    is_unknown: bool = False
    """The bookie does not say which of them it holds, and says so: a block is damaged, or its
    journal has failed. It may say it of other ledgers."""


class KeptCopies:
    """Asks about one bookie. Belongs to the loop of the client."""

    def __init__(self, client: LedgerClient, bookie_id: BookieId) -> None:
        self._store = client.store
        self._transport = client.context.transport
        self._timeout_s = client.context.config.read_timeout_s
        self._ledgers = LedgerStore(self._store)
        self._registry = BookieRegistry(self._store)
        self._bookie_id = bookie_id
        self._here: frozenset[BookieId] = frozenset()
        """Who was registered at the last look."""
        self._here_at: float | None = None
        """When the bookie was registered at a look, by the loop's clock."""
        self._copied: set[LedgerId] = set()
        """Ledgers that lack nothing which the bookie has: they are not asked for again."""
        self._hung: dict[BookieId, float] = {}
        """Members that let a question time out, and when they are asked again. Else a thousand
        ledgers of one such bookie would take hours."""
        self.asked: int | None = None
        """Ledgers that the look that is under way has asked for."""
        self.is_silent = False
        """Whether the bookie did not say at the last look what it holds."""

    async def count(self) -> int:
        """How many ledgers may lack what this bookie holds for nobody: none, if ZooKeeper was not
        restored. They are marked, so that a worker copies it.

        A bookie that is not registered cannot be asked, and holds nothing; but one that was so a
        few minutes ago may be starting again. One that runs and does not answer counts as one
        ledger. Raises what the metadata store raises.
        """
        self.is_silent = False
        known = await read_or_renew(self._store, CheckState(), CHECK_PATH)
        if known is None or not known.value.restored:
            return 0
        listed = [await self._registry.names(BookieState.WRITABLE)]
        listed.append(await self._registry.names(BookieState.READ_ONLY))
        self._here = frozenset(name for each in listed for name in each.value)
        now = asyncio.get_running_loop().time()
        if self._bookie_id in self._here:
            self._here_at = now
        elif self._here_at is None or now - self._here_at > LOST_BOOKIE_DELAY_S:
            return 0
        needed, self.asked = set[LedgerId](), 0
        try:
            async with aclosing(self._to_ask()) as found:
                async for ledger_id in found:
                    if ledger_id not in self._copied and await self._is_needed(ledger_id):
                        needed.add(ledger_id)
                    self.asked += 1
        except BookieUnavailableError:
            self.is_silent = True
        finally:
            self.asked = None
        return len(needed) + self.is_silent

    async def _to_ask(self) -> AsyncGenerator[LedgerId]:
        """What is marked, and what the bookie holds; some twice. Of a ledger that came a moment ago
        it may list nothing yet."""
        for copies in PRIORITIES:
            async for page in pages(self._store, mark_root(copies)):
                for ledger_id in page.ids:
                    yield ledger_id
        first, busy = LedgerId(0), BusyPauses(self._timeout_s)
        while True:
            status, held = await self._transport.list_ledgers(
                self._bookie_id, first, timeout_s=self._timeout_s
            )
            if status is BookieStatus.TOO_MANY_REQUESTS and await busy.pause():
                continue
            if status is not BookieStatus.OK:
                break
            for ledger_id in held:
                yield ledger_id
            if not held:
                return
            first = LedgerId(held[-1] + 1)
        if status is not BookieStatus.BAD_REQUEST:
            raise self._silence()
        async for page in pages(self._store, LEDGERS_PATH):  # of a version that does not list them
            for ledger_id in page.ids:
                yield ledger_id

    def _silence(self) -> BookieUnavailableError:
        return BookieUnavailableError(f"bookie {self._bookie_id} does not say what it holds")

    async def _is_needed(self, ledger_id: LedgerId) -> bool:
        try:
            ledger = (await self._ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            return False
        except LedgerError as error:
            if not is_unreadable(error):
                raise
            return False
        if self._bookie_id in all_names(ledger):
            return False
        asked = await self._ask(ledger, final_fragments(ledger))
        if asked.is_unknown:
            self.is_silent = True
            return True
        if not asked.is_only_here and not asked.is_lacking:
            if not ledger.is_closed:
                # Its members may lack what its writer has just sent; no worker changes it.
                return (await self._ask(ledger, [_open_fragment(ledger)])).is_only_here
            self._copied.add(ledger_id)
            return False
        # Who is not registered is not waited for (rule R1): the bookie would be gone by then.
        gone = asked.silent - self._here if asked.is_only_here else frozenset[BookieId]()
        await self._mark(ledger_id, gone, 0 if asked.is_only_here else 1)
        return asked.is_only_here or await self._tries(ledger_id) < _TRIES

    async def _mark(self, ledger_id: LedgerId, gone: frozenset[BookieId], copies: int) -> None:
        """Mark a ledger once: each time would have its worker begin anew."""
        path = id_path(mark_root(copies), ledger_id)
        known = await read_or_renew(self._store, Mark(bookies=()), path)
        if known is None or not gone <= set(known.value.bookies):
            await mark(self._store, ledger_id, gone, copies)

    async def _tries(self, ledger_id: LedgerId) -> int:
        path = id_path(FAILED_PATH, ledger_id)
        known = await read_or_renew(self._store, FailedRepair(reason="", tries=0), path)
        return 0 if known is None else known.value.tries

    async def _ask(self, ledger: LedgerMetadata, fragments: Iterable[FinalFragment]) -> _Asked:
        found = _Asked()
        for fragment in fragments:
            span = (ledger.ledger_id, fragment.first, fragment.last)
            async for part in held_parts(
                self._transport, self._bookie_id, *span, timeout_s=self._timeout_s
            ):
                if part.ranges is None:
                    if part.timed_out or part.is_away:
                        raise self._silence()
                    return _Asked(is_unknown=True)
                if part.ranges:
                    stretch = fragment._replace(first=part.first, last=part.last)
                    said = {
                        each: await self._say(each, ledger, stretch) for each in stretch.bookies
                    }
                    more = _compared(ledger, fragment, stretch, part.ranges, said)
                    found = _Asked(
                        found.is_only_here or more.is_only_here,
                        found.is_lacking or more.is_lacking,
                        found.silent | more.silent,
                    )
        return found

    async def _say(
        self, member: BookieId, ledger: LedgerMetadata, stretch: FinalFragment
    ) -> Ranges | None:
        """What a member holds of a stretch of entries; None: it says nothing."""
        loop, found = asyncio.get_running_loop(), list[tuple[int, int]]()
        if loop.time() < self._hung.get(member, 0.0):
            return None
        span = (ledger.ledger_id, stretch.first, stretch.last)
        async for part in held_parts(self._transport, member, *span, timeout_s=self._timeout_s):
            if part.ranges is None:
                if part.timed_out:
                    self._hung[member] = loop.time() + CHECK_HUNG_S
                return None
            found += part.ranges
        return found


def _open_fragment(ledger: LedgerMetadata) -> FinalFragment:
    """The one that a writer or a recovery may still add to."""
    last = ledger.last_fragment
    return FinalFragment(last.first_entry, _NO_END, tuple(last.bookies))


def _compared(
    ledger: LedgerMetadata,
    fragment: FinalFragment,
    stretch: FinalFragment,
    held: Ranges,
    said: dict[BookieId, Ranges | None],
) -> _Asked:
    is_only_here = is_lacking = False
    for index, member in enumerate(fragment.bookies):
        for lane in lane_copies(ledger, fragment, index, lost=()):
            part = within(lane, stretch.first, stretch.last)
            answers = [said[each] or () for each in lane.sources]
            is_only_here = is_only_here or _adds(part, held, answers)
            own = said[member]
            is_lacking = is_lacking or (own is not None and _adds(part, held, [own]))
    silent = frozenset(each for each, ranges in said.items() if ranges is None)
    return _Asked(is_only_here, is_lacking, silent)


def _adds(lane: LaneCopy, held: Ranges, others: Iterable[Ranges]) -> bool:
    """Whether a bookie holds an entry of a lane that none of the others holds."""
    known = sorted(each for ranges in others for each in ranges)
    return _lacking(lane, sorted([*known, *held])) < _lacking(lane, known)


def _lacking(lane: LaneCopy, held: Ranges) -> int:
    return sum((each.last - each.first) // each.stride + 1 for each in missing(lane, held))
