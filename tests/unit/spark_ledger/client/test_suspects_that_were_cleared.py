"""Bookies that answer again: when they are chosen, and when others are preferred."""

from __future__ import annotations

import asyncio
from typing import Any

from spark_ledger.client.suspects import Suspects
from spark_ledger.errors import BookieUnavailableError
from spark_ledger.limits.client import BOOKIE_PROBE_HOLDS_S, BOOKIE_PROBE_TIMEOUT_S
from spark_ledger.types import BookieId, Quorums
from tests.unit.spark_ledger.client.test_replacements import ENSEMBLE, replaced
from tests.unit.spark_ledger.client.test_suspects import Probed
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.virtual_time import run_in_virtual_time


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


def test_failed_bookie_that_answers_again_does_not_come_back_where_another_was_found() -> None:
    """It would be replaced by itself, and fail the next entry as well: that one flaps."""

    async def test(world: World) -> None:
        client = await world.client()
        for _ in range(20):
            chosen = await replaced(client, 0, 2)
            assert set(chosen.replacements.values()) == {"b3", "b4"}
        await world._registries[BookieId("b4")].deregister()
        await client.list_bookies()
        chosen = await replaced(client, 0)
        assert chosen.replacements == {0: "b3"}
        chosen = await replaced(client, 0, 2)
        (other,) = {0, 2} - {i for i, b in chosen.replacements.items() if b == "b3"}
        assert chosen.replacements[other] == ENSEMBLE[other], "there is no other for this place"

    run_virtually(test, bookies=5)


def test_caller_that_fails_without_an_answer_takes_none_of_a_moment_ago() -> None:
    """Neither a good one nor a bad one: bookies come and go within half a second."""

    async def main() -> None:
        transport = Probed("b")
        suspects, name = Suspects(transport), BookieId("b")
        for is_there in (True, False, True):
            transport.answering = {"b"} if is_there else set()
            assert await suspects.answers(name, ask_now=True) is is_there
            transport.answering = set() if is_there else {"b"}
            assert await suspects.answers(name) is is_there, "what has just been found out"
        assert transport.asked == ["b"] * 3
        await suspects.close()

    run_in_virtual_time(main())
