"""Tails of one ledger in one client: they ask and read once, and none is harmed by another."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from bookie_server.service.read_path import merge_runs
from spark_ledger.client import followed
from spark_ledger.client.caches import cache_sizes
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LedgerClosedError,
    LedgerError,
)
from spark_ledger.limits.client import TAIL_ENTRY_BYTES
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import BookieStatus, EntryId
from spark_ledger.wire.frame import HmacDigest
from tests.unit.spark_ledger.client.world import World, run_virtually

TAILS = 5


def run(test: Callable[[World], Awaitable[None]]) -> None:
    """In virtual time; the loop is told of no error that nobody handles."""
    errors: list[object] = []

    async def quietly(world: World) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
        await test(world)
        gc.collect()
        await asyncio.sleep(0)

    run_virtually(quietly)
    assert errors == []


class Asked:
    """What one client asks bookies: long polls and reads, each as (bookie, entry)."""

    def __init__(self, client: LedgerClient) -> None:
        self._transport = client.context.transport
        self._poll, self._read = self._transport.read_last_confirmed, self._transport.read
        self.polls: list[tuple[str, int]] = []
        self.waits = 0
        """Long polls that have no answer yet."""
        self.reads: list[tuple[str, int]] = []
        self.read_room = asyncio.Event()
        """Reads are answered while it is set, with chunks of three entries."""
        self.read_room.set()
        self.stops_once = False
        """Whether the next chunk is the last one for now."""
        self.broken: BookieStatus | None = None
        """What reads are answered instead of entries."""
        self._transport.read_last_confirmed = self.poll  # type: ignore[method-assign]
        self._transport.read = self.read  # type: ignore[method-assign, assignment]

    async def poll(self, bookie_id: Any, *args: Any, **options: Any) -> LastConfirmed:
        if not options.get("wait_s"):
            return await self._poll(bookie_id, *args, **options)
        self.polls.append((bookie_id, options["wait_above"]))
        self.waits += 1
        try:
            return await self._poll(bookie_id, *args, **options)
        finally:
            self.waits -= 1

    async def read(
        self, bookie_id: Any, ledger_id: Any, first: int, *args: Any, **options: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        self.reads.append((bookie_id, first))
        await self.read_room.wait()
        if self.broken is not None:
            yield ReadChunk(self.broken, None, EntryId(first), "broken on purpose")
            return
        wanted = bookie_id, ledger_id, EntryId(first)
        async with aclosing(self._read(*wanted, *args, **options)) as chunks:
            runs = [chunk.run async for chunk in chunks if chunk.run is not None]
        for start in range(0, len(runs), 3):
            await self.read_room.wait()
            run = merge_runs(runs[start : start + 3])
            yield ReadChunk(BookieStatus.OK, run, run.first_entry)
            if self.stops_once:
                self.stops_once = False
                self.read_room.clear()


class Following:
    """One tail, and what it has brought."""

    def __init__(self, reader: LedgerReader, start: int = 0, **options: Any) -> None:
        self.reader = reader
        self.found: list[bytes] = []
        self.goes_on = asyncio.Event()
        """Whether it takes the next batch."""
        self.goes_on.set()
        self.task = asyncio.ensure_future(self._run(start, **options))

    async def _run(self, start: int, **options: Any) -> None:
        async with aclosing(self.reader.tail_batches(start, **options)) as batches:
            async for batch in batches:
                assert batch[-1].entry_id <= self.reader.last_add_confirmed, "not confirmed to it"
                self.found += [entry.payload for entry in batch]
                await self.goes_on.wait()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.found) < count and not self.task.done():
                await asyncio.sleep(0.001)
        if self.task.done():
            self.task.result()
        assert len(self.found) == count

    async def leave(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def begun(
    world: World, tails: int = TAILS
) -> tuple[LedgerClient, LedgerWriter, list[Following]]:
    """A ledger with one entry, and tails of one client that have it and wait for more."""
    writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
    await writer.append(b"0")
    client = await world.client()
    readers = [await client.open_ledger(writer.ledger_id) for _ in range(tails)]
    following = [Following(reader) for reader in readers]
    for each in following:
        await each.has(1)
    await asyncio.sleep(0.1)
    return client, writer, following


async def end(writer: LedgerWriter, following: list[Following], found: list[bytes]) -> None:
    """All that still follow end with the ledger, and have found the same."""
    await writer.close()
    for each in following:
        await asyncio.wait_for(each.task, 10)
        assert each.found == found


def test_tails_of_one_ledger_ask_and_read_once() -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world)
        asked, counted = Asked(client), client.counters.entries_shared
        for number in range(1, 4):
            await writer.append(b"%d" % number)
            for each in following:
                await each.has(number + 1)
            await asyncio.sleep(0.1)
        assert len(asked.reads) == 3, "one for each entry, not one for each tail"
        assert len(asked.polls) <= 3 * 3, "of all bookies, once for each entry"
        assert client.counters.entries_shared - counted == 3 * TAILS
        kept = [each.size_bytes for each in cache_sizes() if each.name == "tails"]
        assert max(kept) < 2 * TAIL_ENTRY_BYTES, "only what came last: all have taken the rest"
        await end(writer, following, [b"0", b"1", b"2", b"3"])

    run(test)


def test_single_tail_keeps_nothing() -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=1)
        await writer.append(b"1")
        await following[0].has(2)
        assert client.counters.entries_shared == 0
        await end(writer, following, [b"0", b"1"])

    run(test)


@pytest.mark.parametrize("leaving", [[0], [1], [TAILS - 1], [0, 1, 2]])
def test_tail_that_is_cancelled_while_it_waits_disturbs_no_other(leaving: list[int]) -> None:
    """The first one has begun the poll."""

    async def test(world: World) -> None:
        client, writer, following = await begun(world)
        asked = Asked(client)
        for number in leaving:
            await following[number].leave()
        await asyncio.sleep(0.1)
        assert not asked.polls, "nobody had to ask again"
        stay = [each for number, each in enumerate(following) if number not in leaving]
        await writer.append(b"1")
        for each in stay:
            await each.has(2)
        assert all(len(following[number].found) == 1 for number in leaving)
        await end(writer, stay, [b"0", b"1"])

    run(test)


@pytest.mark.parametrize("leaving", range(3))
def test_tail_that_is_cancelled_while_it_is_read_for_disturbs_no_other(leaving: int) -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        asked = Asked(client)
        asked.read_room.clear()
        await writer.append(b"1")
        while not asked.reads:
            await asyncio.sleep(0.001)
        await following.pop(leaving).leave()
        asked.read_room.set()
        for each in following:
            await each.has(2)
        assert len(asked.reads) == 1
        await end(writer, following, [b"0", b"1"])

    run(test)


def test_tail_that_is_cancelled_at_any_turn_disturbs_no_other() -> None:
    """While the entry is read, and while it is given to each."""

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=2)
        asked, found = Asked(client), [b"0"]
        for turns in range(40):
            leaver = Following(await client.open_ledger(writer.ledger_id), start=len(found))
            await asyncio.sleep(0.1)
            asked.read_room.clear()
            asked.reads.clear()
            payload = b"%d" % (turns + 1)
            await writer.append(payload)
            found.append(payload)
            while not asked.reads:
                await asyncio.sleep(0.001)
            asked.read_room.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            leaver.task.cancel()
            await asyncio.gather(leaver.task, return_exceptions=True)
            for each in following:
                await each.has(len(found))
            await asyncio.sleep(0.1)
        await end(writer, following, found)

    run(test)


@pytest.mark.parametrize("turns", range(8))
def test_tail_that_waits_again_while_the_others_leave_is_not_cancelled_with_them(
    turns: int,
) -> None:
    async def test(world: World) -> None:
        _client, writer, following = await begun(world)
        stays = following.pop()
        stays.goes_on.clear()
        await writer.append(b"1")
        await stays.has(2)
        for each in following:
            await each.has(2)
        await asyncio.sleep(0.1)
        for each in following:
            each.task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        stays.goes_on.set()
        await asyncio.gather(*[each.task for each in following], return_exceptions=True)
        await writer.append(b"2")
        await stays.has(3)
        await end(writer, [stays], [b"0", b"1", b"2"])

    run(test)


def test_tails_that_leave_together_end_the_poll_and_one_that_comes_then_begins_another() -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world)
        asked = Asked(client)
        for each in following:
            each.task.cancel()
        late = Following(await client.open_ledger(writer.ledger_id), start=1)
        await asyncio.gather(*[each.task for each in following], return_exceptions=True)
        await asyncio.sleep(0.1)
        assert len(asked.polls) == asked.waits == 3
        await writer.append(b"1")
        await late.has(1)
        await end(writer, [late], [b"1"])

    run(test)


def test_last_tail_that_leaves_ends_what_was_asked_and_kept() -> None:
    async def test(world: World) -> None:
        client, writer, (one,) = await begun(world, tails=1)
        await one.leave()
        before, asked = asyncio.all_tasks(), Asked(client)
        readers = [await client.open_ledger(writer.ledger_id) for _ in range(TAILS)]
        following = [Following(reader) for reader in readers]
        await writer.append(b"1")
        for each in following:
            await each.has(2)
        gc.collect()
        assert [each.caches for each in cache_sizes() if each.name == "tails"] == [1]
        await asyncio.sleep(0.1)
        for each in following:
            assert asked.waits == 3
            await each.leave()
        assert asked.waits == 0
        assert asyncio.all_tasks() == before
        await writer.close()
        following.clear()
        del each
        gc.collect()
        assert "tails" not in [each.name for each in cache_sizes()]

    run(test)


@pytest.mark.parametrize("first", [None, 1.0, 5.0])
@pytest.mark.parametrize("second", [None, 1.0, 5.0])
def test_each_tail_ends_when_its_own_idle_timeout_is_over(
    first: float | None, second: float | None
) -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=1)
        loop = asyncio.get_running_loop()
        timed = []
        for idle_timeout in (first, second):
            reader = await client.open_ledger(writer.ledger_id)
            timed.append(Following(reader, start=1, idle_timeout=idle_timeout))
        await asyncio.sleep(0.1)
        began = loop.time()
        for idle_timeout in sorted(filter(None, (first, second))):
            tail = timed[(first, second).index(idle_timeout)]
            await asyncio.wait_for(tail.task, 10)
            assert abs(loop.time() - began - idle_timeout) < 0.3
        await asyncio.sleep(0.1)
        stay = [
            each for each, timeout in zip(timed, (first, second), strict=True) if timeout is None
        ]
        await writer.append(b"1")
        await end(writer, [*stay, *following][:-1], [b"1"])
        await end(writer, following, [b"0", b"1"])

    run(test)


def test_tail_that_stops_gets_the_rest_in_order_and_what_is_kept_for_it_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some of it is kept, and what was before that it reads for itself."""
    monkeypatch.setattr(followed, "TAIL_KEPT_BYTES_MAX", 20_000)

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        stops = following[1]
        stops.goes_on.clear()
        sizes: list[int] = []
        payloads = [b"0", *[b"%d" % number * 2_000 for number in range(1, 40)]]
        for number, payload in enumerate(payloads[1:], start=1):
            await writer.append(payload)
            for each in following:
                if each is not stops:
                    await each.has(number + 1)
            sizes += [each.size_bytes for each in cache_sizes() if each.name == "tails"]
        assert max(sizes) <= 20_000 < sum(map(len, payloads))
        assert max(sizes) > 10_000, "it is kept for the one that stopped"
        asked = Asked(client)
        stops.goes_on.set()
        await stops.has(len(payloads))
        assert asked.reads, "not all of it was kept"
        assert not asked.polls, "it knows what the others know"
        await end(writer, following, payloads)

    run(test)


