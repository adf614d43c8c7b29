"""The periodic check: asks every bookie which entries it holds, and marks ledgers with holes.

No bookie has to be lost for that: a disk that was wiped, a flush that failed, or an entry that
reached the ack quorum only (rule R12).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConflictError,
    LedgerError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.keeper.passes import run_passes
from spark_ledger.limits.repair import (
    CHECK_HUNG_S,
    CHECK_INTERVAL_S,
    CHECK_PASS_S,
    CHECKED_MEMBERS_PER_S,
    CLOSED_PASS_S,
)
from spark_ledger.metadata.json_nodes import encode_node, read_or_renew
from spark_ledger.metadata.ledgers import LEDGERS_PATH, LedgerStore, is_unreadable
from spark_ledger.metadata.unsettled import pages
from spark_ledger.repair.held import held_parts
from spark_ledger.repair.nodes import CHECK_PATH, CheckState, mark
from spark_ledger.repair.plan import (
    FinalFragment,
    all_names,
    copies_left,
    final_fragments,
    lane_copies,
)
from spark_ledger.tasks import Throttle
from spark_ledger.types import BookieId, LedgerId, LedgerMetadata, Versioned

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckerConfig:
    """How often, and how fast."""

    interval_s: float = CHECK_INTERVAL_S
    """From the end of one check to the next; 0: none is made."""
    members_per_s: float = CHECKED_MEMBERS_PER_S
    pass_s: float = CHECK_PASS_S
    closed_pass_s: float = CLOSED_PASS_S
    """How often ledgers that were closed are looked for (rule R14)."""


class Checked(NamedTuple):
    """What a check of one ledger saw."""

    is_closed: bool
    """Or it is gone, or its node cannot be read. Of an open ledger the last fragment was not looked
    at."""
    lacks: bool = False
    silent: bool = False
    """A member did not answer."""


class Checker:
    """One checker over one connection. Belongs to the loop of the client."""

    def __init__(
        self,
        client: LedgerClient,
        config: CheckerConfig | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: time of day, since the next keeper goes by it too."""
        self._store = client.store
        self._transport = client.context.transport
        self._moves = client.context.moves
        self._timeout_s = client.context.config.read_timeout_s
        self._ledgers = LedgerStore(self._store)
        self._config = config or CheckerConfig()
        self._clock = clock
        self._rate = Throttle(self._config.members_per_s)
        """Of questions."""
        self._hung: dict[BookieId, float] = {}
        """Bookies that let a question time out, and when they are asked again, by the loop's clock.
        Else ten thousand ledgers of one such bookie would take a day."""

    async def run(self, stop: asyncio.Event, is_elected: Callable[[], bool]) -> None:
        """Check when it is due, while elected, until ``stop`` is set. Outages are waited out."""

        async def run_pass() -> None:
            if is_elected() and self._config.interval_s > 0:
                await self.run_pass(is_elected)

        def on_error(error: LedgerError) -> None:
            if isinstance(error, ConflictError | NotFoundError):
                logger.info("another keeper goes on with the check")
            else:
                logger.warning("the check is broken off, and goes on later: %s", error)

        await run_passes(stop, self._config.pass_s, run_pass, on_error, pauses_first=True)

    async def run_pass(self, is_elected: Callable[[], bool] = lambda: True) -> bool:
        """Check all ledgers if that is due, from where the last keeper stopped; whether it was."""
        known = await read_or_renew(self._store, CheckState(), CHECK_PATH)
        now_ms = round(self._clock() * 1000)
        if known is None:  # the first one is due an interval after the cluster was made
            await self._write(CheckState(ended_ms=now_ms), None)
            return False
        state = known.value
        if not state.begun_ms:
            if now_ms < state.ended_ms:  # by a clock that was ahead, perhaps by years
                await self._write(msgspec.structs.replace(state, ended_ms=now_ms), known)
                return False
            if now_ms - state.ended_ms < 1000 * self._config.interval_s:
                return False
            state = CheckState(begun_ms=now_ms, ended_ms=state.ended_ms)
            known = await self._write(state, known)
        async for page in pages(self._store, LEDGERS_PATH):
            todo = [each for each in page.ids if each > state.after]
            if not todo:
                continue
            holes = 0
            for ledger_id in todo:
                if not is_elected():
                    return False
                holes += (await self.check(ledger_id)).lacks
            state = msgspec.structs.replace(
                state,
                after=max(todo),
                ledgers=state.ledgers + len(todo),
                with_holes=state.with_holes + holes,
            )
            known = await self._write(state, known)
        ended = CheckState(
            ended_ms=round(self._clock() * 1000),
            ledgers=state.ledgers,
            with_holes=state.with_holes,
            restored=state.restored,
        )
        await self._write(ended, known)
        logger.info(
            "%d ledgers were checked, %d of them have holes", state.ledgers, state.with_holes
        )
        return True

    async def check(self, ledger_id: LedgerId, lost: frozenset[BookieId] = frozenset()) -> Checked:
        """Mark a ledger of which a bookie that answers lacks entries, or that names a ``lost`` one,
        or that does not adhere to the placement policy and can (rule R15).

        All ledgers were looked at when a bookie was found lost, and this one may name it since: its
        writer had not heard of that yet.
        """
        try:
            ledger = (await self._ledgers.read(ledger_id)).value
        except NoSuchLedgerError:
            return Checked(is_closed=True)
        except LedgerError as error:
            if not is_unreadable(error):
                raise
            logger.warning("ledger %d cannot be checked: %s", ledger_id, error)
            return Checked(is_closed=True)
        poor, silent = 0, False
        for fragment in final_fragments(ledger):
            if fragment.last < fragment.first:
                continue
            lacking = 0
            for index, bookie_id in enumerate(fragment.bookies):
                if bookie_id in lost:
                    continue
                await self._rate.take(1)
                lacks = await self._lacks(ledger, fragment, index)
                silent = silent or lacks is None
                lacking += lacks is True
            poor = max(poor, lacking)
        if named := all_names(ledger) & lost:
            await mark(self._store, ledger_id, named, copies_left(ledger, lost))
        quorums, members = ledger.quorums, [each.bookies for each in final_fragments(ledger)]
        if poor or any(self._moves(each, quorums, ()) for each in members):
            copies = max(0, ledger.quorums.write_quorum - poor)
            await mark(self._store, ledger_id, frozenset(), copies)
        return Checked(ledger.is_closed, poor > 0 or bool(named), silent)

    async def _lacks(
        self, ledger: LedgerMetadata, fragment: FinalFragment, index: int
    ) -> bool | None:
        """Whether a member says that it has not all that it should have; None: it says nothing."""
        bookie_id, loop = fragment.bookies[index], asyncio.get_running_loop()
        if loop.time() < self._hung.get(bookie_id, 0.0):
            return None
        lanes = lane_copies(ledger, fragment, index, lost=())
        parts = held_parts(
            self._transport,
            bookie_id,
            ledger.ledger_id,
            fragment.first,
            fragment.last,
            timeout_s=self._timeout_s,
        )
        asked_at = loop.time()
        async for part in parts:
            if part.ranges is None:
                if loop.time() - asked_at >= 0.9 * self._timeout_s:
                    self._hung[bookie_id] = loop.time() + CHECK_HUNG_S
                return None
            if part.missing(lanes):
                return True
            asked_at = loop.time()
        return False

    async def _write(
        self, state: CheckState, before: Versioned[CheckState] | None
    ) -> Versioned[CheckState]:
        """The node with the version of this write: what is written right behind it, such as the
        check of a restore, is not gone over. Raises ConflictError if it has changed since."""
        if before is None:
            await self._store.create(CHECK_PATH, encode_node(state))
            return Versioned(state, 0)
        version = await self._store.put(CHECK_PATH, encode_node(state), before.version)
        return Versioned(state, version)
