"""Turns: who was added is called once the turn is over, whatever becomes of the others."""

from __future__ import annotations

import asyncio

from spark_ledger.client.turns import Turns


def test_all_of_one_turn_are_called_behind_it_and_once() -> None:
    called: list[str] = []

    async def run() -> None:
        turns = Turns()
        turns.add(lambda: called.append("a"))
        turns.add(lambda: called.append("b"))
        assert called == []
        await asyncio.sleep(0)
        assert called == ["a", "b"]
        turns.add(lambda: called.append("c"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert called == ["a", "b", "c"]


def test_one_that_is_added_by_another_has_the_next_turn() -> None:
    called: list[str] = []

    async def run() -> None:
        turns = Turns()
        turns.add(lambda: turns.add(lambda: called.append("later")))
        await asyncio.sleep(0)
        assert called == []
        await asyncio.sleep(0)

    asyncio.run(run())
    assert called == ["later"]


def test_one_that_raises_keeps_no_other_from_its_call() -> None:
    called: list[str] = []
    seen: list[object] = []

    def fail() -> None:
        raise AssertionError("a bug")

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: seen.append(context["exception"])
        )
        turns = Turns()
        turns.add(fail)
        turns.add(lambda: called.append("next"))
        await asyncio.sleep(0)

    asyncio.run(run())
    assert called == ["next"] and [str(error) for error in seen] == ["a bug"]
