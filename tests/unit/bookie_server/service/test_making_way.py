"""Calls that only wait make way for another connection's, where all run that may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from bookie_server.service import spare_streams
from bookie_server.service.calls import BOUNDS, Kind
from bookie_server.service.guard.hanging_up import Why
from bookie_server.service.long_polls import LongPolls
from bookie_server.service.metrics import ServiceMetrics
from bookie_server.service.spare_streams import SpareStreams
from spark_ledger.limits.bookie import BOOKIE_RECEIVE_S, BOOKIE_UNREAD_GRACE_S
from spark_ledger.types import BookieStatus
from spark_ledger.wire import bookie_pb2 as pb
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.hostile.http2 import RawConnection, message
from tests.unit.bookie_server.service.test_grpc_service import BOOKIE, HERE, Fixture, on_loop
from tests.unit.bookie_server.service.test_hostile_calls import connect, until

POLL = pb.ReadLastConfirmedRequest(ledger_id=1, wait_above=50, wait_ms=20_000)


async def polls(f: Fixture, connections: int, each: int) -> list[RawConnection]:
    flood = [await connect(f) for _number in range(connections)]
    for connection in flood:
        for _number in range(each):
            await connection.ask("ReadLastConfirmed", BOOKIE, POLL.SerializeToString())
    await until(lambda: f.metrics.long_polls == connections * each)
    return flood


def test_greedy_connections_leave_room_for_the_tail_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BOUNDS, Kind.POLL, 16)

    @on_loop
    async def run(f: Fixture) -> None:
        await f.store(0, 1)
        flood = await polls(f, 4, 4)
        honest = [
            asyncio.ensure_future(f.stub.ReadLastConfirmed(POLL, timeout=30, metadata=HERE))
            for _number in range(2)
        ]
        await until(lambda: sum(len(connection.ended) for connection in flood) == 2)
        assert f.metrics.long_polls == 16 and len(f.service._polls) == 16
        assert sorted(len(connection.ended) for connection in flood) == [0, 0, 1, 1]
        assert not any(each.done() for each in honest)
        assert f.metrics.calls_refused["poll"] == 2, "some were told to come later"
        # Those that made way ask again, and now they are no better than others.
        for connection in flood:
            for stream in connection.ended:
                assert stream == 1, "the oldest of them"
                await connection.ask("ReadLastConfirmed", BOOKIE, POLL.SerializeToString())
        await until(lambda: f.metrics.calls_refused["poll"] == 4)
        assert f.metrics.long_polls == 16 and not any(each.done() for each in honest)
        ledger = f.bookie.ledgers[next(iter(f.bookie.ledgers))]
        f.bookie._confirm(ledger, 51)
        for each in honest:
            assert (await each).last_add_confirmed == 51
        for connection in flood:
            await connection.close()

    run()


def test_poll_that_makes_way_is_told_that_the_bookie_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose client has several comes again later; were it answered, it would come at once."""
    monkeypatch.setitem(BOUNDS, Kind.POLL, 2)
    monkeypatch.setattr("bookie_server.service.calls.BOOKIE_CONNECTION_SHARE", 1)

    @on_loop
    async def run(f: Fixture) -> None:
        await f.store(0, 1)
        mine = [
            asyncio.ensure_future(f.stub.ReadLastConfirmed(POLL, timeout=30, metadata=HERE))
            for _number in range(2)
        ]
        await until(lambda: f.metrics.long_polls == 2)
        other, third = await connect(f), await connect(f)
        await other.ask("ReadLastConfirmed", BOOKIE, POLL.SerializeToString())
        done, (left,) = await asyncio.wait(mine, return_when=asyncio.FIRST_COMPLETED)
        answer = done.pop().result()
        assert answer.status == pb.TOO_MANY_REQUESTS and "ask again later" in answer.message
        stream = await third.ask("ReadLastConfirmed", BOOKIE, POLL.SerializeToString())
        await third.until_ended(stream)
        assert not left.done(), "who has one keeps it: two that have as many would take turns"
        left.cancel()
        for connection in (other, third):
            await connection.close()

    run()


