"""Whether the elected keeper reaches bookies at all: one that only reaches the metadata store would
stay elected, recover nothing, and have nobody else try (rule K6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from spark_ledger.client.context import ClientContext
from spark_ledger.errors import BookieUnavailableError, LedgerError
from spark_ledger.limits.client import READ_TIMEOUT_S
from spark_ledger.limits.keeper import REACH_ASKED_MAX, REACH_LOOK_S, REACH_LOOKS
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.tasks import wait_at_most
from spark_ledger.types import BookieId, BookieState


async def watch_reach(
    context: ClientContext, stop: asyncio.Event, is_elected: Callable[[], bool]
) -> None:
    """Look every minute until ``stop`` is set. A look without the metadata store counts for none,
    and neither does one that finds no bookie registered: then there is nothing to reach.

    Raises BookieUnavailableError if too few have answered for ten minutes while this one is
    elected: then another process is to be the keeper.
    """
    looks_without = 0
    while not stop.is_set():
        bookies = await _registered(context) if is_elected() else []
        looks_without = looks_without + 1 if bookies and not await _reaches(context, bookies) else 0
        if looks_without >= REACH_LOOKS:
            raise BookieUnavailableError(
                f"this keeper has reached the metadata store and hardly any of the {len(bookies)} "
                f"registered bookies for {REACH_LOOKS * REACH_LOOK_S / 60:.0f} minutes: it ends, "
                "so that one elsewhere is elected. Look at the network between this host and "
                "theirs, and at their names"
            )
        await wait_at_most(stop, REACH_LOOK_S)


async def _registered(context: ClientContext) -> list[BookieId]:
    """Who is registered now; nobody while the metadata store is away: its outage is waited out, and
    whoever came instead could not be elected."""
    registry = BookieRegistry(context.store)
    try:
        names = [(await registry.names(state)).value for state in BookieState]
    except LedgerError:
        return []
    return sorted(set[BookieId]().union(*names))


async def _reaches(context: ClientContext, bookies: Sequence[BookieId]) -> bool:
    """Whether more than one bookie answers: the first one may be on this host. Of two one will
    do."""
    asked = random.sample(bookies, min(REACH_ASKED_MAX, len(bookies)))
    answers = await asyncio.gather(*(_answers(context, each) for each in asked))
    return sum(answers) >= min(2, max(len(bookies) - 1, 1))


async def _answers(context: ClientContext, bookie_id: BookieId) -> bool:
    try:
        await context.transport.describe(bookie_id, timeout_s=READ_TIMEOUT_S)
    except LedgerError:
        return False
    return True
