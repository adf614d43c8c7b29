"""Several streams together: who waits for any of them, and the handles that are kept of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from spark_ledger.errors import (
    ConfigurationError,
    MetadataRestoredError,
    MetadataUnavailableError,
    NoSuchStreamError,
)
from spark_ledger.limits.stream import STREAMS_PER_COMMIT_MAX
from spark_ledger.stream import several
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import StreamConfig
from spark_ledger.stream.several import AppendedStreams, commit_to, wait_for_any
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers, FakeWriter
from tests.unit.spark_ledger.stream.world import SCHEMA, Backup, another, numbers, table
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


def test_appends_that_find_a_stream_made_again_at_once_leave_no_ledger_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slower one must not forget the handle that the other has opened since."""
    refresh, waits_s = Stream.refresh, iter([0.0, 1.0])

    async def one_later(self: Stream) -> StreamConfig:
        try:
            return await refresh(self)
        except NoSuchStreamError:
            await asyncio.sleep(next(waits_s))
            raise

    async def test() -> None:
        ledgers = FakeLedgers()
        streams = StreamCatalog(ledgers)
        await streams.create("a", SCHEMA)
        appended = AppendedStreams(streams)
        await appended.append_to({"a": table(0)})
        _, others = another(ledgers)
        await others.delete("a")
        await others.create("a", SCHEMA)
        monkeypatch.setattr(Stream, "refresh", one_later)
        await asyncio.gather(*(appended.append_to({"a": table(n)}) for n in (1, 2)))
        await appended.close()
        assert all(each.closed for each in ledgers.ledgers.values())
        assert sorted(await numbers((await others.open("a")).read())) == [1, 2]

    run_in_virtual_time(test())


@pytest.mark.parametrize("streams", [STREAMS_PER_COMMIT_MAX, STREAMS_PER_COMMIT_MAX + 1])
def test_append_to_more_streams_than_one_commit_takes_is_refused_before_anything_is_opened(
    streams: int,
) -> None:
    is_refused = streams > STREAMS_PER_COMMIT_MAX

    async def test() -> None:
        appended = AppendedStreams(StreamCatalog(FakeLedgers()))
        with pytest.raises(ConfigurationError if is_refused else NoSuchStreamError):
            await appended.append_to({f"none{n}": table(n) for n in range(streams)})

    run_in_virtual_time(test())


