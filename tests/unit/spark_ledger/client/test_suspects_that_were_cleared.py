"""Bookies that answer somebody else while a choice waits for others are chosen."""

from __future__ import annotations

import asyncio
from typing import Any

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits.client import BOOKIE_PROBE_HOLDS_S, BOOKIE_PROBE_TIMEOUT_S
from spark_ledger.types import BookieId, Quorums
from tests.unit.spark_ledger.client.world import World, run_virtually


def test_bookie_that_another_has_found_back_meanwhile_is_chosen() -> None:
    """It refused the first question; another bookie is silent, and the choice waits for it."""

    async def test(world: World) -> None:
        client = await world.client()
        context, refusals = client.context, [1]
        describe = context.transport.describe

        async def answer(bookie_id: BookieId, *, timeout_s: float) -> Any:
            if bookie_id == "b2":
                await asyncio.sleep(timeout_s)
                raise BookieUnavailableError("b2 is silent")
            if bookie_id == "b1" and refusals:
                refusals.pop()
                raise BookieUnavailableError("b1 is starting")
            return await describe(bookie_id, timeout_s=timeout_s)

        context.transport.describe = answer  # type: ignore[method-assign]
        for name in ("b1", "b2"):
            context.suspect(BookieId(name))
        choosing = asyncio.create_task(context.new_ensemble(Quorums(2, 2, 2)))
        await asyncio.sleep((BOOKIE_PROBE_HOLDS_S + BOOKIE_PROBE_TIMEOUT_S) / 2)
        assert not choosing.done() and not refusals
        assert await context.suspects.answers(BookieId("b1")), "as another writer asks"
        chosen = await choosing
        assert chosen is not None and set(chosen) == {"b0", "b1"}

    run_virtually(test)
