"""Bounds of each kind of call, and room for answers that clients have not read yet."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine

import pytest

from bookie_server.service import answer_room, calls
from bookie_server.service.answer_room import AnswerRoom
from bookie_server.service.calls import BOUNDS, CallLimits, HangsUp, Kind
from bookie_server.service.guard.hanging_up import Why
from spark_ledger.limits.bookie import (
    BOOKIE_CALLS_MAX,
    BOOKIE_CONNECTION_SHARE,
    BOOKIE_RECEIVING_MAX,
)
from spark_ledger.limits.entries import READ_CHUNK_BYTES_TARGET
from spark_ledger.types import BookieStatus
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.leaves_open("AnswerRoom._look", reason="its service goes on")

PART = READ_CHUNK_BYTES_TARGET
"""Of an answer; more is only the part that has a larger entry."""


def on_loop(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """Runs a test in virtual time: its sleeps let all others run, and cost nothing."""

    def run() -> None:
        run_in_virtual_time(test())

    run.__name__ = test.__name__
    return run


def nobody(peer: str, why: Why) -> None:
    raise AssertionError(f"{peer} {why.value}")


def name() -> str:
    """Of the connection of the task that runs: each has one of its own."""
    task = asyncio.current_task()
    assert task is not None
    return task.get_name()


def hang_up(peer: str, why: Why) -> None:
    """As gRPC does it when the connection is gone."""
    assert why in (Why.UNREAD, Why.SILENT)
    for task in asyncio.all_tasks():
        if task.get_name() == peer:
            task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_grpc_refuses_no_call_that_its_kind_admits() -> None:
    """It does not know one kind from another."""
    assert sum(BOUNDS.values()) + BOOKIE_RECEIVING_MAX < BOOKIE_CALLS_MAX


def test_calls_above_the_bound_of_their_kind_are_told_to_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BOUNDS, Kind.POLL, 8)
    refused: Counter[str] = Counter()
    limits = CallLimits(nobody, refused)
    running = [limits.admitted(Kind.POLL, f"client {number % 4}") for number in range(8)]
    assert [call.__enter__() for call in running] == [None] * 8
    with limits.admitted(Kind.POLL, "client 5") as refusal:
        assert refusal is not None and refusal.status is BookieStatus.TOO_MANY_REQUESTS
        assert "8 tail requests" in refusal.message
    for kind in set(Kind) - {Kind.POLL}:
        with limits.admitted(kind, "client 0") as refusal:
            assert refusal is None, f"{kind} has a bound of its own"
    running.pop().__exit__(None, None, None)
    with limits.admitted(Kind.POLL, "client 5") as refusal:
        assert refusal is None
    assert refused == {"poll": 1}


def test_one_connection_cannot_take_all_calls_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BOUNDS, Kind.READ, 8)
    limits = CallLimits(nobody, Counter())
    with limits.admitted(Kind.READ, "greedy"), limits.admitted(Kind.READ, "greedy"):
        with limits.admitted(Kind.READ, "greedy") as refusal:
            assert refusal is not None and "2 of them for this connection" in refusal.message
        with limits.admitted(Kind.READ, "another") as refusal:
            assert refusal is None
    with limits.admitted(Kind.READ, "greedy") as refusal:
        assert refusal is None
    assert not limits._of_connection, "a connection that has no calls is forgotten"


@on_loop
async def test_oldest_call_without_its_request_ends_when_there_are_too_many() -> None:
    limits = CallLimits(hang_up, Counter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "BOOKIE_RECEIVING_MAX", 2)
        patch.setattr(calls, "BOOKIE_CONNECTION_SHARE", 1)

        async def receive() -> None:
            with limits.receiving(name()):
                await asyncio.Event().wait()

        tasks = []
        for _number in range(4):
            tasks.append(asyncio.ensure_future(receive()))
            await asyncio.sleep(0)
        await until(lambda: tasks[1].done())
        assert [task.cancelled() for task in tasks] == [True, True, False, False]
        assert limits.receiving_for(60.0) == set()
        assert limits.receiving_for(0.0) == {tasks[2].get_name(), tasks[3].get_name()}
        tasks[2].cancel()
        tasks[3].cancel()
        await until(lambda: not limits._receiving)


@on_loop
async def test_connection_with_a_share_of_all_calls_without_a_request_is_hung_up_on() -> None:
    """The calls of one end together, and keep the loop for that long."""
    ended: list[str] = []
    limits = CallLimits(lambda connection, _why: ended.append(connection), Counter())

    async def receive(connection: str) -> None:
        with limits.receiving(connection):
            await asyncio.Event().wait()

    share = BOOKIE_RECEIVING_MAX // BOOKIE_CONNECTION_SHARE
    tasks = [asyncio.ensure_future(receive("other")) for _ in range(share)]
    tasks += [asyncio.ensure_future(receive("greedy")) for _ in range(share)]
    await asyncio.sleep(0)
    assert not ended
    tasks.append(asyncio.ensure_future(receive("greedy")))
    await asyncio.sleep(0)
    assert ended == ["greedy"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not limits._receiving_from, "a connection that has no calls is forgotten"


class Reader:
    """A call that reads one part and writes it, once its client reads."""

    def __init__(self, room: AnswerRoom, byte_count: int) -> None:
        self.reads = asyncio.Event()
        self.has_read = False
        self.task = asyncio.ensure_future(self._run(room, byte_count))

    async def _run(self, room: AnswerRoom, byte_count: int) -> None:
        await room.reserve(name())
        self.has_read = True
        with room.hold(byte_count, name()):
            await self.reads.wait()


MIB = 1024 * 1024


def room_of(
    bytes_max: int, *, grace_s: float, unread_s: float, hang_up: HangsUp = hang_up
) -> AnswerRoom:
    """One that has seen small parts only."""
    room = AnswerRoom(bytes_max, hang_up, grace_s=grace_s, unread_s=unread_s)
    room._expected = answer_room._PART_BYTES_EXPECTED
    return room


@on_loop
async def test_first_parts_are_expected_to_be_large() -> None:
    room = AnswerRoom(64 * MIB, hang_up, grace_s=60.0, unread_s=60.0)
    waiting = [asyncio.ensure_future(room.reserve(name())) for _number in range(4)]
    await asyncio.sleep(0.01)
    assert [task.done() for task in waiting] == [True, True, False, False]
    for task in waiting:
        await until(task.done)
        with room.hold(1, name()):
            pass
    assert room._expected < 32 * MIB


@on_loop
async def test_reading_waits_until_answers_are_taken() -> None:
    room = room_of(6 * PART, grace_s=60.0, unread_s=60.0)
    readers = [Reader(room, PART) for _number in range(5)]
    await asyncio.sleep(0.01)
    assert [reader.has_read for reader in readers] == [True, True, True, False, False]
    assert room.bytes_held == 6 * PART, "gRPC has a copy"
    readers[1].reads.set()
    await until(lambda: readers[3].has_read)
    assert not readers[4].has_read
    for reader in readers:
        reader.reads.set()
    await asyncio.gather(*(reader.task for reader in readers))
    await asyncio.sleep(0)
    assert (room.bytes_held, room._reading) == (0, 0)


@on_loop
async def test_large_parts_are_read_one_after_the_other() -> None:
    """The size of a part is not known before it is read: it is expected to be like the last."""
    room = room_of(64 * MIB, grace_s=60.0, unread_s=60.0)
    Reader(room, 16 * MIB).reads.set()
    await asyncio.sleep(0.01)
    waiting = [asyncio.ensure_future(room.reserve(name())) for _number in range(5)]
    await asyncio.sleep(0.01)
    assert [task.done() for task in waiting] == [True, True, False, False, False]
    for task in waiting:
        await until(task.done)
        room.release()
    assert room._reading == 0


@on_loop
async def test_answer_that_nobody_reads_is_cut_when_others_wait() -> None:
    room = room_of(3 * MIB, grace_s=0.05, unread_s=60.0)
    idle = Reader(room, MIB)
    await asyncio.sleep(0.1)
    assert not idle.task.done(), "nobody waits"
    waiting = Reader(room, MIB)
    waiting.reads.set()
    await waiting.task
    assert idle.task.cancelled()
    await asyncio.sleep(0)
    assert (room.bytes_held, room._reading) == (0, 0)


@on_loop
async def test_clients_that_leave_while_they_wait_leave_their_room_to_others() -> None:
    room = room_of(3 * MIB, grace_s=60.0, unread_s=60.0)
    first, gone, last = (Reader(room, MIB) for _number in range(3))
    await asyncio.sleep(0.01)
    gone.task.cancel()
    first.reads.set()
    await until(lambda: last.has_read)
    waiting = asyncio.ensure_future(room.reserve(name()))
    await asyncio.sleep(0.01)
    last.reads.set()
    await last.task
    waiting.cancel()  # in the moment in which it may go on
    await asyncio.gather(waiting, return_exceptions=True)
    assert (room.bytes_held, room._reading) == (0, 0)


@on_loop
async def test_unread_answers_are_cut_by_their_age() -> None:
    room = room_of(64 * MIB, grace_s=60.0, unread_s=60.0)
    old = Reader(room, MIB)
    await asyncio.sleep(0.05)
    new = Reader(room, MIB)
    await asyncio.sleep(0)
    assert room.cut_unread(0.04) == 1
    await until(old.task.cancelled)
    assert not new.task.done()
    new.reads.set()
    await new.task


@on_loop
async def test_answer_that_is_never_read_is_cut_in_the_end() -> None:
    room = room_of(64 * MIB, grace_s=0.0, unread_s=0.05)
    reader = Reader(room, MIB)
    await until(reader.task.cancelled)
    await until(lambda: room.bytes_held == 0)


@pytest.mark.parametrize("readers", [1, 31, 32, 40, 200])
@pytest.mark.parametrize("written_in_s", [0.0, 0.005, 0.9])
def test_answers_that_are_read_are_not_cut_however_many_and_long_they_are(
    readers: int, written_in_s: float
) -> None:
    """Each call holds its last part until it writes the next: together they fill the room."""
    parts = 4 if written_in_s > 0.1 else 16

    async def main() -> None:
        room = room_of(64 * PART, grace_s=1.0, unread_s=30.0, hang_up=nobody)

        async def call() -> None:
            for _part in range(parts):
                await room.reserve(name())
                await asyncio.sleep(0.001)
                with room.hold(PART, name()):
                    most.append(room.bytes_held)
                    await asyncio.sleep(written_in_s)

        most: list[int] = []
        every = asyncio.gather(*(call() for _number in range(readers)))
        while not every.done():
            await asyncio.sleep(0.4)
            assert room.cut_unread(1.0) == 0
        await every
        assert max(most) <= 66 * PART
        await asyncio.sleep(0)
        assert (room.bytes_held, room._reading, room._writing) == (0, 0, 0)

    run_in_virtual_time(main())


def test_large_entries_go_on_one_after_the_other_where_all_room_is_held() -> None:
    """What is read next is expected to be as large as the last: more than there is room for."""

    async def main() -> None:
        room = room_of(64 * MIB, grace_s=1.0, unread_s=30.0, hang_up=nobody)

        async def call(sizes: list[int]) -> None:
            for size in sizes:
                await room.reserve(name())
                await asyncio.sleep(0.001)
                with room.hold(size, name()):
                    await asyncio.sleep(0.001)

        small, large = [MIB] * 8, [MIB, 16 * MIB, 16 * MIB, MIB]
        async with asyncio.timeout(10.0):  # or somebody waits for a cut
            await asyncio.gather(*(call(large if n % 5 == 0 else small) for n in range(60)))

    run_in_virtual_time(main())


def test_call_whose_client_stops_is_cut_and_not_those_that_wait_for_it() -> None:
    async def main() -> None:
        room = room_of(64 * MIB, grace_s=1.0, unread_s=30.0)

        async def call(parts: int, stops_at: int | None) -> None:
            for part in range(parts):
                await room.reserve(name())
                with room.hold(MIB, name()):
                    await asyncio.sleep(3600.0 if part == stops_at else 0.01)

        idle = [asyncio.ensure_future(call(8, 2)) for _number in range(3)]
        honest = [asyncio.ensure_future(call(16, None)) for _number in range(60)]
        await asyncio.gather(*honest)
        await asyncio.gather(*idle, return_exceptions=True)
        assert [task.cancelled() for task in idle] == [True] * 3

    run_in_virtual_time(main())


@on_loop
async def test_part_counts_until_the_next_is_written_or_the_call_ends() -> None:
    """gRPC takes a part at once, and keeps it for a client that does not read."""
    room = room_of(64 * MIB, grace_s=60.0, unread_s=60.0)
    ends = asyncio.Event()

    async def call() -> None:
        for size in (MIB, 2 * MIB, 3 * MIB):
            await room.reserve(name())
            with room.hold(size, name()):
                held.append(room.bytes_held)
        held.append(room.bytes_held)
        await ends.wait()

    held: list[int] = []
    task = asyncio.ensure_future(call())
    await until(lambda: len(held) == 4)
    assert held == [2 * MIB, 6 * MIB, 10 * MIB, 6 * MIB]
    ends.set()
    await task
    await until(lambda: room.bytes_held == 0)


def test_refused_calls_make_no_room_and_ended_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BOUNDS, Kind.READ, 8)
    limits = CallLimits(nobody, Counter())
    running = [limits.admitted(Kind.READ, f"client {number}") for number in range(8)]
    assert [call.__enter__() for call in running] == [None] * 8
    for _ in range(3):
        with limits.admitted(Kind.READ, "another") as refusal:
            assert refusal is not None
    for call in running:
        call.__exit__(None, None, None)
    for _ in range(9):
        with (
            pytest.raises(ValueError, match="in the handler"),
            limits.admitted(Kind.READ, "client 0") as refusal,
        ):
            assert refusal is None
            raise ValueError("in the handler")
    assert not +limits._running and not limits._of_connection


def test_kinds_have_bounds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in Kind:
        monkeypatch.setitem(BOUNDS, kind, 4)
    limits = CallLimits(nobody, Counter())
    running = [limits.admitted(Kind.POLL, f"client {number}") for number in range(4)]
    assert [call.__enter__() for call in running] == [None] * 4
    for kind in set(Kind) - {Kind.POLL}:
        with limits.admitted(kind, "client 0") as refusal:
            assert refusal is None
    for call in running:
        call.__exit__(None, None, None)


@on_loop
async def test_room_of_a_client_that_leaves_goes_to_the_next_at_once() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_room, "_LOOK_AGAIN_S", 60.0)
        room = AnswerRoom(3 * MIB, hang_up, grace_s=60.0, unread_s=60.0)
        holding = Reader(room, MIB)
        await asyncio.sleep(0.01)
        waiting = Reader(room, MIB)
        await asyncio.sleep(0.01)
        assert not waiting.has_read
        holding.task.cancel()
        await until(lambda: waiting.has_read)


def test_room_of_a_smaller_part_goes_to_who_waits_at_once() -> None:
    """And not when somebody looks again."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        room = room_of(12 * MIB, grace_s=60.0, unread_s=60.0, hang_up=nobody)
        ends = asyncio.Event()

        async def call() -> None:
            for size in (4 * MIB, 1):
                await room.reserve(name())
                with room.hold(size, name()):
                    await asyncio.sleep(0.5)
            await ends.wait()

        began, task = loop.time(), asyncio.ensure_future(call())
        await asyncio.sleep(0.893)
        waiting = asyncio.ensure_future(room.reserve(name()))
        await asyncio.sleep(0)
        assert not waiting.done()
        await waiting
        assert loop.time() - began == pytest.approx(1.0, abs=0.005), "the next look is later"
        room.release()
        ends.set()
        await task

    run_in_virtual_time(main())