def test_look_for_a_poll_in_vain_is_not_repeated_at_once_for_who_has_as_many() -> None:
    looks, now = 0, 0.0

    class Polls(dict[str, Any]):
        def values(self) -> Any:
            nonlocal looks
            looks += 1
            return super().values()

    long_polls = LongPolls(ScriptedBookie(), ServiceMetrics(), clock=lambda: now)
    long_polls._of_connection = Polls(a={None: None}, b={None: None})
    assert [long_polls.make_way(own) for own in (1, 1, 2)] == [False] * 3 and looks == 1
    assert not long_polls.make_way(0) and looks == 2, "who has fewer may find one"
    assert not long_polls.make_way(1) and looks == 2
    now = 1.0
    assert not long_polls.make_way(1) and looks == 3


def test_polls_that_make_way_in_one_turn_are_as_many_as_are_let_in() -> None:
    """Calls that come in one turn of the loop: each has a poll end that no other one ends."""

    async def main() -> None:
        long_polls = LongPolls(ScriptedBookie(), ServiceMetrics())
        waiting = [asyncio.create_task(long_polls.end_of_ledger(POLL, "greedy")) for _ in range(4)]
        await asyncio.sleep(0)
        assert len(long_polls) == 4
        assert [long_polls.make_way(0) for _ in range(4)] == [True, True, True, False]
        assert len(long_polls) == 1
        await asyncio.sleep(0.01)
        ended = [each.result().status for each in waiting if each.done()]
        assert ended == [BookieStatus.TOO_MANY_REQUESTS] * 3
        long_polls.drain()
        await asyncio.gather(*waiting)
        assert len(long_polls) == 0

    asyncio.run(main())


def test_idle_append_streams_of_others_do_not_keep_a_new_writer_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BOUNDS, Kind.APPEND, 16)
    monkeypatch.setattr(spare_streams, "_IDLE_S", 0.0)

    @on_loop
    async def run(f: Fixture) -> None:
        known = f.stub.Append(metadata=HERE)
        run = pb.EntryRun(ledger_id=1, first_entry=0, sizes=[50], frames=bytes(50))
        await known.write(pb.AppendRequest(adds=[pb.AddRun(tag=1, run=run)]))
        await known.read()
        flood = [await connect(f, window=0) for _number in range(5)]
        for connection in flood:
            for _number in range(3):
                await connection.call("Append", BOOKIE)
        await until(lambda: f.metrics.append_streams == 16)
        newcomer = grpc.aio.insecure_channel(f.address)
        append: Any = newcomer.stream_stream(
            "/spark_ledger.v1.Bookie/Append",
            request_serializer=pb.AppendRequest.SerializeToString,
            response_deserializer=pb.AppendResponse.FromString,
        )
        call = append(metadata=HERE)
        run.first_entry = 1
        await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=1, run=run)]))
        (result,) = (await call.read()).results
        assert (result.status, result.last_entry) == (pb.OK, 1)
        await until(lambda: f.metrics.append_streams == 16)
        assert sorted(len(each.ended) for each in flood) == [0, 0, 0, 0, 1]
        assert f.metrics.calls["Append", "RESOURCE_EXHAUSTED"] == 1
        assert not known.done(), "of which something was stored"
        call.cancel()
        await newcomer.close()
        for connection in flood:
            await connection.close()

    run()


