"""A tail while ZooKeeper is away, and while one bookie says what is not true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from spark_ledger.client import tail as tail_module
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.transport.base import LastConfirmed, ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId
from tests.unit.spark_ledger.client.world import World, run, run_virtually


class Outage:
    """Takes ZooKeeper away from one client: each request ends after a while with nothing."""

    def __init__(self, client: LedgerClient, delay_s: float = 0.3) -> None:
        assert isinstance(client.store, MemoryMetadataStore)
        self.store, self.on, self.requests = client.store, False, 0
        self._delay_s = delay_s
        self.store.interpose = self._interpose

    def _interpose(self, _name: str, _path: str) -> Fault:
        self.requests += self.on
        return Fault(Outcome.UNAVAILABLE, self._delay_s) if self.on else Fault()

    def end(self) -> None:
        self.on = False
        for watch in self.store._watches:  # as after a reconnect
            watch.notify()


class Followed:
    """What a tail has brought so far."""

    def __init__(self, reader: LedgerReader, **options: Any) -> None:
        self.found: list[bytes] = []
        self.task = asyncio.ensure_future(self._run(reader.tail(**options)))

    async def _run(self, tail: AsyncIterator[Any]) -> None:
        async for entry in tail:
            self.found.append(entry.payload)

    async def has(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.found) < count and not self.task.done():
                await asyncio.sleep(0.005)
        if self.task.done():
            self.task.result()
        assert len(self.found) == count


async def open_reader(world: World, ledger_id: int) -> tuple[LedgerClient, LedgerReader]:
    client = await world.client()
    return client, await client.open_ledger(ledger_id)


@pytest.mark.parametrize("changed", [True, False])
def test_tail_delivers_what_bookies_confirm_while_zookeeper_is_away(changed: bool) -> None:
    """Also when it has heard of a change that it cannot read."""

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        client, reader = await open_reader(world, writer.ledger_id)
        outage, followed = Outage(client, delay_s=3.0), Followed(reader)
        await followed.has(1)
        outage.on = True
        if changed:
            for watch in outage.store._watches:
                watch.notify()
            while not outage.requests:
                await asyncio.sleep(0.005)
        began = asyncio.get_running_loop().time()
        for number in range(1, 5):
            await writer.append(b"%d" % number)
            await followed.has(number + 1)
        assert asyncio.get_running_loop().time() - began < 2.5
        outage.end()
        await writer.close()
        await asyncio.wait_for(followed.task, 10)
        assert followed.found == [b"%d" % number for number in range(5)]

    run(test)


@pytest.mark.leaves_open("", reason="it follows until ZooKeeper is back")
def test_tail_that_begins_while_zookeeper_is_away_delivers() -> None:
    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        client, reader = await open_reader(world, writer.ledger_id)
        outage = Outage(client, delay_s=30.0)
        outage.on = True
        await Followed(reader).has(1)

    run(test)


@pytest.mark.parametrize("denied", [False, True])
def test_tail_waits_for_metadata_of_bookies_that_it_does_not_know(denied: bool) -> None:
    """Those that it knows are gone, or are back without what was written meanwhile."""

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        client, reader = await open_reader(world, writer.ledger_id)
        outage, followed = Outage(client), Followed(reader)
        await followed.has(1)
        outage.on = True
        old = writer.metadata.last_fragment.bookies
        for name in old[:2]:  # two are replaced: of the next entries only one bookie is known
            world.kill(name)
            await writer.append(b"change")
        while set(writer.metadata.last_fragment.bookies) & set(old[:2]):
            await writer.append(b"change")
            await asyncio.sleep(0.01)
        if denied:
            for name in old[:2]:
                world.bookies[name].ledgers[writer.ledger_id].entries.pop(1, None)
                world.revive(name)
        world.bookies[old[2]].ledgers[writer.ledger_id].entries.pop(1, None)
        count = writer.last_add_pushed + 1
        await asyncio.sleep(1.0)
        assert not followed.task.done(), "an entry that cannot be found yet is no error"
        outage.end()
        await followed.has(count)
        await writer.close()
        await asyncio.wait_for(followed.task, 10)

    run(test, bookies=5)


def test_tail_that_cannot_go_on_without_metadata_fails_after_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail_module, "TAIL_METADATA_WAIT_S", 0.5)

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        client, reader = await open_reader(world, writer.ledger_id)
        outage, followed = Outage(client, delay_s=0.05), Followed(reader)
        await followed.has(1)
        outage.on = True
        for bookie in world.bookies.values():
            bookie.ledgers[writer.ledger_id].last_add_confirmed = 7
            for _above, watch in list(bookie.ledgers[writer.ledger_id].watches):
                watch()
        with pytest.raises(NoSuchEntryError):
            await asyncio.wait_for(followed.task, 10)

    run(test)


def test_tail_of_a_ledger_that_is_deleted_says_so() -> None:
    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger()
        await writer.append(b"0")
        client, reader = await open_reader(world, writer.ledger_id)
        followed = Followed(reader)
        await client.delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            await asyncio.wait_for(followed.task, 10)

    run(test)


def test_tail_whose_read_fails_after_the_ledger_was_deleted_says_so_at_once() -> None:
    """Seed 416791 of the simulation: it waited five minutes for metadata that nobody read."""

    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        await writer.append(b"0")
        await asyncio.sleep(0.5)  # all bookies have been told that it is confirmed
        client, reader = await open_reader(world, writer.ledger_id)
        assert reader.last_add_confirmed == 0
        asked, deleted = asyncio.Event(), asyncio.Event()

        async def reading(*_args: Any, **_options: Any) -> AsyncIterator[ReadChunk]:
            asked.set()
            await deleted.wait()
            yield ReadChunk(BookieStatus.UNAVAILABLE, None, EntryId(0), "gone")

        client._context.transport.read = reading  # type: ignore[method-assign,assignment]
        followed = Followed(reader)
        await asyncio.wait_for(asked.wait(), 10)
        await client.delete_ledger(writer.ledger_id)
        await asyncio.sleep(0.5)  # the tail hears of it, and waits for its read
        Outage(client).on = True
        deleted.set()
        with pytest.raises(NoSuchLedgerError):
            await asyncio.wait_for(followed.task, 10)

    run_virtually(test)


def lie(client: LedgerClient, liar: str, **said: Any) -> None:
    """One bookie answers questions for the last add confirmed at once, and not as it is."""
    transport = client._context.transport
    honest = transport.read_last_confirmed

    async def ask(bookie_id: BookieId, *args: Any, **options: Any) -> LastConfirmed:
        if bookie_id != liar:
            return await honest(bookie_id, *args, **options)
        await asyncio.sleep(0.001)
        return LastConfirmed(**said)

    transport.read_last_confirmed = ask  # type: ignore[method-assign]


LIES: dict[str, dict[str, Any]] = {
    "too high": {"status": BookieStatus.OK, "last_add_confirmed": EntryId(2**62)},
    "one too high": {"status": BookieStatus.OK, "last_add_confirmed": EntryId(3)},
    "negative": {"status": BookieStatus.OK, "last_add_confirmed": EntryId(-(2**62))},
    "unknown": {"status": BookieStatus.NO_SUCH_LEDGER},
    "refused": {"status": BookieStatus.UNAUTHORIZED},
    "busy": {"status": BookieStatus.TOO_MANY_REQUESTS},
    "broken": {"status": BookieStatus.IO_ERROR},
}


@pytest.mark.parametrize("said", LIES.values(), ids=LIES)
def test_one_bookie_that_lies_about_the_end_shows_and_hides_nothing(said: dict[str, Any]) -> None:
    async def test(world: World) -> None:
        writer = await (await world.client(explicit_lac_delay_s=0.01)).create_ledger()
        for number in range(3):
            await writer.append(b"%d" % number)
        client = await world.client()
        lie(client, writer.metadata.last_fragment.bookies[1], **said)
        reader = await client.open_ledger(writer.ledger_id)
        async with asyncio.timeout(5):
            while reader.last_add_confirmed < 2:
                await reader.refresh()
        for bookie_id in writer.metadata.last_fragment.bookies[1:]:
            world.bookies[bookie_id].hold = True
        unconfirmed = writer.append_nowait(b"3")
        followed = Followed(reader)
        await followed.has(3)
        await asyncio.sleep(0.3)
        await reader.refresh()
        assert reader.last_add_confirmed == 2, "entry 3 is on one bookie"
        for bookie_id in writer.metadata.last_fragment.bookies:
            world.bookies[bookie_id].hold = False
            world.bookies[bookie_id].release()
        await unconfirmed
        await followed.has(4)
        await writer.close()
        await asyncio.wait_for(followed.task, 10)
        assert followed.found == [b"0", b"1", b"2", b"3"]

    run(test)


def test_one_bookie_that_refuses_to_tell_the_end_does_not_stop_an_open() -> None:
    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger()
        await writer.append(b"0")
        client = await world.client()
        for liar in writer.metadata.last_fragment.bookies:
            lie(client, liar, status=BookieStatus.UNAUTHORIZED)
        with pytest.raises(LedgerError, match="refuse"):
            await client.open_ledger(writer.ledger_id)

    run(test)