def test_tails_read_together_what_is_more_than_one_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "TAIL_FETCH_BYTES_MAX", 1)
    monkeypatch.setattr("spark_ledger.transport.memory.READ_CHUNK_BYTES_TARGET", 1)

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        asked = Asked(client)
        futures = [writer.append_nowait(b"%d" % number) for number in range(1, 21)]
        await asyncio.gather(*futures)
        for each in following:
            await each.has(21)
        assert len(asked.reads) <= 20, "each entry was read once"
        await end(writer, following, [b"%d" % number for number in range(21)])

    run(test)


def test_tail_is_given_what_its_own_reader_may_read_and_no_more() -> None:
    """Three of four entries are kept, and their end is not told yet: one tail knows of two."""

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        knows = following[0]
        await knows.leave()
        asked = Asked(client)
        asked.stops_once = True
        await asyncio.gather(*[writer.append_nowait(b"%d" % number) for number in range(1, 5)])
        while asked.read_room.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        for last in (0, 2):
            assert knows.reader.last_add_confirmed == 0
            knows.reader.learn(EntryId(last))
            again = Following(knows.reader, start=1)
            await again.has(last)
            await asyncio.sleep(0.1)
            assert len(again.found) == last
            await again.leave()
        asked.read_room.set()
        for each in following[1:]:
            await each.has(5)
        await end(writer, following[1:], [b"%d" % number for number in range(5)])

    run(test)


