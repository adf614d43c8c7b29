"""Several at one stream at the same time: rows stay together, and no change is slept through."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from spark_ledger.limits import KIB
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.head_watch import HeadWatch
from spark_ledger.stream.model import Head
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, another, loose, numbers, run, table


def test_appends_at_the_same_time_keep_their_rows_together() -> None:
    async def scenario() -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA, entry_bytes=KIB)
        firsts = [1000 * n for n in range(6)]
        commits = await asyncio.gather(*(stream.append(table(first, 300)) for first in firsts))
        assert [commit.rows for commit in commits] == [300] * 6
        for first, commit in zip(firsts, commits, strict=True):
            rows = await numbers(
                stream.read((commit.first_segment,), (commit.end_segment,))  # only this commit's
            )
            assert rows == list(range(first, first + 300))
        await stream.close()

    run(scenario())


def test_segments_of_a_schema_that_another_process_added_are_committed() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        driver = await StreamCatalog(ledgers).create("s", SCHEMA)
        task = await another(ledgers)[1].open("s")
        writer = task.writer(merge_schema=True)
        await writer.write(pa.table({"n": [1], "text": ["x"], "more": [2.5]}))
        (segment,) = await writer.finish()
        assert segment.schema_version == 1
        assert driver.config.schema_version == 0, "it has not heard of it"
        commit = await driver.commit_segments([loose(), segment])
        assert [part.schema_version for part in commit.segments] == [0, 1]
        await writer.close()

    run(scenario())


def test_a_change_while_the_head_is_read_is_not_slept_through() -> None:
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
