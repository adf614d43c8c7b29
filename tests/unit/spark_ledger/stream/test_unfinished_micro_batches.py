"""A micro-batch is finished as a whole or not at all, wherever its writing stopped."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    LedgerClosedError,
    RetryableError,
    SchemaMismatchError,
)
from spark_ledger.stream import segment_writer
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeWriter
from tests.unit.spark_ledger.stream.test_segment_writer import new_stream, rows_of
from tests.unit.spark_ledger.stream.world import SCHEMA, numbers, run, table


def test_finish_after_failed_write_is_refused() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0, 500))
        with pytest.raises(SchemaMismatchError):
            await writer.write(pa.table({"n": ["text"], "text": ["x"]}))
        with pytest.raises(RetryableError, match="write all of it again"):
            await writer.seal()
        await writer.write(table(0, 3))
        assert rows_of(ledgers, stream, await writer.finish()) == [0, 1, 2]

    run(scenario())


def test_abandoned_rows_are_in_no_segment() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0, 500))
        writer.abandon()
        assert await writer.finish() == []
        await writer.write(table(7))
        assert rows_of(ledgers, stream, await writer.finish()) == [7]
        assert len(ledgers.ledgers) == 1, "nothing failed in it"

    run(scenario())


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("then", [[], [7]])
def test_micro_batch_that_was_closed_between_two_writes_is_refused(
    then: list[int], rows: int
) -> None:
    """Somebody else closes the writer: the rows that follow are not the whole of it, whether those
    before were pushed or held."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0, rows))
        await writer.close()
        for number in then:
            await writer.write(table(number))
        with pytest.raises(RetryableError, match="write all of it again"):
            await writer.finish()
        await writer.write(table(5))
        assert rows_of(ledgers, stream, await writer.finish()) == [5]

    run(scenario())


def test_writer_that_was_closed_after_a_failure_or_a_whole_micro_batch_begins_anew() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0, 300))
        with pytest.raises(SchemaMismatchError):
            await writer.write(pa.table({"n": ["text"], "text": ["x"]}))
        for number in range(2):
            await writer.close()
            await writer.write(table(number))
            assert rows_of(ledgers, stream, await writer.finish()) == [number]
        await writer.close()

    run(scenario())


def test_seal_after_refused_last_entry_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entries before it were pushed, and alone they are less than what was written."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0, 500))
        await writer.write(table(500, 1))
        assert ledgers.appends > 0, "a part of it is on its way"
        inner = FakeWriter.wait_for_room

        async def closed_meanwhile(self: FakeWriter) -> None:
            await inner(self)
            ledgers.ledgers[100].closed = True

        with monkeypatch.context() as patched:
            patched.setattr(FakeWriter, "wait_for_room", closed_meanwhile)
            with pytest.raises(LedgerClosedError):
                await writer.seal()
        with pytest.raises(RetryableError, match="write all of it again"):
            await writer.seal()
        await writer.write(table(0, 500))
        segments = await (await writer.seal()).confirm()
        assert rows_of(ledgers, stream, segments) == list(range(500))
        await writer.close()

    run(scenario())


