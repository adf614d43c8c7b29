"""Concurrent work: results in order, the first failure itself, and no task left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from spark_ledger.errors import (
    DataLossError,
)
from spark_ledger.stream.concurrency import prefetch, run_all
from tests.unit.spark_ledger.stream.world import run


def test_prefetch_raises_after_the_items_before_and_closes_its_source() -> None:
    closed = []

    async def source(fail: bool) -> AsyncGenerator[int, None]:
        try:
            for n in range(10):
                if fail and n == 6:
                    raise DataLossError("gone")
                yield n
        finally:
            closed.append(fail)

    async def scenario() -> None:
        assert [n async for n in prefetch(source(False), 2)] == list(range(10))
        seen = []
        with pytest.raises(DataLossError):
            async for n in prefetch(source(True), 2):
                seen += [n]
        assert seen == list(range(6))
        items = prefetch(source(False), 2)
        await anext(items)
        await items.aclose()
        assert closed == [False, True, False], "at once, and not with the loop"

    run(scenario())


def test_run_all_returns_results_in_the_order_given() -> None:
    async def result(n: int) -> int:
        await asyncio.sleep(0.001 * (3 - n))
        return n

    async def scenario() -> None:
        assert await run_all(result(n) for n in range(3)) == [0, 1, 2]
        assert await run_all([]) == []

    run(scenario())


def test_run_all_raises_the_first_failure_itself_and_cancels_the_rest() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise DataLossError("gone") from ValueError("why")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def scenario() -> None:
        with pytest.raises(DataLossError, match="gone") as caught:
            await run_all([waits(), fails(), waits()])
        assert isinstance(caught.value.__cause__, ValueError), "its own cause, no group"
        assert ended == ["cancelled"] * 2

    run(scenario())


def test_run_all_cancelled_cancels_its_work() -> None:
    async def scenario() -> None:
        never = asyncio.Event()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await run_all([never.wait(), never.wait()])

    run(scenario())


def test_prefetch_keeps_the_items_before_an_error_for_a_slow_reader() -> None:
    async def source() -> AsyncGenerator[int, None]:
        for n in range(3):
            yield n
        raise DataLossError("gone")

    async def scenario() -> None:
        seen = []
        items = prefetch(source(), 10)
        with pytest.raises(DataLossError):
            while True:
                seen.append(await anext(items))
                await asyncio.sleep(0.001)  # the source has failed long before
        assert seen == [0, 1, 2]

    run(scenario())


def test_prefetch_makes_no_more_than_was_asked_for_and_ends_with_its_reader() -> None:
    """A reader that stops in the middle, and later leaves."""
    made: list[int] = []
    closed: list[bool] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            for n in range(1000):
                made.append(n)
                yield n
        finally:
            closed.append(True)

    async def scenario() -> None:
        items = prefetch(source(), 4)
        for n in range(5):
            assert await anext(items) == n
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(made) <= n + 1 + 4 + 1, "one that waits for room, and those ahead"
        waiting = len(made)
        await asyncio.sleep(0.01)
        assert len(made) == waiting and not closed
        await items.aclose()
        assert closed == [True]

    run(scenario())


def test_prefetch_whose_reader_is_cancelled_closes_its_source() -> None:
    closed: list[bool] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 0
            await asyncio.sleep(3600)
        finally:
            closed.append(True)

    async def read() -> None:
        async with aclosing(prefetch(source(), 4)) as items:
            async for _ in items:
                pass

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), 0.01)
        assert closed == [True]

    run(scenario())
