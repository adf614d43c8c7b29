"""A tail after an outage of ZooKeeper, beside a consumer that takes its time, and as a part fails.

In virtual time: they say how long something took.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.errors import NoSuchEntryError, NoSuchLedgerError
from spark_ledger.limits.client import (
    BUSY_PAUSE_S,
    BUSY_PAUSE_S_MAX,
    TAIL_METADATA_WAIT_S,
    TAIL_PAUSE_S,
    TAIL_RETRY_DELAY_S_MAX,
)
from spark_ledger.transport.base import LastConfirmed
from spark_ledger.types import BookieStatus, EntryId, LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.client.test_tail import Followed, Outage
from tests.unit.spark_ledger.client.world import World, run_virtually


async def followed(
    world: World, **options: Any
) -> tuple[LedgerClient, LedgerClient, LedgerReader, Any]:
    """A ledger with one entry: its writer's client, and a client that reads it."""
    other = await world.client(explicit_lac_delay_s=0.01)
    writer = await other.create_ledger(**options)
    await writer.append(b"0")
    await asyncio.sleep(0.1)  # all bookies have been told that it is confirmed
    client = await world.client()
    return other, client, await client.open_ledger(writer.ledger_id), writer


def now() -> float:
    return asyncio.get_running_loop().time()


def test_tail_forgets_an_outage_that_is_over() -> None:
    """After a long one and a short one it hears of the close as soon as after a short one alone."""

    async def test(world: World) -> None:
        _, client, reader, writer = await followed(world)
        outage, tail = Outage(client, delay_s=0.01), Followed(reader)
        await tail.has(1)

        async def away(seconds: float) -> None:
            outage.on = True
            for watch in outage.store._watches:
                watch.notify()
            await asyncio.sleep(seconds)

        await away(15.0)
        outage.end()
        await asyncio.sleep(2 * TAIL_RETRY_DELAY_S_MAX)
        await away(0.05)
        await writer.close()
        outage.on = False  # and no notice says that it is back
        began = now()
        await tail.task
        assert now() - began < 0.5

    run_virtually(test)


def test_entry_that_is_lost_after_an_outage_is_an_error_at_once() -> None:
    async def test(world: World) -> None:
        _, client, reader, writer = await followed(world)
        outage, tail = Outage(client, delay_s=0.01), Followed(reader)
        await tail.has(1)
        outage.on = True
        for watch in outage.store._watches:
            watch.notify()
        await asyncio.sleep(1.0)
        outage.end()
        await asyncio.sleep(2 * TAIL_RETRY_DELAY_S_MAX)
        began = now()
        for bookie in world.bookies.values():
            bookie.ledgers[writer.ledger_id].last_add_confirmed = 7
            for _above, answer in list(bookie.ledgers[writer.ledger_id].watches):
                answer()
        with pytest.raises(NoSuchEntryError):
            await tail.task
        assert now() - began < min(10.0, TAIL_METADATA_WAIT_S)

    run_virtually(test)


@pytest.mark.parametrize("tails", [1, 2])
@pytest.mark.parametrize("takes_s", [3.0, 0.1])
def test_time_of_a_consumer_is_no_time_without_entries(takes_s: float, tails: int) -> None:
    """It has waited for nobody while it worked: ``idle_timeout`` begins when it asks again."""

    async def test(world: World) -> None:
        _, client, reader, writer = await followed(world)
        readers = [reader, await client.open_ledger(writer.ledger_id)][:tails]

        async def consume(reader: LedgerReader) -> list[int]:
            found = []
            async for entry in reader.tail(idle_timeout=1.0):
                found.append(int(entry.entry_id))
                await asyncio.sleep(takes_s)
            return found

        tasks = [asyncio.ensure_future(consume(each)) for each in readers]
        for _ in range(3):
            await asyncio.sleep(takes_s + 0.5)
            await writer.append(b"next")
        assert await asyncio.gather(*tasks) == [[0, 1, 2, 3]] * tails

    run_virtually(test)


def test_bug_of_ours_in_the_reading_of_metadata_ends_a_tail() -> None:
    async def test(world: World) -> None:
        _, client, reader, writer = await followed(world)
        tail = Followed(reader)
        await tail.has(1)

        async def broken(ledger_id: LedgerId) -> Any:
            raise AssertionError("broken on purpose")

        client.context.ledgers.read_latest = broken  # type: ignore[method-assign]
        await writer.close()
        with pytest.raises(AssertionError, match="broken on purpose"):
            await asyncio.wait_for(tail.task, 10)

    run_virtually(test)


def test_change_while_the_metadata_are_read_is_looked_at_too() -> None:
    """The answer to the first look is from before the ledger was closed."""

    async def test(world: World) -> None:
        _other, client, reader, writer = await followed(world)
        honest, looks = client.context.ledgers.read_latest, list[object]()

        async def slow(ledger_id: int) -> Versioned[LedgerMetadata]:
            found = await honest(ledger_id)  # type: ignore[arg-type]
            looks.append(found.version)
            if len(looks) == 1:
                await writer.close()
                await asyncio.sleep(0.1)
            return found

        client.context.ledgers.read_latest = slow  # type: ignore[method-assign]
        following = Followed(reader)
        await asyncio.wait_for(following.task, 10)
        assert following.found == [b"0"]
        assert len(looks) == 2

    run_virtually(test)