def test_streams_whose_answers_nobody_reads_do_not_keep_a_new_writer_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A status would wait behind the answer: their connection ends."""
    monkeypatch.setitem(BOUNDS, Kind.APPEND, 4)
    monkeypatch.setattr(spare_streams, "BOOKIE_UNREAD_GRACE_S", 0.05)
    monkeypatch.setattr(spare_streams, "BOOKIE_RECEIVE_S", 0.1)
    monkeypatch.setattr(spare_streams, "_IDLE_S", 0.0)
    monkeypatch.setattr(spare_streams, "_LOOK_AGAIN_S", 0.0)

    @on_loop
    async def run(f: Fixture) -> None:
        flood = [await connect(f, window=0) for _number in range(4)]
        bad = pb.AppendRequest(adds=[pb.AddRun(tag=1)]).SerializeToString()
        for connection in flood:
            await connection.send(await connection.call("Append", BOOKIE), message(bad))
        await until(lambda: f.metrics.append_streams == 4)
        first = f.stub.Append(metadata=HERE)
        assert await first.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await asyncio.sleep(0.15)
        await f.store(0, 1)
        await until(lambda: f.metrics.connections_ended == {"unread": 1})
        for connection in flood:
            await connection.close()

    run()


def test_stream_whose_first_entry_is_on_its_way_to_the_disk_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BOUNDS, Kind.APPEND, 1)
    monkeypatch.setattr(spare_streams, "BOOKIE_RECEIVE_S", 0.0)
    monkeypatch.setattr(spare_streams, "_IDLE_S", 0.0)
    monkeypatch.setattr(spare_streams, "_LOOK_AGAIN_S", 0.0)

    @on_loop
    async def run(f: Fixture) -> None:
        f.bookie.hold = True
        working = f.stub.Append(metadata=HERE)
        run = pb.EntryRun(ledger_id=1, first_entry=0, sizes=[50], frames=bytes(50))
        await working.write(pb.AppendRequest(adds=[pb.AddRun(tag=1, run=run)]))
        await until(lambda: bool(f.bookie.adds))
        other = await connect(f)
        for turn in range(2):
            await other.until_ended(await other.call("Append", BOOKIE))
            assert f.metrics.calls_refused["append"] == turn + 1
        f.bookie.release()
        (result,) = (await working.read()).results
        assert (result.status, result.last_entry) == (pb.OK, 0)
        working.cancel()
        await other.close()

    run()


@dataclass(eq=False)
class Stream:
    peer: str
    idle_s: float = 60.0
    unread_s: float = -1.0
    is_known: bool = False
    ends: bool = False
    told: list[str] = field(default_factory=list)

    def end_refused(self, message: str) -> None:
        self.ends = True
        self.told.append(message)


class Counted(tuple[Stream, ...]):
    """Streams; counts how often all are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Stream]:
        self.looks += 1
        return super().__iter__()


class World:
    def __init__(self, *streams: Stream) -> None:
        self.now = 0.0
        self.hung_up: list[tuple[str, Why]] = []
        self.streams = Counted(streams)
        self.spare = SpareStreams(
            self.streams, lambda *who: self.hung_up.append(who), clock=lambda: self.now
        )


def test_longest_idle_stream_of_the_connection_with_most_makes_way_first() -> None:
    many = [Stream("many", idle_s=n) for n in (1.0, 3.0, 2.0)]
    few = [Stream("few", idle_s=100.0) for _ in range(2)]
    world = World(*many, *few, Stream("one", idle_s=1_000.0))
    assert world.spare.make_way(0) and [each.ends for each in many] == [False, True, False]
    assert world.spare.make_way(0), "of those that have as many now, who is idle for longest"
    assert sum(each.ends for each in few) == 1
    assert world.spare.make_way(0) and many[2].ends
    assert not world.hung_up and "open a new one" in many[1].told[0]


def test_connection_that_has_streams_takes_none_of_one_that_has_hardly_more() -> None:
    world = World(*(Stream("a") for _ in range(3)), *(Stream("b") for _ in range(2)))
    assert not world.spare.make_way(2)
    assert world.spare.make_way(1)
    assert not world.spare.make_way(1)


@pytest.mark.parametrize(
    "stays",
    [
        Stream("a", is_known=True),
        Stream("a", idle_s=-1.0),
        Stream("a", unread_s=BOOKIE_UNREAD_GRACE_S / 2),
        Stream("a", idle_s=BOOKIE_RECEIVE_S / 2),
    ],
    ids=["stored something", "at work", "about to be read", "just opened"],
)
def test_only_stream_of_its_connection_stays_if_it_is_of_use(stays: Stream) -> None:
    world = World(stays)
    assert not world.spare.make_way(0) and not stays.told
    assert World(Stream("a")).spare.make_way(0), "one that is of none makes way"
    assert not World(Stream("a")).spare.make_way(1), "but not for who has one"


