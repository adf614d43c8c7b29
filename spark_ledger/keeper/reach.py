"""Whether the elected keeper reaches bookies at all: one that only reaches the metadata store would
stay elected, recover nothing, and have nobody else try (rule K6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from spark_ledger.client.context import ClientContext
from spark_ledger.errors import BookieUnavailableError, LedgerError
from spark_ledger.limits.client import READ_TIMEOUT_S
from spark_ledger.limits.keeper import REACH_ASKED_MAX, REACH_LOOK_S, REACH_LOOKS
from spark_ledger.tasks import wait_at_most
from spark_ledger.types import BookieId


async def watch_reach(
    context: ClientContext, stop: asyncio.Event, is_elected: Callable[[], bool]
) -> None:
    """Look every minute until ``stop`` is set.

    Raises BookieUnavailableError if too few have answered for ten minutes while this one is
    elected: then another process is to be the keeper.
    """
    looks_without = 0
    while not stop.is_set():
        is_without = is_elected() and not await _reaches(context)
        looks_without = looks_without + 1 if is_without else 0
        if looks_without >= REACH_LOOKS:
            raise BookieUnavailableError(
                f"this keeper has reached the metadata store and hardly any of the "
                f"{len(context.directory.all())} registered bookies for "
                f"{REACH_LOOKS * REACH_LOOK_S / 60:.0f} minutes: it ends, so that one elsewhere is "
                "elected. Look at the network between this host and theirs, and at their names"
            )
        await wait_at_most(stop, REACH_LOOK_S)


async def _reaches(context: ClientContext) -> bool:
    """Whether more than one bookie answers: the first one may be on this host. Of two one will do,
    and where none is registered there is nothing to reach."""
    bookies = [info.bookie_id for info in context.directory.all()]
    asked = random.sample(bookies, min(REACH_ASKED_MAX, len(bookies)))
    answers = await asyncio.gather(*(_answers(context, each) for each in asked))
    return sum(answers) >= min(2, max(len(bookies) - 1, 1)) or not bookies


async def _answers(context: ClientContext, bookie_id: BookieId) -> bool:
    try:
        await context.transport.describe(bookie_id, timeout_s=READ_TIMEOUT_S)
    except LedgerError:
        return False
    return True