def test_tail_that_waits_for_an_entry_says_at_once_that_its_ledger_was_deleted() -> None:
    """It waits for metadata that may name others who have it, and they say that there is nothing
    to wait for any more."""

    async def test(world: World) -> None:
        other, client, reader, writer = await followed(world)
        outage, tail = Outage(client, delay_s=0.01), Followed(reader)
        await tail.has(1)
        outage.on = True
        for bookie in world.bookies.values():
            bookie.ledgers[writer.ledger_id].last_add_confirmed = 7
            for _above, answer in list(bookie.ledgers[writer.ledger_id].watches):
                answer()
        await asyncio.sleep(1.0)
        await writer.abandon()
        await other.delete_ledger(writer.ledger_id)
        await asyncio.sleep(1.0)
        assert not tail.task.done()
        began = now()
        outage.end()
        with pytest.raises(NoSuchLedgerError):
            await tail.task
        assert now() - began < min(10.0, TAIL_METADATA_WAIT_S)

    run_virtually(test)


def test_tail_pauses_after_no_poll_that_brought_something() -> None:
    """The pause is for polls that come to nothing at once, as when bookies are down."""

    async def test(world: World) -> None:
        _, _, reader, writer = await followed(world)
        tail = Followed(reader)
        await tail.has(1)
        began = now()
        for count in range(2, 12):
            await writer.append(b"more")
            await tail.has(count)
        assert now() - began < 10 * TAIL_PAUSE_S, "as soon as they were confirmed"
        await writer.close()
        await asyncio.wait_for(tail.task, 10)

    run_virtually(test)


def test_tail_delivers_while_bookies_have_no_room_for_those_who_wait() -> None:
    """Strangers may take all long polls that there are: what is confirmed now is asked for then, in
    time for a tail that ends when it has heard of nothing for a few seconds."""

    async def test(world: World) -> None:
        _, client, reader, writer = await followed(world)
        transport = client.context.transport
        honest = transport.read_last_confirmed
        asked = defaultdict[tuple[str, bool], list[float]](list)

        async def ask(
            bookie_id: Any, *args: Any, wait_s: float = 0.0, **options: Any
        ) -> LastConfirmed:
            asked[bookie_id, bool(wait_s)].append(now())
            if wait_s:
                return LastConfirmed(BookieStatus.TOO_MANY_REQUESTS)
            return await honest(bookie_id, *args, **options)

        transport.read_last_confirmed = ask  # type: ignore[method-assign]
        tail = Followed(reader, start=0, idle_timeout=5.0)
        for count in range(1, 6):
            await tail.has(count)
            await asyncio.sleep(4.0 if count == 3 else 0.5)
            await writer.append(b"more")
        for _ in range(300):  # as fast as they are confirmed
            await writer.append(b"more")
            await asyncio.sleep(0.01)
        began = now()
        await tail.task
        assert len(tail.found) == 306 and now() - began < 8.0
        for (_bookie, waits), times in asked.items():
            least = (BUSY_PAUSE_S_MAX if waits else BUSY_PAUSE_S) - 1e-6
            gaps = [later - earlier for earlier, later in pairwise(times)]
            assert min(gaps[:-1]) >= least, "but for a last question, as the tail ends"
            assert len(gaps) > 3, waits

    run_virtually(test)


@pytest.mark.parametrize(
    "told",
    [
        LastConfirmed(BookieStatus.NO_SUCH_LEDGER),
        LastConfirmed(BookieStatus.OK, EntryId(-1)),
        LastConfirmed(BookieStatus.TOO_MANY_REQUESTS),
        LastConfirmed(BookieStatus.TIMEOUT),
        LastConfirmed(BookieStatus.UNAVAILABLE),
    ],
)
def test_busy_bookies_that_know_nothing_new_end_no_poll(told: LastConfirmed) -> None:
    """What it says without a wait counts only if it would have told it to one that waits."""

    async def test(world: World) -> None:
        _, client, reader, writer = await followed(world)
        transport = client.context.transport
        honest, asked = transport.read_last_confirmed, list[str]()

        async def ask(bookie_id: Any, *args: Any, wait_s: float = 0.0, **options: Any) -> Any:
            if now() > began + 6.0:
                return await honest(bookie_id, *args, wait_s=wait_s, **options)
            asked.append(bookie_id)
            if wait_s:
                return LastConfirmed(BookieStatus.TOO_MANY_REQUESTS)
            return told

        tail = Followed(reader)
        await tail.has(1)
        began = now()
        transport.read_last_confirmed = ask  # type: ignore[method-assign]
        await writer.append(b"more")
        await asyncio.sleep(5.0)
        await tail.has(2)
        assert now() - began < 6.0 + 3.0
        assert len(asked) < 3 * 2 * 10, "they are asked again later and later"
        await writer.close()
        await asyncio.wait_for(tail.task, 10)

    run_virtually(test)