def test_reader_that_shows_another_key_is_given_nothing_of_what_others_read() -> None:
    """It is as if it were alone: nothing that it reads has the digest that it expects."""

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=2)
        good = following[0].reader
        stranger = LedgerReader(
            client.context,
            good._ledger,
            access_key=b"another",
            digest=HmacDigest(b"another"),
            last_add_confirmed=EntryId(0),
        )
        following_too = Following(stranger, start=1)
        await asyncio.sleep(0.1)
        await writer.append(b"1")
        for each in following:
            await each.has(2)
        await asyncio.sleep(0.1)
        assert following_too.found == []
        following_too.task.cancel()
        await asyncio.gather(following_too.task, return_exceptions=True)
        await end(writer, following, [b"0", b"1"])

    run(test)


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (BookieStatus.UNAVAILABLE, BookieUnavailableError),
        (BookieStatus.IO_ERROR, DigestMismatchError),
    ],
)
def test_entry_that_cannot_be_read_is_an_error_of_each_tail(
    broken: BookieStatus, error: type[LedgerError]
) -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        asked = Asked(client)
        asked.broken = broken
        await writer.append(b"1")
        for each in following:
            with pytest.raises(error):
                await asyncio.wait_for(each.task, 10)
        assert len(asked.reads) == 3 + 3 * 3, "three bookies for all, and then for each"
        asked.broken = None
        again = [Following(each.reader) for each in following]
        for each in again:
            await each.has(2)
        await end(writer, again, [b"0", b"1"])

    run(test)


def test_poll_that_fails_fails_all_who_wait() -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)

        async def fail(*_args: Any, **_options: Any) -> LastConfirmed:
            raise LedgerClosedError("the transport is closed")

        client.context.transport.read_last_confirmed = fail  # type: ignore[method-assign]
        await writer.append(b"1")
        for each in following:
            with pytest.raises(LedgerClosedError):
                await asyncio.wait_for(each.task, 10)

    run(test)