async def read(draw: random.Random) -> None:
    await asyncio.sleep(draw.choice([0.0, 0.001]))
    if draw.random() < 0.1:
        raise OSError("the disk")


@pytest.mark.parametrize("seed", range(30))
def test_calls_that_end_at_any_moment_give_back_what_they_had_and_no_more(seed: int) -> None:
    """Their clients leave, their reads fail, while they wait for room, read or write."""

    async def main() -> None:
        draw = random.Random(seed)
        room = room_of(draw.choice([3, 12, 64]) * MIB, grace_s=9e9, unread_s=9e9, hang_up=nobody)
        reading: set[asyncio.Task[None] | None] = set()

        async def call(parts: list[int]) -> None:
            for size in parts:
                await room.reserve(name())
                reading.add(asyncio.current_task())
                try:
                    await read(draw)
                except BaseException:
                    room.release()
                    raise
                finally:
                    reading.discard(asyncio.current_task())
                with room.hold(size, name()):
                    await asyncio.sleep(draw.choice([0.0, 0.001, 0.003]))

        def sizes() -> list[int]:
            return draw.choices([1, MIB, 16 * MIB], (8, 4, 1), k=draw.randint(1, 5))

        running = [asyncio.ensure_future(call(sizes())) for _number in range(40)]
        for task in draw.sample(running, 25):
            await asyncio.sleep(draw.choice([0.0, 0.0, 0.001]))
            task.cancel()
            assert room._reading >= len(reading), f"seed {seed}: a turn that was not had is back"
            assert room._writing >= 0 and room.bytes_held >= 0
        await asyncio.wait(running)
        await asyncio.sleep(0)
        kept = room._reading, room._writing, room.bytes_held, room._held
        assert kept == (0, 0, 0, {}), f"seed {seed}"
        assert not room._begun and not room._waiting, f"seed {seed}"

    run_in_virtual_time(main())
