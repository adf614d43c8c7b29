"""Tails of one ledger in one client ask and read once, and each is given what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.client import followed
from spark_ledger.client.entry_batch import EntryBatch
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LedgerClosedError,
    LedgerError,
)
from spark_ledger.limits.client import TAIL_ENTRY_BYTES
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.transport.base import LastConfirmed
from spark_ledger.types import BookieId, BookieStatus, Entry, EntryId, Fragment, LedgerId
from spark_ledger.wire.frame import HmacDigest
from tests.unit.spark_ledger.client.tails import (
    TAILS,
    Asked,
    Following,
    begun,
    end,
    kept_bytes,
    run,
)
from tests.unit.spark_ledger.client.world import World


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
        assert kept_bytes() < 2 * TAIL_ENTRY_BYTES, "only what came last: all have taken the rest"
        await end(writer, following, [b"0", b"1", b"2", b"3"])

    run(test)


def test_tails_that_begin_later_have_nothing_read_for_them_that_is_before() -> None:
    async def test(world: World) -> None:
        client, writer, (one, other) = await begun(world, tails=2)
        await one.leave()
        await other.leave()
        asked = Asked(client)
        following = [Following(each.reader, start=3) for each in (one, other)]
        for number in range(1, 3):
            await writer.append(b"%d" % number)
            await asyncio.sleep(0.1)
        assert not asked.reads
        await writer.append(b"3")
        for each in following:
            await each.has(1)
        assert asked.reads == [(asked.reads[0][0], 3)]
        await end(writer, following, [b"3"])

    run(test)


def test_single_tail_keeps_nothing() -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=1)
        await writer.append(b"1")
        await following[0].has(2)
        assert client.counters.entries_shared == 0
        await end(writer, following, [b"0", b"1"])

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
            sizes.append(kept_bytes())
        assert max(sizes) <= 20_000 < sum(map(len, payloads))
        assert max(sizes) > 10_000, "it is kept for the one that stopped"
        asked = Asked(client)
        stops.goes_on.set()
        await stops.has(len(payloads))
        assert asked.reads, "not all of it was kept"
        assert not asked.polls, "it knows what the others know"
        stops.goes_on.clear()
        payloads += [b"%d" % number * 2_000 for number in range(40, 44)]
        for payload in payloads[-4:]:
            await writer.append(payload)
        for each in following:
            if each is not stops:
                await each.has(len(payloads))
        assert kept_bytes() > 6_000
        await stops.leave()
        assert kept_bytes() == 0, "it was kept for nobody else"
        following.remove(stops)
        await end(writer, following, payloads)

    run(test)


def test_tails_read_together_what_is_more_than_one_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "TAIL_FETCH_BYTES_MAX", 1)
    monkeypatch.setattr("spark_ledger.transport.memory.READ_CHUNK_BYTES_TARGET", 1)

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        asked, before = Asked(client), replace(client.counters)
        futures = [writer.append_nowait(b"%d" % number) for number in range(1, 21)]
        await asyncio.gather(*futures)
        for each in following:
            await each.has(21)
        assert [first for _, first in asked.reads] == list(range(1, 21, 3)), "each was read once"
        assert client.counters.since(before).entries_shared == 3 * 20, "however it is given"
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


class Held:
    """Reads of a client's metadata: how many there were. They take as long as they are told to."""

    def __init__(self, client: LedgerClient) -> None:
        assert isinstance(client.store, MemoryMetadataStore)
        self.reads, self.delay_s = 0, 0.0
        client.store.interpose = self._interpose

    def _interpose(self, name: str, path: str) -> Fault:
        self.reads += name == "get" and path.startswith("ledgers/")
        return Fault(Outcome.NORMAL, self.delay_s)


def test_tails_that_hear_of_a_change_read_the_metadata_once() -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world)
        held = Held(client)
        for bookie_id in writer.metadata.last_fragment.bookies[:1]:
            world.kill(bookie_id)
        await writer.append(b"1")
        for each in following:
            await each.has(2)
        await asyncio.sleep(0.5)
        assert [len(each.reader.metadata.fragments) for each in following] == [2] * TAILS
        assert 1 <= held.reads <= 2, "for the change, and once more if an entry was missing"
        await end(writer, following, [b"0", b"1"])

    run(test, bookies=4)


def test_tail_that_comes_while_the_metadata_are_read_for_others_reads_them_too() -> None:
    """What is on its way may be older than what it has to know."""

    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=2)
        late = await client.open_ledger(writer.ledger_id)
        held = Held(client)
        held.delay_s = 0.3
        assert isinstance(client.store, MemoryMetadataStore)
        for watch in client.store._watches:
            watch.notify()
        while not held.reads:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        following.append(Following(late))
        await asyncio.sleep(0.1)
        assert held.reads == 2
        await end(writer, following, [b"0"])

    run(test)


