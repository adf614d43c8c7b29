"""The head as it is watched: read once per change, and no change is missed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.errors import MetadataRestoredError, NoSuchStreamError
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


def test_wait_through_a_handle_that_was_closed_watches_as_long_as_it_lasts() -> None:
    """Who follows a stream keeps its handle; somebody else has closed it, as the last user did."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        other, streams = another(ledgers)
        waiter = await streams.open("s")
        watches = other.store._watches
        waits = [
            asyncio.ensure_future(waiter.wait_for_commit(after_segment=0, timeout_s=s))
            for s in (0.01, 30)
        ]
        await asyncio.sleep(0)
        await waiter.close()
        await waits[0]
        assert len(watches) == 1, "the other one still waits"
        await stream.append(table(0))
        assert (await waits[1]).next_segment == 1
        assert watches == []
        assert (await waiter.wait_for_commit(after_segment=1, timeout_s=0.01)).next_segment == 1
        assert watches == [], "nor does a later one leave its own"

    run(scenario())


def test_tail_of_a_stream_that_went_back_fails_before_it_passes_over_rows() -> None:
    """After a restore of ZooKeeper numbers that the tail has read are given to other commits."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        await stream.append(table(0))
        store, path = another(ledgers)[0].store, "streams/s/head"
        backup = (await store.get(path)).value
        await stream.append(table(1))
        reader = await another(ledgers)[1].open("s")
        tail = reader.tail(start="earliest", idle_timeout=30)
        assert [(await anext(tail)).num_rows for _ in range(2)] == [1, 1]
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
        await store.put(path, backup, (await store.get(path)).version)
        with pytest.raises(MetadataRestoredError, match=r"has 1 commits.* seen 2.*restored"):
            await waiting

    run(scenario())


def test_head_of_a_server_that_lags_behind_is_asked_for_again() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        other, streams = another(ledgers)
        reader = await streams.open("s")
        stale = await other.store.get("streams/s/head")
        await stream.append(table(0))
        assert (await reader.head()).next_commit == 1
        inner = other.store.get

        async def lags(path: str) -> Versioned[bytes]:
            return stale if path == "streams/s/head" else await inner(path)

        other.store.get = lags  # type: ignore[method-assign]
        assert (await reader.head()).next_commit == 1

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
        watch = HeadWatch(stream._nodes, stream.config.stream_id, stream._log.history)
        inner = stream._nodes.head

        async def overtaken(*, latest: bool = False) -> Versioned[Head]:
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


def test_wait_goes_on_after_another_has_closed_the_handle() -> None:
    """Two threads share a stream: one leaves its ``with``, and the other still follows."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        waiter = await another(ledgers)[1].open("s")
        waiting = asyncio.ensure_future(waiter.wait_for_commit(after_segment=0, timeout_s=None))
        await asyncio.sleep(0.01)
        await waiter.close()
        await asyncio.sleep(0.01)
        await stream.append(table(0))
        async with asyncio.timeout(5):
            assert (await waiting).next_segment == 1

    run(scenario())


def test_wait_ends_at_its_timeout_however_often_the_head_changes() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        waiter = await another(ledgers)[1].open("s")
        waiting = asyncio.ensure_future(waiter.wait_for_commit(after_segment=0, timeout_s=0.5))
        loop = asyncio.get_running_loop()
        until = loop.time() + 5.0
        while not waiting.done() and loop.time() < until:
            await stream.commit_segments([])  # the head changes, and there is no row
            await asyncio.sleep(0.005)
        assert waiting.done()
        assert (await waiting).next_segment == 0

    run(scenario())


def test_wait_for_a_stream_that_is_made_again_says_so() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await new(ledgers)
        waiter = await another(ledgers)[1].open("s")
        waiting = asyncio.ensure_future(waiter.wait_for_commit(after_segment=0, timeout_s=None))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        streams = another(ledgers)[1]
        await streams.delete("s")
        stream = await streams.create("s", SCHEMA)
        await stream.append(table(0))
        async with asyncio.timeout(5):
            with pytest.raises(NoSuchStreamError):
                await waiting
        with pytest.raises(NoSuchStreamError):
            await waiter.head()
        await waiter.close()
        with pytest.raises(NoSuchStreamError):
            await waiter.head()

    run(scenario())


def test_waiter_that_leaves_takes_nobody_along() -> None:
    async def scenario() -> None:
        stream = await new()
        waiting = [
            asyncio.ensure_future(stream.wait_for_commit(after_segment=0, timeout_s=30))
            for _ in range(3)
        ]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting[1], 0.01)
        await stream.append(table(0))
        assert (await waiting[2]).next_segment == 1
        assert waiting[0].cancelled() and waiting[1].cancelled()

    run(scenario())


def test_head_that_was_asked_for_before_the_watch_stood_is_not_kept() -> None:
    """No event tells of a change that came before the watch: who waits then would wait for the next
    one, or for ever."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new(ledgers)
        other, streams = another(ledgers)
        watcher = await streams.open("s")
        inner = other.store.get
        on_the_way: list[asyncio.Event] = []

        async def answered_late(path: str) -> Any:
            answer = await inner(path)
            if path.endswith("/head") and len(on_the_way) < 2:
                on_the_way.append(asyncio.Event())
                await on_the_way[-1].wait()
            return answer

        other.store.get = answered_late  # type: ignore[method-assign]
        looking = asyncio.ensure_future(watcher.head())
        await asyncio.sleep(0.01)
        await stream.append(table(0))
        first = asyncio.ensure_future(watcher.wait_for_commit(after_segment=0, timeout_s=30))
        await asyncio.sleep(0.01)
        on_the_way[0].set()
        assert (await looking).next_segment == 0, "as it was when it was read"
        second = asyncio.ensure_future(watcher.wait_for_commit(after_segment=0, timeout_s=30))
        await asyncio.sleep(0.01)
        on_the_way[1].set()
        async with asyncio.timeout(5):
            assert [head.next_segment for head in (await first, await second)] == [1, 1]

    run(scenario())
