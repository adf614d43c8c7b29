"""Several streams together: who waits for any of them, and the handles that are kept of them."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.several import AppendedStreams, wait_for_any
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, another, table
from tests.unit.virtual_time import run_in_virtual_time

WAITS_S = 60.0


async def three() -> tuple[FakeLedgers, list[Stream]]:
    ledgers = FakeLedgers()
    return ledgers, [await StreamCatalog(ledgers).create(name, SCHEMA) for name in "abc"]


@pytest.mark.parametrize("how", ["commit", "deletion"])
@pytest.mark.parametrize("which", ["a", "b", "c"])
def test_wait_for_any_ends_with_the_first_news_and_leaves_no_task(how: str, which: str) -> None:
    async def test() -> None:
        ledgers, streams = await three()
        before, loop = asyncio.all_tasks(), asyncio.get_running_loop()
        began = loop.time()
        waiting = asyncio.create_task(wait_for_any([(each, 0) for each in streams], WAITS_S))
        await asyncio.sleep(1)
        waits = asyncio.all_tasks() - before
        _, catalog = another(ledgers)
        if how == "commit":
            await (await catalog.open(which)).append(table(0))
        else:
            await catalog.delete(which)
        await waiting
        assert loop.time() - began < 2
        assert len(waits) == 4 and all(task.done() for task in waits)

    run_in_virtual_time(test())


def test_wait_for_any_without_news_ends_at_its_time() -> None:
    async def test() -> None:
        _, streams = await three()
        began = asyncio.get_running_loop().time()
        await wait_for_any([(each, 0) for each in streams], WAITS_S)
        assert asyncio.get_running_loop().time() - began == pytest.approx(WAITS_S)

    run_in_virtual_time(test())


def test_wait_for_any_whose_caller_leaves_waits_no_more() -> None:
    async def test() -> None:
        _, streams = await three()
        before = asyncio.all_tasks()
        waiting = asyncio.create_task(wait_for_any([(each, 0) for each in streams], WAITS_S))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=1)
        assert waiting.cancelled()
        assert asyncio.all_tasks() <= before

    run_in_virtual_time(test())


def test_handle_of_a_stream_that_was_made_again_closes_its_ledger() -> None:
    async def test() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        await streams.create("a", SCHEMA)
        appended = AppendedStreams(streams)
        for _ in range(3):
            commits = await appended.append_to({"a": table(0)})
            ledger = ledgers.ledgers[commits["a"].segments[0].ledger_id]
            assert not ledger.closed, "it is kept for the next rows"
            _, others = another(ledgers)
            await others.delete("a")
            await others.create("a", SCHEMA)
            assert (await appended.append_to({"a": table(1)}))["a"].number == 0
            assert ledger.closed
        await appended.close()
        assert all(each.closed for each in ledgers.ledgers.values())

    run_in_virtual_time(test())