class Waiting:
    """A tail that only waits; it asks the bookies of its fragment."""

    def __init__(self, bookies: str, confirmed: int) -> None:
        fragment = Fragment(EntryId(0), tuple(BookieId(each) for each in bookies))
        self.following = confirmed + 1
        self.last_add_confirmed = EntryId(confirmed)
        self.metadata = SimpleNamespace(last_fragment=fragment)

    async def wait_for_newer(self, wait_s: float) -> EntryId:
        await asyncio.sleep(wait_s)
        return self.last_add_confirmed


@pytest.mark.parametrize(
    ("bookies", "confirmed", "wait_s", "shares"),
    [
        ("abc", 5, 10.0, True),
        ("abc", 5, 11.0, True),
        ("abc", 5, 9.0, False),  # it would wait for longer than it wants to
        ("abc", 4, 10.0, False),  # it would not be told of what the other knows
        ("abc", 6, 10.0, False),
        ("abd", 5, 10.0, False),  # those who are asked have no part in what is new
    ],
)
def test_poll_is_shared_by_those_who_would_ask_the_same(
    bookies: str, confirmed: int, wait_s: float, shares: bool
) -> None:
    async def test(world: World) -> None:
        ledger = followed.FollowedLedger()
        tails: list[Any] = [Waiting("abc", 5), Waiting(bookies, confirmed)]
        calls = [ledger.poll(tail, wait) for tail, wait in zip(tails, (10.0, wait_s), strict=True)]
        assert (calls[0] is calls[1]) == shares
        await asyncio.gather(*(call.result() for call in set(calls)))

    run(test)


def test_read_that_all_have_left_is_begun_anew() -> None:
    async def test(world: World) -> None:
        ledger = followed.FollowedLedger()
        tails: list[Any] = [Reading(fails=False), Reading(fails=False)]
        for tail in tails:
            ledger.add(tail)

        async def read(tail: Any) -> list[EntryId]:
            return [batch.first_entry async for batch in ledger.read(tail, 0, 5)]

        leaves = asyncio.ensure_future(read(tails[0]))
        await asyncio.sleep(0.5)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        assert await read(tails[1]) == list(range(6))
        assert [tail.reads for tail in tails] == [1, 1]

    run(test)


def test_entries_that_are_kept_are_given_from_any_of_them_on() -> None:
    """A tail whose reader may read a part of a batch wants the rest of it next."""

    async def test(world: World) -> None:
        ledger = followed.FollowedLedger()
        tail: Any = Waiting("abc", 2)
        ledger.add(tail)
        ledger._keep(EntryBatch.of([entry(entry_id) for entry_id in range(3, 8)]))
        for first, last in ((3, 7), (3, 4), (5, 6), (7, 7), (5, 99)):
            kept = ledger.kept(first, last)
            assert kept is not None and list(kept.entry_ids) == list(range(first, min(last, 7) + 1))
        for first, last in ((2, 7), (8, 9), (5, 4)):
            assert ledger.kept(first, last) is None

    run(test)


def entry(entry_id: int) -> Entry:
    return Entry(LedgerId(1), EntryId(entry_id), b"x", EntryId(-1), 1)


class Reading(Waiting):
    """A tail whose reader brings entries one by one, or fails."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__("abc", 5)
        self.following = 0
        self.fails = fails
        self.reads = self.shared = 0

    def count_shared(self, entries: int) -> None:
        self.shared += entries

    async def read_batches(
        self, first: int, last: int, *, unconfirmed: bool = False
    ) -> AsyncGenerator[EntryBatch, None]:
        self.reads += 1
        await asyncio.sleep(1.0)
        if self.fails:
            raise BookieUnavailableError("its metadata name bookies that have gone")
        for entry_id in range(first, last + 1):
            yield EntryBatch.of([entry(entry_id)])


@pytest.mark.parametrize("fails", [(True, False), (False, True), (True, True), (False, False)])
def test_read_that_fails_for_all_is_made_by_each_alone(fails: tuple[bool, bool]) -> None:
    """A tail whose reader knows newer metadata has nothing of the error of another."""

    async def test(world: World) -> None:
        ledger = followed.FollowedLedger()
        tails: list[Any] = [Reading(fails=each) for each in fails]
        for tail in tails:
            ledger.add(tail)

        async def read(tail: Any) -> list[int]:
            found: list[int] = []
            async for batch in ledger.read(tail, tail.following, 5):
                found += [int(entry.entry_id) for entry in batch]
                tail.following = batch.last_entry + 1
            return found

        found = await asyncio.gather(*map(read, tails), return_exceptions=True)
        for each, brought in zip(fails, found, strict=True):
            if each and fails[0]:
                assert isinstance(brought, BookieUnavailableError)
            else:
                assert brought == list(range(6))
        if not any(fails):
            assert sum(tail.reads for tail in tails) == 1
            assert [tail.shared for tail in tails] == [6, 6]

    run(test)


def test_call_that_is_cancelled_ends_the_wait_of_all() -> None:
    """As at the end of the application's loop."""

    async def test(world: World) -> None:
        call = followed.SharedCall(asyncio.sleep(1000.0))
        waiting = [asyncio.ensure_future(call.result()) for _ in range(2)]
        await asyncio.sleep(0)
        call._task.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1.0)
        assert [type(each) for each in ended] == [asyncio.CancelledError] * 2

    run(test)
