"""Tails that share leave, are cancelled, or wait while others do: none is harmed by another."""

from __future__ import annotations

import asyncio
import gc

import pytest

from spark_ledger.client.caches import cache_sizes
from tests.unit.spark_ledger.client.tails import (
    TAILS,
    Asked,
    Following,
    begun,
    end,
    run,
)
from tests.unit.spark_ledger.client.world import World


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


def test_tails_that_leave_together_end_the_poll_and_a_later_one_begins_another() -> None:
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


@pytest.mark.parametrize("tails", [1, 3])
def test_tail_that_is_given_entries_is_not_idle_whoever_has_read_them(tails: int) -> None:
    """It ends after a second without an entry, and not a second after it began."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        readers = [await client.open_ledger(writer.ledger_id) for _ in range(tails)]
        following = [Following(each, start=0, idle_timeout=1.0) for each in readers]
        for number in range(6):
            await asyncio.sleep(0.7)
            await writer.append(b"%d" % number)
        await asyncio.sleep(0.7)
        for each in following:
            await each.has(6)
        await end(writer, following, [b"%d" % number for number in range(6)])

    run(test)


def test_entries_that_are_shared_are_counted_and_not_their_batches() -> None:
    async def test(world: World) -> None:
        client, writer, following = await begun(world, tails=3)
        Asked(client)  # its chunks have three entries
        counted = client.counters.entries_shared
        await writer.append_many([b"1", b"2", b"3", b"4"])
        for each in following:
            await each.has(5)
        assert client.counters.entries_shared - counted == 3 * 4
        await end(writer, following, [b"0", b"1", b"2", b"3", b"4"])

    run(test)
