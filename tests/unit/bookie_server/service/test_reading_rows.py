"""Who reads next where many wait for room: the oldest, or the newest behind who does not read."""

from __future__ import annotations

import asyncio

import pytest

from bookie_server.service import answer_room
from bookie_server.service.answer_room import AnswerRoom, NoTurnError
from tests.unit.bookie_server.service.test_calls import name, on_loop, room_of, until

pytestmark = pytest.mark.leaves_open("AnswerRoom._look", reason="its service goes on")

EXPECTED = answer_room._PART_BYTES_EXPECTED
"""By a part that is being read."""


async def one_part(room: AnswerRoom, seconds: float = 0.0) -> None:
    """A call whose client takes its part in so long, and has all that it wants."""
    await room.reserve(name())
    with room.hold(EXPECTED // 2, name()):
        await asyncio.sleep(seconds)


@on_loop
async def test_new_call_begins_soon_beside_a_hundred_that_are_cut_and_come_again() -> None:
    """Each of them waits from the moment when it was cut, so the new one is behind them all; its
    client gives up after 5 s."""
    room = room_of(EXPECTED, grace_s=2.0, unread_s=9e9)
    loop, cut = asyncio.get_running_loop(), 0

    async def does_not_read() -> None:
        await room.reserve(name())
        with room.hold(EXPECTED // 2, name()):
            await asyncio.sleep(3600.0)

    async def comes_again() -> None:
        nonlocal cut
        while True:
            await asyncio.wait([loop.create_task(does_not_read())])
            cut += 1

    hostile = [asyncio.ensure_future(comes_again()) for _number in range(100)]
    await until(lambda: cut >= 3)
    for _visit in range(10):
        began = loop.time()
        reader = asyncio.ensure_future(one_part(room))
        await asyncio.wait([reader])
        assert loop.time() - began < 5.0
        await asyncio.sleep(1.0)
    for task in (*hostile, *asyncio.all_tasks() - {asyncio.current_task()}):
        task.cancel()


@on_loop
async def test_newest_call_of_the_connection_of_which_most_wait_makes_way() -> None:
    room = room_of(EXPECTED, grace_s=9e9, unread_s=9e9)

    async def reads(connection: str) -> None:
        await room.reserve(connection)
        with room.hold(EXPECTED // 2, connection):
            await asyncio.sleep(3600.0)

    assert not room.make_way(0), "nobody waits"
    first = asyncio.ensure_future(reads("first"))
    await until(lambda: bool(room._held))
    many = [asyncio.ensure_future(reads("many")) for _number in range(5)]
    few = [asyncio.ensure_future(reads("few")) for _number in range(2)]
    await asyncio.sleep(0.01)
    many[4].cancel()
    await asyncio.sleep(0.01)
    assert room.make_way(1)
    await asyncio.wait([many[3]])
    assert isinstance(many[3].exception(), NoTurnError), "of those whose clients are there"
    assert not room.make_way(2), "it would have as many then"
    assert room.make_way(1)
    many[2].cancel()  # in the same turn
    await asyncio.wait([many[2]])
    assert room._reading == 0, "it had no turn to give back"
    assert not room.make_way(1)
    for task in (first, *many, *few):
        task.cancel()
    await asyncio.gather(first, *many, *few, return_exceptions=True)
    assert not room._waiting and not room.bytes_held


@on_loop
async def test_clients_that_have_left_are_no_row_that_others_wait_in() -> None:
    """Each would be the oldest for ever: others would begin newest first, and end in turns."""
    room = room_of(EXPECTED, grace_s=9e9, unread_s=9e9)
    order: list[str] = []

    async def reads(connection: str) -> None:
        await room.reserve(connection)
        order.append(connection)
        with room.hold(EXPECTED // 2, connection):
            await asyncio.sleep(3600.0)

    first = asyncio.ensure_future(reads("first"))
    await until(lambda: bool(room._held))
    left = [asyncio.ensure_future(reads(each)) for each in ("a", "a", "b")]
    await asyncio.sleep(9.0)
    for task in left:
        task.cancel()
        await asyncio.wait([task])
    assert not room.new_calls_wait
    others = [asyncio.ensure_future(reads(each)) for each in ("second", "third")]
    await asyncio.sleep(0.01)
    for task in (first, *others):
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.01)
    assert order == ["first", "second", "third"]


@on_loop
async def test_readers_of_which_each_asks_again_have_as_many_turns_each() -> None:
    """At a gigabit a part takes 35 ms: forty readers make a row of more than a second, in which
    whoever was served is the newest. Nobody of them is cut."""
    room = room_of(2 * EXPECTED, grace_s=2.0, unread_s=9e9)
    loop, parts = asyncio.get_running_loop(), [0] * 40

    async def reader(number: int) -> None:
        while True:
            await asyncio.wait([loop.create_task(one_part(room, 0.035), name=f"{number}")])
            parts[number] += 1

    readers = [asyncio.ensure_future(reader(number)) for number in range(40)]
    await asyncio.sleep(20.0)
    assert min(parts) >= max(parts) - 2 and min(parts) > 5, f"{parts}"
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
