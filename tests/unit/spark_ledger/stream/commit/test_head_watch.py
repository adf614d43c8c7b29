"""The head as it is watched: read once per change, and no change is missed."""

from __future__ import annotations

import asyncio
from typing import Any

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.head_watch import HeadWatch
from spark_ledger.stream.model import Head
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, Faults, another, loose, run, table


async def new(ledgers: FakeLedgers | None = None) -> Stream:
    return await StreamCatalog(ledgers or FakeLedgers()).create("s", SCHEMA)


def test_wait_reads_the_head_once_per_change() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        faults = Faults([])
        waiter = await another(ledgers, faults)[1].open("s")
        head = await waiter.wait_for_commit(after_segment=0, timeout_s=0.01)
        assert head.next_segment == 0
        before = faults.count("get")
        for _ in range(20):
            assert (await waiter.head()).next_segment == 0
        assert faults.count("get") == before, "while a watch stands the head is cached"
        waiting = [
            asyncio.ensure_future(waiter.wait_for_commit(after_segment=0, timeout_s=30))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        await stream.append(table(0))
        for head in await asyncio.gather(*waiting):
            assert head.next_segment == 1
        assert (await waiter.head()).next_segment == 1
        await waiter.close()
        await stream.append(table(1))
        assert (await waiter.head()).next_segment == 2, "without a watch it is read"

    run(scenario())


def test_current_head_changed_during_read_is_not_cached() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        other, streams = another(ledgers)
        watcher = await streams.open("s")
        await watcher.wait_for_commit(after_segment=0, timeout_s=0.001)
        inner = other.store.get
        asked, answered = asyncio.Event(), asyncio.Event()

        async def answered_late(path: str) -> Any:
            answer = await inner(path)
            if path.endswith("/head") and not asked.is_set():
                asked.set()
                await answered.wait()
            return answer

        other.store.get = answered_late  # type: ignore[method-assign]
        await stream.append(table(0))
        await asyncio.sleep(0)  # the watch fires
        reading = asyncio.ensure_future(watcher.head())
        await asked.wait()
        await stream.append(table(1))
        await asyncio.sleep(0)  # the watch fires again
        answered.set()
        assert (await reading).next_segment == 1, "as it was when it was read"
        assert (await watcher.head()).next_segment == 2

    run(scenario())


def test_current_after_own_commit_is_new_while_watching() -> None:
    async def scenario() -> None:
        stream = await new()
        await stream.wait_for_commit(after_segment=0, timeout_s=0.001)
        await stream.append(table(0))
        assert (await stream.head()).next_segment == 1

    run(scenario())


def test_wait_head_changed_during_read_returns_at_once() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        watch = HeadWatch(stream._nodes, stream.config.stream_id)
        inner = stream._nodes.head

        async def overtaken() -> Versioned[Head]:
            stream._nodes.head = inner  # type: ignore[method-assign]
            before = await inner()
            await stream.commit_segments([loose()])
            await asyncio.sleep(0.01)  # the change is told before the older answer is here
            return before

        stream._nodes.head = overtaken  # type: ignore[method-assign]
        async with asyncio.timeout(5):
            head = await watch.wait(after_segment=0, timeout_s=None)
        assert head.next_segment == 1
        watch.close()

    run(scenario())