def test_all_streams_are_looked_at_once_in_a_while_however_many_make_way() -> None:
    streams = [Stream(f"a{n % 9}", idle_s=10.0 + n) for n in range(200)]
    world = World(*streams)
    for _ in range(20):
        assert world.spare.make_way(0)
    assert world.streams.looks == 1 and sum(each.ends for each in streams) == 20
    while world.spare.make_way(0):
        pass
    assert sum(each.ends for each in streams) < 200, "so many at once, and no more"
    for _ in range(5):
        assert not world.spare.make_way(0)
    assert world.streams.looks == 1
    world.now += 1.0
    assert world.spare.make_way(0) and world.streams.looks == 2


def test_look_in_vain_is_not_repeated_at_once() -> None:
    world = World(*(Stream("a", is_known=True) for _ in range(4)))
    assert not world.spare.make_way(1)
    for stream in world.streams:
        stream.is_known = False
    assert not world.spare.make_way(1) and not world.spare.make_way(0)
    world.now += 1.0
    assert world.spare.make_way(1)


@pytest.mark.parametrize("change", ["stored something", "works", "ends", "has gone"])
def test_stream_that_is_spare_no_more_does_not_make_way(change: str) -> None:
    """Since the look that found it."""
    first, second = Stream("a", idle_s=30.0), Stream("a", idle_s=20.0)
    world = World(first, second, *(Stream("a", idle_s=10.0) for _ in range(4)))
    assert not world.spare.make_way(5)
    if change == "stored something":
        first.is_known = True
    elif change == "works":
        first.idle_s = 0.0
    elif change == "ends":
        first.ends = True
    else:
        world.spare._open = world.streams[1:]
    assert world.spare.make_way(0)
    assert not first.told and second.told


@pytest.mark.parametrize(
    ("idle_s", "of_connection", "makes_way"),
    [(0.5, 4, False), (2.0, 4, True), (0.05, 9, False), (0.5, 9, True)],
)
def test_stream_that_has_just_begun_to_wait_stays_for_less_if_it_is_one_of_many(
    idle_s: float, of_connection: int, makes_way: bool
) -> None:
    """Else somebody keeps all streams who sends nothing on each of them once in a second."""
    fresh = [Stream("a", idle_s=idle_s) for _ in range(of_connection)]
    assert World(*fresh).spare.make_way(0) is makes_way


def test_connection_of_which_something_was_stored_is_not_hung_up_on() -> None:
    unread = Stream("a", unread_s=2 * BOOKIE_UNREAD_GRACE_S)
    world = World(unread, *(Stream("a", is_known=True) for _ in range(3)))
    assert not world.spare.make_way(0) and not world.hung_up
    world = World(unread, Stream("a", idle_s=5.0), Stream("a", is_known=True))
    assert world.spare.make_way(0), "another one of it makes way"
    assert not world.hung_up and not unread.told


def test_connection_of_a_stream_that_nobody_reads_is_hung_up_on() -> None:
    world = World(Stream("a", unread_s=2 * BOOKIE_UNREAD_GRACE_S))
    assert world.spare.make_way(0)
    assert world.hung_up == [("a", Why.UNREAD)]


def test_reads_that_wait_leave_room_for_the_read_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told to come later if it is one of many, and its client asks again."""
    monkeypatch.setitem(BOUNDS, Kind.READ, 6)
    monkeypatch.setattr("bookie_server.service.calls.BOOKIE_CONNECTION_SHARE", 1)

    @on_loop
    async def run(f: Fixture) -> None:
        await f.store(0, 1)
        f.service._answers._bytes_max = 0  # one part at a time
        wanted = pb.ReadRequest(ledger_id=1, last_entry=1)
        flood = await connect(f, window=0)
        for _number in range(6):
            await flood.ask("Read", BOOKIE, wanted.SerializeToString())
        await until(lambda: f.service._limits._running[Kind.READ] == 6)
        call = f.stub.Read(wanted, timeout=30, metadata=HERE)
        answer = asyncio.ensure_future(call.read())
        await until(lambda: f.metrics.calls_refused["read"] == 1)
        await until(lambda: len(f.service._answers._waiting) == 2)
        waiting = sorted(map(len, f.service._answers._waiting.values()))
        assert waiting == [1, 4], "one has made way"
        assert not answer.done()
        await flood.close()
        assert (await answer).status == pb.OK
        call.cancel()

    run()