@pytest.mark.parametrize("streams", [1, 2, 6])
def test_appends_to_more_streams_than_are_kept_are_whole_and_leave_no_ledger_open(
    streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many calls at once, of which some name the same streams: the kept handles are two."""
    monkeypatch.setattr(several, "STREAMS_PER_COMMIT_MAX", 1)
    open_ = StreamCatalog.open

    async def test(seed: int) -> None:
        draw = random.Random(seed)

        async def room(_self: FakeWriter) -> None:
            await asyncio.sleep(draw.random())

        async def slow_open(self: StreamCatalog, name: str) -> Stream:
            await asyncio.sleep(draw.random())
            return await open_(self, name)

        monkeypatch.setattr(FakeWriter, "wait_for_room", room)
        monkeypatch.setattr(StreamCatalog, "open", slow_open)
        ledgers = FakeLedgers()
        catalog = StreamCatalog(ledgers)
        names = [f"s{n}" for n in range(streams)]
        for name in names:
            await catalog.create(name, SCHEMA, entry_bytes=1024)
        appended = AppendedStreams(catalog)

        async def append(first: int) -> None:
            await asyncio.sleep(draw.random() * 10)
            await appended.append_to({names[first % streams]: table(100 * first, 100)})

        await asyncio.gather(*map(append, range(24)))
        assert len(appended._handles) <= 2 and not appended._uses, f"seed {seed}"
        left_open = [each for each in ledgers.ledgers.values() if not each.closed]
        assert len(left_open) <= min(2, streams), f"seed {seed}: those that are kept"
        for number, name in enumerate(names):
            found = await numbers((await catalog.open(name)).read())
            wanted = [100 * n + row for n in range(number, 24, streams) for row in range(100)]
            assert sorted(found) == wanted, f"seed {seed}"
        await appended.close()
        assert all(each.closed for each in ledgers.ledgers.values()), f"seed {seed}"

    for _ in range(5):
        run_in_virtual_time(test(random.randrange(1 << 30)))


def test_handles_of_appends_that_are_kept_are_those_used_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(several, "STREAMS_PER_COMMIT_MAX", 1)
    opened: list[str] = []
    open_ = StreamCatalog.open

    async def counting(self: StreamCatalog, name: str) -> Stream:
        opened.append(name)
        return await open_(self, name)

    async def test() -> None:
        catalog = StreamCatalog(FakeLedgers())
        for name in "abc":
            await catalog.create(name, SCHEMA)
        monkeypatch.setattr(StreamCatalog, "open", counting)
        appended = AppendedStreams(catalog)
        for number, name in enumerate("abacabcb"):
            await appended.append_to({name: table(number)})
        assert "".join(opened) == "abcbc", "a is used all the time"
        await appended.close()

    run_in_virtual_time(test())


def test_commit_to_several_streams_is_seen_at_once_through_each_of_their_handles() -> None:
    """Also while the handles follow the heads, and nobody has told them of a change."""

    async def test() -> None:
        _, streams = await three()
        waits = [
            asyncio.create_task(each.wait_for_commit(after_segment=0, timeout_s=WAITS_S))
            for each in streams
        ]
        await asyncio.sleep(1)
        for each in streams:
            store_watch = each._watch._watch
            assert store_watch is not None
            store_watch.cancel()
        segments = [await each.write(table(n)) for n, each in enumerate(streams)]
        await commit_to(list(zip(streams, segments, strict=True)))
        assert [(await each.head()).next_commit for each in streams] == [1, 1, 1]
        await asyncio.wait(waits, timeout=1)
        assert all(wait.done() for wait in waits)

    run_in_virtual_time(test())


async def restored(names: str) -> tuple[FakeLedgers, FakeLedgers, AppendedStreams]:
    """Handles that have appended to these streams: of a the commit is lost in a restore, and others
    were made in its place."""
    ledgers, _ = await three()
    client, catalog = another(ledgers)
    appended = AppendedStreams(catalog)
    backup = Backup(ledgers)
    await appended.append_to({name: table(1) for name in names})
    backup.restore(client)
    other = await another(ledgers)[1].open("a")
    for row in (11, 12):
        await other.append(table(row))
    await other.close()
    return ledgers, client, appended


def test_append_to_that_finds_a_restore_fails_and_the_next_one_does_not() -> None:
    async def test() -> None:
        ledgers, client, appended = await restored("a")
        writers = list(client.writers)
        with pytest.raises(MetadataRestoredError):
            await appended.append_to({"a": table(2), "b": table(2)})
        assert len(client.writers) > len(writers) and all(each.is_closed for each in client.writers)
        await appended.append_to({"a": table(3), "b": table(3)})
        found = another(ledgers)[1]
        assert await numbers((await found.open("a")).read()) == [11, 12, 3]
        assert await numbers((await found.open("b")).read()) == [3]
        await appended.close()

    run_in_virtual_time(test())


def test_handle_that_another_append_uses_is_not_closed_where_one_finds_a_restore() -> None:
    async def test() -> None:
        _, client, appended = await restored("a")
        goes_on = asyncio.Event()

        async def rows() -> AsyncIterator[pa.Table]:
            yield table(5)
            await goes_on.wait()
            yield table(6)

        slow = asyncio.create_task(appended.append_to({"b": rows()}))
        await asyncio.sleep(1)
        with pytest.raises(MetadataRestoredError):
            await appended.append_to({"a": table(2), "b": table(2)})
        goes_on.set()
        assert (await slow)["b"].rows == 2
        await appended.close()
        assert all(each.is_closed for each in client.writers)

    run_in_virtual_time(test())


def test_append_that_cannot_look_a_stream_up_lets_go_of_no_handle_that_another_one_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handle that counts as unused is the next to be closed, with the rows that are written."""
    monkeypatch.setattr(several, "STREAMS_PER_COMMIT_MAX", 1)

    async def test() -> None:
        catalog, has_room = StreamCatalog(FakeLedgers()), asyncio.Event()
        for name in "abcd":
            await catalog.create(name, SCHEMA)
        appended = AppendedStreams(catalog)
        await appended.append_to({"a": table(0)})

        async def room(_self: FakeWriter) -> None:
            await has_room.wait()

        async def away(_self: Stream) -> StreamConfig:
            raise MetadataUnavailableError("the store is away for a moment")

        with monkeypatch.context() as patched:
            patched.setattr(FakeWriter, "wait_for_room", room)
            writing = asyncio.create_task(appended.append_to({"a": table(1)}))
            await asyncio.sleep(1)
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "refresh", away)
            with pytest.raises(MetadataUnavailableError):
                await appended.append_to({"a": table(2)})
        for name in "bcd":
            await appended.append_to({name: table(0)})
        has_room.set()
        assert (await writing)["a"].rows == 1
        assert await numbers((await catalog.open("a")).read()) == [0, 1]
        await appended.close()

    run_in_virtual_time(test())
