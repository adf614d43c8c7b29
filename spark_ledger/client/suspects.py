"""Which bookies failed a moment ago, and whether they are back: asked once for all of a client.

Every writer that lost a bookie wants to know whether it answers again. Thousands of writers lose
it in the same second, so they share one question: it is asked once at a time, and what came out of
it holds for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from spark_ledger.errors import LedgerError
from spark_ledger.limits.client import (
    BOOKIE_FLAPS_MAX,
    BOOKIE_FLAPS_WITHIN_S,
    BOOKIE_LIED_S,
    BOOKIE_PROBE_HOLDS_S,
    BOOKIE_PROBE_TIMEOUT_S,
    BOOKIE_PROBES_MAX,
    BOOKIE_QUARANTINE_S,
    BOOKIE_SUSPECT_S,
)
from spark_ledger.tasks import cancel
from spark_ledger.transport.base import Transport
from spark_ledger.types import BookieId


class Suspects:
    """Bookies that failed an add, and probes of them. Belongs to one loop."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._until: dict[BookieId, float] = {}
        """Bookies that failed, each with the time until which it is probed before use."""
        self._liars: dict[BookieId, float] = {}
        """Bookies that answer probes and fail ledgers, each with the time until which others are
        preferred, whatever a probe brings."""
        self._quarantined: dict[BookieId, float] = {}
        """Bookies that fail and come back all the time, each with the end of its quarantine."""
        self._flaps: dict[BookieId, list[float]] = {}
        """When bookies failed lately, each outage once."""
        self._probes: dict[BookieId, asyncio.Task[bool]] = {}
        """The questions that are open."""
        self._found: dict[BookieId, tuple[float, bool]] = {}
        """What the last question to a bookie brought, and until when that holds."""
        self._probing = asyncio.Semaphore(BOOKIE_PROBES_MAX)

    def add(self, bookie_id: BookieId) -> None:
        """A bookie failed: prefer others for a while. That it answered before says nothing now."""
        now = asyncio.get_running_loop().time()
        self._until[bookie_id] = now + BOOKIE_SUSPECT_S
        self._count_flap(bookie_id, now)
        if self._found.get(bookie_id, (0.0, False))[1]:
            del self._found[bookie_id]

    def _count_flap(self, bookie_id: BookieId, now: float) -> None:
        """Note an outage; a bookie that has too many is in quarantine (rule P23).

        All writers of a client lose a bookie in the same moment: that is one.
        """
        known = self._flaps.get(bookie_id, [])
        if known and now - known[-1] < BOOKIE_SUSPECT_S:
            return
        recent = [*(t for t in known if now - t < BOOKIE_FLAPS_WITHIN_S), now]
        self._flaps[bookie_id] = recent
        if len(recent) >= BOOKIE_FLAPS_MAX:
            self._quarantined[bookie_id] = now + BOOKIE_QUARANTINE_S
            del self._flaps[bookie_id]

    def add_liar(self, bookie_id: BookieId) -> None:
        """A bookie said what the metadata disprove (rule P18): prefer others for longer. It answers
        a probe as if it were well, and would fail the next new ledger in the same way."""
        self._liars[bookie_id] = asyncio.get_running_loop().time() + BOOKIE_LIED_S

    def now(self) -> set[BookieId]:
        """Who is suspected."""
        now = asyncio.get_running_loop().time()
        for suspected in (self._until, self._liars, self._quarantined):
            for bookie_id in [bookie for bookie, until in suspected.items() if until <= now]:
                del suspected[bookie_id]
        return {*self._until, *self._liars}.union(self._quarantined)

    async def answers(self, bookie_id: BookieId, *, ask_now: bool = False) -> bool:
        """Whether a bookie answers; one that does is not suspected any more, unless it lied.

        ``ask_now`` is for a caller who fails if it does not: nothing is taken from before.
        """
        now = asyncio.get_running_loop().time()
        until, answered = self._found.get(bookie_id, (now, False))
        if until > now and not ask_now:
            return answered
        probe = self._probes.get(bookie_id)
        if probe is None:
            probe = self._probes[bookie_id] = asyncio.create_task(self._probe(bookie_id))
        try:
            # Others wait for it as well: a caller that leaves must not end it for them.
            return await asyncio.shield(probe)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not probe.cancelled() or (task is not None and task.cancelling()):
                raise
            return False  # the connection is being closed, and the caller has to hear of it

    async def answering(
        self, bookies: Iterable[BookieId], *, ask_now: bool = False
    ) -> AsyncGenerator[BookieId, None]:
        """Those that answer, asked side by side, in the order in which they do."""

        async def ask(bookie_id: BookieId) -> tuple[BookieId, bool]:
            return bookie_id, await self.answers(bookie_id, ask_now=ask_now)

        tasks = [asyncio.create_task(ask(bookie_id)) for bookie_id in sorted(set(bookies))]
        try:
            for answer in asyncio.as_completed(tasks):
                bookie_id, answered = await answer
                if answered:
                    yield bookie_id
        finally:
            await cancel(*tasks)

    async def close(self) -> None:
        """Ask nobody any more."""
        await cancel(*self._probes.values())

    async def _probe(self, bookie_id: BookieId) -> bool:
        answered = True
        try:
            async with self._probing:
                await self._transport.describe(bookie_id, timeout_s=BOOKIE_PROBE_TIMEOUT_S)
            self._until.pop(bookie_id, None)
        except LedgerError:
            answered = False
        finally:
            del self._probes[bookie_id]
        held_until = asyncio.get_running_loop().time() + BOOKIE_PROBE_HOLDS_S
        self._found[bookie_id] = (held_until, answered)
        return answered