def test_abandon_drops_rows_that_are_held() -> None:
    """They wait for more rows to fill an entry; those of the next micro-batch are not the ones."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        writer = stream.writer()
        await writer.write(table(0, 500))
        await writer.write(table(500, 1))
        pushed = ledgers.appends
        writer.abandon()
        assert await writer.finish() == []
        assert ledgers.appends == pushed, "the last row was held back"
        await writer.write(table(7))
        assert rows_of(ledgers, stream, await writer.finish()) == [7]
        await writer.close()

    run(scenario())


async def cancelled_after(turns: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Whether the work was still under way when its caller left, so many turns of the loop on."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


@pytest.mark.parametrize("step", ["write", "seal"])
def test_micro_batch_whose_caller_leaves_anywhere_is_whole_or_refused(step: str) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await new_stream(ledgers)
        left, turns = True, 0
        while left:
            turns += 1
            writer = stream.writer()
            if step == "write":
                left = await cancelled_after(turns, writer.write(table(0, 300)))
            else:
                await writer.write(table(0, 300))
                await writer.write(table(300))
                left = await cancelled_after(turns, writer.seal())
            if left:
                with pytest.raises(RetryableError, match="write all of it again"):
                    await writer.seal()
            elif step == "write":
                assert rows_of(ledgers, stream, await writer.finish()) == list(range(300))
            await writer.write(table(7))
            assert rows_of(ledgers, stream, await writer.finish()) == [7]
            await writer.close()
        assert turns > 1, "it was left at least once"

    run(scenario())


def test_append_whose_caller_leaves_anywhere_gives_no_rows_to_the_next() -> None:
    async def scenario() -> None:
        stream = await new_stream(FakeLedgers())
        whole, left, turns = list(range(300)), True, 0
        before = 0
        while left:
            turns += 1
            data = iter([table(0, 200), table(200, 100)])
            left = await cancelled_after(turns, stream.append(data))
            await stream.append(iter([table(7)]))
            found = (await numbers(stream.read()))[before:]
            assert found in ([7], [*whole, 7])
            before += len(found)
        assert found == [*whole, 7] and turns > 2
        await stream.close()

    run(scenario())


@pytest.mark.parametrize("who", ["close of the stream", "close of the writer", "abandon"])
def test_micro_batch_that_is_forgotten_while_it_is_written_is_whole_or_refused(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else closes what writes it, between any two steps of the loop."""

    async def aside(work: Callable[..., Any], *arguments: Any) -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
        return work(*arguments)

    monkeypatch.setattr(segment_writer, "ENCODE_IN_THREAD_BYTES_MIN", 1)
    monkeypatch.setattr("spark_ledger.stream.segment_writer.asyncio.to_thread", aside)
    data = [*(table(100 * n, 100) for n in range(6)), table(600, 3)]  # the last rows are held

    async def scenario(step: int) -> bool:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA, entry_bytes=1024)
        writer = stream._append_writer = stream.writer()

        async def append() -> None:
            if who == "close of the stream":
                await stream.append(pa.concat_tables(data))
                return
            for part in data:
                await writer.write(part)
            await stream.commit_segments(await writer.finish())

        appending = asyncio.create_task(append())
        for _ in range(step):
            await asyncio.sleep(0)
        is_late = appending.done()
        if who == "close of the stream":
            await stream.close()
        elif who == "close of the writer":
            await writer.close()
        else:
            writer.abandon()
        await asyncio.wait([appending])
        found = await numbers(stream.read())
        if appending.exception() is None:
            assert found in (list(range(603)), []), f"step {step}: a part was committed"
            assert found or who != "close of the stream"
        else:
            assert isinstance(appending.exception(), RetryableError | LedgerClosedError)
            assert found == []
        await stream.append(table(7))
        assert await numbers(stream.read()) == [*found, 7], "the next one is whole"
        await writer.close()
        await stream.close()
        return not is_late

    step = 0
    while run(scenario(step)):
        step += 1
    assert step > 20, "there were steps between"


def test_columns_of_a_micro_batch_that_was_given_up_are_none_of_the_next() -> None:
    """Whichever of its batches comes again, and in whichever order."""
    names = ["one", "two"]

    def batch(name: str) -> pa.Table:
        return table(0).append_column(name, pa.array([1]))

    async def scenario(given_up: list[str], following: list[str]) -> None:
        stream = await StreamCatalog(FakeLedgers()).create("s", SCHEMA)
        writer = stream.writer(merge_schema=True)
        for name in given_up:
            await writer.write(batch(name))
        writer.abandon()
        for name in following:
            await writer.write(batch(name))
        await stream.commit_segments(await writer.finish())
        assert (await stream.refresh()).schema.names == [*SCHEMA.names, *following]
        assert len(stream.config.schemas) == 1 + len(following), "one version for each"
        read = [row async for rows in stream.read() for row in rows.to_pylist()]
        assert [[row[name] for name in following] for row in read] == [
            [1 if name == other else None for other in following] for name in following
        ]
        await writer.close()

    orders = [names, names[::-1], names[:1], names[1:]]
    for given_up, following in itertools.product(orders, orders):
        run(scenario(given_up, following))


def test_close_returns_once_every_ledger_of_the_writer_is_closed() -> None:
    """Also those that were full, and wait for their confirmations."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        ledgers.hold = True
        stream = await new_stream(ledgers, segment_roll_bytes=2048)
        writer = stream.writer(compression="none")
        await writer.write(table(0, 300))
        assert len(ledgers.writers) > 2
        closing = asyncio.create_task(writer.close())
        for each in ledgers.writers:
            for _ in range(20):
                await asyncio.sleep(0)
            assert not closing.done()
            each.deliver()
        await closing
        assert all(ledger.closed for ledger in ledgers.ledgers.values())

    run(scenario())
