"""Room for answers: a call that had to wait for it is looked at as any other afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie_server.service import answer_room
from bookie_server.service.answer_room import AnswerRoom, MakesWayError
from tests.unit.bookie_server.service.test_calls import MIB, name, nobody, on_loop, room_of, until
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.leaves_open("AnswerRoom._look", reason="its service goes on")


@on_loop
async def test_call_that_has_waited_for_room_is_cut_as_others_once_its_client_stops() -> None:
    room = room_of(64 * MIB, grace_s=60.0, unread_s=5.0)
    begun, other_ends = asyncio.Event(), asyncio.Event()

    async def stops() -> None:
        await room.reserve(name())
        with room.hold(MIB, name()):
            begun.set()
        await asyncio.sleep(0.01)
        await room.reserve(name())
        with room.hold(MIB, name()):
            await asyncio.sleep(3600.0)

    async def other() -> None:
        await begun.wait()
        await room.reserve(name())
        with room.hold(30 * MIB, name()):
            await other_ends.wait()

    task, beside = asyncio.ensure_future(stops()), asyncio.ensure_future(other())
    await until(lambda: bool(room._begun))
    other_ends.set()
    await beside
    async with asyncio.timeout(60.0):
        await asyncio.wait([task])
    assert task.cancelled()


EXPECTED = answer_room._PART_BYTES_EXPECTED
"""By a part that is being read."""


async def begun_call(room: AnswerRoom, goes_on: asyncio.Event, byte_count: int = 1) -> None:
    """Has written a part, and reads the next one once it is told to."""
    await room.reserve(name())
    with room.hold(byte_count, name()):
        pass
    await goes_on.wait()
    await room.reserve(name())
    await asyncio.sleep(3600.0)


async def reads_for(room: AnswerRoom, is_read: asyncio.Event) -> None:
    """A first part that is small, and is written for an hour."""
    await room.reserve(name())
    await is_read.wait()
    with room.hold(1, name()):
        await asyncio.sleep(3600.0)


@pytest.mark.parametrize("has_begun", [True, False])
def test_call_that_comes_while_a_part_is_written_waits_behind_those_that_wait(
    has_begun: bool,
) -> None:
    """What was read was smaller than expected, and nobody was told of the room yet."""

    async def main() -> None:
        room = room_of(3 * EXPECTED - 1, grace_s=9e9, unread_s=9e9)
        goes_on, is_read = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.ensure_future(begun_call(room, goes_on))]
        await asyncio.sleep(0)
        tasks += [asyncio.ensure_future(reads_for(room, is_read)) for _ in range(2)]
        await asyncio.sleep(0)
        if has_begun:
            goes_on.set()
        else:
            tasks.append(asyncio.ensure_future(room.reserve(name())))
        await asyncio.sleep(0)
        assert len(room._begun) == has_begun and len(room._waiting) == (not has_begun)
        is_read.set()
        await asyncio.sleep(0)
        last = asyncio.ensure_future(room.reserve(name()))
        await asyncio.sleep(0)
        assert not last.done()
        for task in [*tasks, last]:
            task.cancel()
        await asyncio.wait([*tasks, last])

    run_in_virtual_time(main())


@on_loop
async def test_call_that_has_begun_reads_on_at_once_where_new_ones_wait() -> None:
    """In place of its last part there is room, and each part would begin with a pause."""
    room = room_of(2 * EXPECTED, grace_s=9e9, unread_s=9e9)
    began = asyncio.get_running_loop().time()
    goes_on = asyncio.Event()
    task = asyncio.ensure_future(begun_call(room, goes_on, EXPECTED // 2))
    await asyncio.sleep(0)
    new = [asyncio.ensure_future(room.reserve(name())) for _ in range(2)]
    await asyncio.sleep(0)
    assert [each.done() for each in new] == [True, False]
    goes_on.set()
    await asyncio.sleep(0)
    assert room._reading == 2 and not room._begun
    assert asyncio.get_running_loop().time() == began
    for each in (task, *new):
        each.cancel()
    await asyncio.wait([task, *new])


@on_loop
async def test_call_that_waited_long_for_its_turn_is_not_cut_while_its_part_is_read() -> None:
    """Its client has taken all there was: it was kept waiting, and not the bookie."""
    cut: list[str] = []
    room = AnswerRoom(
        3 * EXPECTED - 1, lambda peer, _why: cut.append(peer), grace_s=1.0, unread_s=9e9
    )
    room._expected = EXPECTED
    goes_on = asyncio.Event()
    task = asyncio.ensure_future(begun_call(room, goes_on))
    await asyncio.sleep(0)
    for _ in range(2):
        await room.reserve(name())  # disks that take their time
    goes_on.set()
    await asyncio.sleep(5.0)
    waits = asyncio.ensure_future(room.reserve(name()))
    room.release()
    await asyncio.sleep(0.5)
    assert (room._begun, room._reading, waits.done()) == (type(room._begun)(), 2, False)
    assert cut == []
    await asyncio.sleep(1.0)
    assert cut == [task.get_name()], "its client has had the time of any other"
    for each in (task, waits):
        each.cancel()
    await asyncio.wait([task, waits])


@on_loop
async def test_part_is_expected_to_be_nearly_as_large_as_those_before() -> None:
    """A small one between two large ones says little."""
    room = room_of(64 * MIB, grace_s=9e9, unread_s=9e9)
    for size in (16 * MIB, 1):
        await asyncio.create_task(one_part(room, size))
    waiting = [asyncio.ensure_future(room.reserve(name())) for _number in range(4)]
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, True, False, False]
    for task in waiting:
        task.cancel()


async def one_part(room: AnswerRoom, byte_count: int) -> None:
    await room.reserve(name())
    with room.hold(byte_count, name()):
        pass


@pytest.mark.parametrize("has_begun", [True, False])
def test_who_waits_has_the_oldest_unread_answer_cut_after_its_grace(has_begun: bool) -> None:
    """And not when somebody looks for answers that are never read; one, and not all at once."""

    async def main() -> None:
        loop, cut = asyncio.get_running_loop(), list[tuple[str, float]]()
        room = AnswerRoom(
            9 * EXPECTED,
            lambda peer, _why: cut.append((peer, loop.time())),
            grace_s=1.0,
            unread_s=60,
        )
        room._expected = EXPECTED
        goes_on, is_read = asyncio.Event(), asyncio.Event()
        is_read.set()
        tasks = [asyncio.ensure_future(begun_call(room, goes_on))]
        for _number in range(2):
            await asyncio.sleep(0.001)
            tasks.append(asyncio.ensure_future(reads_for(room, is_read)))
        await asyncio.sleep(0.001)
        room._bytes_max = EXPECTED - 1
        assert [answer.byte_count for answer in room._held.values()] == [2, 2, 2]
        await asyncio.sleep(2.0)
        waits = loop.time()
        if has_begun:
            goes_on.set()
        else:
            tasks.append(asyncio.ensure_future(room.reserve(name())))
        await asyncio.sleep(0.03)
        assert [peer for peer, _at in cut][-1:] == [tasks[0 if not has_begun else 1].get_name()]
        assert len(cut) == 1 and cut[0][1] - waits < 0.03
        await asyncio.sleep(1.0)
        names = [peer for peer, _at in cut]
        assert len(names) == len(set(names)) == (2 if has_begun else 3), "each of them once"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run_in_virtual_time(main())


@on_loop
async def test_answers_that_are_never_read_are_cut_soon_after_each_other() -> None:
    loop, cut = asyncio.get_running_loop(), list[float]()
    room = AnswerRoom(
        999 * MIB, lambda _peer, _why: cut.append(loop.time()), grace_s=1.0, unread_s=40.0
    )
    is_read = asyncio.Event()
    is_read.set()
    tasks = [asyncio.ensure_future(reads_for(room, is_read)) for _number in range(3)]
    await asyncio.sleep(60.0)
    assert len(cut) == 3 and cut[0] >= 40.0 and cut[-1] - cut[0] < 1.0
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@on_loop
async def test_answer_that_is_not_read_is_cut_after_an_hour_without_any() -> None:
    cut: list[str] = []
    room = AnswerRoom(64 * MIB, lambda peer, _why: cut.append(peer), grace_s=1.0, unread_s=40.0)
    await asyncio.create_task(one_part(room, MIB))
    await asyncio.sleep(100.0)
    is_read = asyncio.Event()
    is_read.set()
    reader = asyncio.ensure_future(reads_for(room, is_read))
    await asyncio.sleep(60.0)
    assert cut == [reader.get_name()]
    reader.cancel()
    await asyncio.wait([reader])


@on_loop
async def test_call_that_was_cut_is_not_cut_again_until_its_client_is_gone() -> None:
    """Each time memory is short it would count as another one."""
    cut: list[str] = []
    room = AnswerRoom(64 * MIB, lambda peer, _why: cut.append(peer), grace_s=9e9, unread_s=9e9)
    is_read = asyncio.Event()
    is_read.set()
    reader = asyncio.ensure_future(reads_for(room, is_read))
    await asyncio.sleep(2.0)
    assert [room.cut_unread(1.0), room.cut_unread(1.0)] == [1, 0]
    assert cut == [reader.get_name()]
    reader.cancel()
    await asyncio.wait([reader])


@pytest.mark.parametrize("short", [True, False])
def test_call_whose_disk_keeps_it_waiting_ends_and_not_its_connection(short: bool) -> None:
    """Its client has read all there was. What it holds is free once that is sure."""

    async def main() -> None:
        cut: list[str] = []
        room = AnswerRoom(
            2 * EXPECTED - 1, lambda peer, _why: cut.append(peer), grace_s=1.0, unread_s=9e9
        )
        room._expected = EXPECTED
        ended, is_read = asyncio.Event(), asyncio.Event()

        async def asks() -> None:
            await room.reserve(name())
            with room.hold(EXPECTED // 2, name()):
                pass
            await room.reserve(name())
            with pytest.raises(MakesWayError):
                async with room.asking_disk():
                    await asyncio.sleep(3600.0)
            room.release()
            ended.set()
            await is_read.wait()

        call = asyncio.ensure_future(asks())
        await asyncio.sleep(0.9)
        waits = asyncio.ensure_future(room.reserve(name()))
        if short:
            assert [room.cut_unread(0.5), room.cut_unread(0.5)] == [1, 0]
        async with asyncio.timeout(0.5):
            await ended.wait()
        await asyncio.sleep(0.5)
        assert not waits.done() and not cut, "its client has its time"
        await asyncio.sleep(0.6)
        assert cut == [call.get_name()], "it does not read either"
        is_read.set()
        await asyncio.wait([call, waits], timeout=0.1)
        assert waits.done() and room.bytes_held == 0 and room._reading == 1

    run_in_virtual_time(main())


@on_loop
async def test_call_that_asks_a_disk_may_leave_and_its_errors_are_its_own() -> None:
    room = AnswerRoom(9 * EXPECTED, nobody, grace_s=9e9, unread_s=9e9)

    async def asks(error: BaseException | None) -> None:
        await room.reserve(name())
        with room.hold(1, name()):
            pass
        await room.reserve(name())
        try:
            async with room.asking_disk():
                if error is not None:
                    raise error
                await asyncio.sleep(3600.0)
        finally:
            room.release()

    for error in (TimeoutError("of the work"), OSError("of the disk")):
        with pytest.raises(type(error), match="of the"):
            await asyncio.create_task(asks(error))
    call = asyncio.ensure_future(asks(None))
    await asyncio.sleep(1.0)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled() and room._reading == room.bytes_held == 0


@pytest.mark.parametrize("has_begun", [True, False])
def test_answer_is_not_cut_for_calls_that_have_left_before_there_was_room(has_begun: bool) -> None:
    """Nobody waits for what it holds, so its client has the time that it has where nobody does."""

    async def main() -> None:
        cut: list[str] = []
        room = AnswerRoom(
            3 * EXPECTED - 1, lambda peer, _why: cut.append(peer), grace_s=1.0, unread_s=30.0
        )
        room._expected = EXPECTED
        goes_on, is_read = asyncio.Event(), asyncio.Event()
        slow = asyncio.ensure_future(reads_for(room, is_read))
        begun = asyncio.ensure_future(begun_call(room, goes_on))
        await asyncio.sleep(0)
        is_read.set()
        room._bytes_max = 2
        if has_begun:
            goes_on.set()
            gone = [begun]
        else:
            gone = [asyncio.ensure_future(room.reserve(name())) for _number in range(2)]
        await asyncio.sleep(0.1)
        assert bool(room._begun) is has_begun and room.new_calls_wait is (not has_begun)
        for call in gone:
            call.cancel()
        await asyncio.wait(gone)
        await asyncio.sleep(20.0)
        assert not room.new_calls_wait, "those who read would end their answers for them"
        assert cut == []
        await asyncio.sleep(20.0)
        assert slow.get_name() in cut
        for call in (slow, begun):
            call.cancel()
        await asyncio.wait([slow, begun])

    run_in_virtual_time(main())


@on_loop
async def test_call_that_waits_first_goes_on_in_place_of_its_own_last_part() -> None:
    """Not of that of another one which holds more: there would be no end to what is held."""
    room = room_of(4 * EXPECTED, grace_s=9e9, unread_s=9e9)
    goes_on = asyncio.Event()
    small, large = (
        asyncio.ensure_future(begun_call(room, goes_on, size)) for size in (1, EXPECTED)
    )
    await asyncio.sleep(0)
    assert room.bytes_held == 2 + 2 * EXPECTED
    room._bytes_max, room._expected = 3 * EXPECTED - 1, EXPECTED
    for _number in range(2):
        room._reading += 1  # two that began before
    goes_on.set()
    await asyncio.sleep(0)
    assert [answer.byte_count for _turn, answer in room._begun] == [2, 2 * EXPECTED]
    room.release()
    await asyncio.sleep(0)
    assert len(room._begun) == 2, "small has no room, and large waits behind it"
    room.release()
    await asyncio.sleep(0)
    for call in (small, large):
        call.cancel()
    await asyncio.wait([small, large])


@on_loop
async def test_new_calls_begin_in_turns_of_connections_and_those_that_hold_least_first() -> None:
    """Else a read waits behind hundreds of a client that lets each of them stand."""
    room = room_of(64 * MIB, grace_s=9e9, unread_s=9e9)
    order: list[str] = []

    async def reads(connection: str) -> None:
        await room.reserve(connection)
        order.append(connection)
        with room.hold(7 * MIB, connection):
            await asyncio.sleep(3600.0)

    many = [asyncio.ensure_future(reads("many")) for _number in range(20)]
    await until(lambda: len(room._held) == 4 and not room._reading)
    others = [asyncio.ensure_future(reads(each)) for each in ("one", "two", "two", "one")]
    await asyncio.sleep(0)
    for call, begun in zip(many, (5, 6), strict=False):
        call.cancel()
        await until(lambda begun=begun: len(order) == begun)  # type: ignore[misc]
    assert order == ["many"] * 4 + ["one", "two"]
    while room._waiting:
        next(iter(room._held)).cancel()
        await asyncio.sleep(0.01)
    assert sorted(order) == ["many"] * 20 + ["one"] * 2 + ["two"] * 2, "each has its turn"
    for call in (*many, *others):
        call.cancel()
    await asyncio.gather(*many, *others, return_exceptions=True)
    assert not room._calls_of and not room.bytes_held


@on_loop
async def test_room_of_a_call_whose_disk_is_slow_is_anothers_until_it_has_read() -> None:
    room = room_of(EXPECTED, grace_s=9e9, unread_s=9e9)
    goes_on, is_read = asyncio.Event(), asyncio.Event()

    async def reads(end: Callable[[], None]) -> None:
        await room.reserve(name())
        await goes_on.wait()
        end()

    def has_read() -> None:
        with room.hold(1, name()):
            pass

    for ends in (has_read, room.release):
        slow = asyncio.ensure_future(reads(ends))
        await asyncio.sleep(0)
        other = asyncio.ensure_future(reads_for(room, is_read))
        await asyncio.sleep(0)
        assert room._reading == 1 and room._waiting
        room.lend(slow)
        await asyncio.sleep(0)
        assert room._reading == 1 and not room._waiting
        goes_on.set()
        await slow
        assert room._reading == 1 and not room._lent, "the other's"
        other.cancel()
        await asyncio.wait([other])
        goes_on.clear()
        room._reading = 0


@on_loop
async def test_room_that_was_lent_is_had_again_only_if_there_is_some() -> None:
    room = room_of(EXPECTED, grace_s=9e9, unread_s=9e9)
    had: list[bool] = []

    async def reads() -> None:
        await room.reserve(name())
        had.append(room.take_back())
        call = asyncio.current_task()
        assert call is not None
        room.lend(call)
        room.lend(call)  # it waits again
        assert room._reading == 0
        room._reading += 1  # another one
        had.append(room.take_back())
        room._reading -= 1
        had.append(room.take_back())
        assert room._reading == 1
        room.release()

    await asyncio.ensure_future(reads())
    assert had == [True, False, True] and room._reading == 0
