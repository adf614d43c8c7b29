"""Append streams of ledgers that they may not write: they are ended, and honest ones are not."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from bookie_server.service import append_session, held_messages, refused_appenders
from spark_ledger.bookie_api import ASKED_BY
from spark_ledger.limits.bookie import BOOKIE_UNKNOWN_ADDS_MAX, FIRST_CONTACT_LOOKUPS_MAX
from spark_ledger.types import BookieStatus
from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.bookie_server.service.test_grpc_service import HERE, Fixture, on_loop
from tests.unit.bookie_server.service.test_hostile_calls import until


def adds_of(tags: range) -> pb.AppendRequest:
    run = pb.EntryRun(ledger_id=1, sizes=[50], frames=bytes(50))
    return pb.AppendRequest(adds=[pb.AddRun(tag=tag, run=run) for tag in tags])


async def read_to_the_end(call: Any) -> str:
    """Why the call was ended."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await call.read() is not grpc.aio.EOF:
            pass
    return str(caught.value.details())


@pytest.mark.parametrize("stores", [False, True])
def test_stream_of_adds_that_nobody_may_make_is_ended(
    stores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had to be looked up. One that stores something between is no stranger."""

    @on_loop
    async def run(f: Fixture) -> None:
        honest = f.bookie.add

        def add(*args: Any, done: Any, **more: Any) -> None:
            if is_refused:
                done(BookieStatus.UNAUTHORIZED, "it is not in the metadata")
            else:
                honest(*args, done=done, **more)

        async def answered(call: Any, tags: range) -> None:
            await call.write(adds_of(tags))
            count = 0
            while count < len(tags):
                count += len((await call.read()).results)

        monkeypatch.setattr(f.bookie, "add", add)
        call, is_refused = f.stub.Append(metadata=HERE), True
        await answered(call, range(1, BOOKIE_UNKNOWN_ADDS_MAX + 1))
        is_refused = not stores
        await answered(call, range(1_000, 1_001))
        is_refused = True
        if stores:
            await answered(call, range(2_000, 2_000 + BOOKIE_UNKNOWN_ADDS_MAX))
            call.cancel()
            return
        await call.write(adds_of(range(3_000, 3_001)))
        with pytest.raises(
            grpc.aio.AioRpcError, match="257 ledgers of this stream may not be written"
        ):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT

    run()


@on_loop
async def test_refusals_of_one_ledger_count_once_however_many_adds_were_on_their_way(
    f: Fixture,
) -> None:
    """A writer whose ledger was deleted has hundreds in flight, and others share its stream."""
    waiting: list[Any] = []
    f.bookie.add = lambda *_args, done, **_more: waiting.append(done)  # type: ignore[method-assign]
    call = f.stub.Append(metadata=HERE)
    one = adds_of(range(1, 2)).adds[0]
    await call.write(pb.AppendRequest(adds=[one] * (BOOKIE_UNKNOWN_ADDS_MAX + 50)))
    await until(lambda: len(waiting) == BOOKIE_UNKNOWN_ADDS_MAX + 50)
    for done in waiting:
        done(BookieStatus.UNAUTHORIZED, "it is not in the metadata")
    assert (await call.read()).results
    await call.write(adds_of(range(2, 3)))
    await until(lambda: len(waiting) == BOOKIE_UNKNOWN_ADDS_MAX + 51)
    waiting[-1](BookieStatus.OK, "")
    assert [result.status for result in (await call.read()).results] == [pb.OK]
    await call.write(adds_of(range(3, 4)))  # a stream that is about to end has answered, too
    async with asyncio.timeout(2):
        await until(lambda: len(waiting) == BOOKIE_UNKNOWN_ADDS_MAX + 52)
    waiting[-1](BookieStatus.OK, "")
    assert [result.status for result in (await call.read()).results] == [pb.OK]
    call.cancel()


def hold_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Hold messages for so long; each of their adds has a turn of its own."""
    monkeypatch.setattr(append_session, "APPEND_TURN_S", 0.0)
    monkeypatch.setattr(append_session, "BOOKIE_HELD_MESSAGE_S", seconds)


@pytest.mark.parametrize("then", ["refused", "stored", "busy", "stalls", "drains"])
def test_stream_that_has_stored_nothing_is_read_on_as_its_ledgers_are_looked_up(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message may ask for thousands: the answers to the first of them end the stream, and the
    others cost nobody a look."""
    hold_for(monkeypatch, 60.0)

    @on_loop
    async def run(f: Fixture) -> None:
        waiting: list[Any] = []
        asked = 0

        def add(*_args: Any, done: Any, **_more: Any) -> None:
            nonlocal asked
            asked += 1
            waiting.append(done)

        monkeypatch.setattr(f.bookie, "add", add)
        call = f.stub.Append(metadata=HERE)
        await call.write(adds_of(range(1, 1_001)))
        at_once = FIRST_CONTACT_LOOKUPS_MAX + 1
        await until(lambda: asked == at_once)
        for _ in range(100):
            await asyncio.sleep(0)
        assert asked == at_once, "the others wait in the message"
        if then != "refused":
            if then == "stored":
                waiting.pop(0)(BookieStatus.OK, "")
            elif then == "busy":
                waiting.pop(0)(BookieStatus.TOO_MANY_REQUESTS, "no answer within 3 s")
            elif then == "drains":
                f.service.drain()
            else:
                f.service.disks_stall("nothing moves: all have to hear of it (rule S15)")
            await until(lambda: asked == 1_000)
            while waiting:
                waiting.pop(0)(BookieStatus.OK, "")
            call.cancel()
            return
        end = asyncio.create_task(read_to_the_end(call))
        while waiting or not end.done():
            if waiting:
                waiting.pop(0)(BookieStatus.UNAUTHORIZED, "it is not in the metadata")
            await asyncio.sleep(0)
        assert "257 ledgers" in await end
        assert asked <= BOOKIE_UNKNOWN_ADDS_MAX + 1 + at_once

    run()


def test_process_that_begins_many_ledgers_while_zookeeper_is_away_is_taken_in_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Look-ups are given up after 3 s, and a writer gives a bookie up after 5 s of silence: what
    was held until the first of them are answered hears nothing in time."""
    hold_for(monkeypatch, 0.02)

    @on_loop
    async def run(f: Fixture) -> None:
        waiting: list[Any] = []
        add = lambda *_args, done, **_more: waiting.append(done)  # noqa: E731
        monkeypatch.setattr(f.bookie, "add", add)
        call = f.stub.Append(metadata=HERE)
        await call.write(adds_of(range(1, 401)))
        await until(lambda: len(waiting) == 400)
        hold_for(monkeypatch, 60.0)
        await call.write(adds_of(range(401, 801)))
        await until(lambda: len(waiting) == 800)
        call.cancel()
        await until(lambda: not f.service._sessions)
        while waiting:
            waiting.pop()(BookieStatus.OK, "")

    run()


@pytest.mark.parametrize(("then", "turn_s"), [("unknown", 0.0), ("unknown", 60.0), ("busy", 60.0)])
def test_stream_of_which_a_ledger_is_unknown_is_held_for_longer(
    then: str, turn_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata can be read: it is no process that waits for ZooKeeper. Let in after a while,
    the thousands behind the first look-ups took as long as if nobody had held them."""
    hold_for(monkeypatch, 1.0)
    monkeypatch.setattr(append_session, "APPEND_TURN_S", turn_s)

    @on_loop
    async def run(f: Fixture) -> None:
        waiting: list[Any] = []
        add = lambda *_args, done, **_more: waiting.append(done)  # noqa: E731
        monkeypatch.setattr(f.bookie, "add", add)
        call = f.stub.Append(metadata=HERE)
        at_once = 100 if turn_s else FIRST_CONTACT_LOOKUPS_MAX + 1
        await call.write(adds_of(range(1, 101)))
        await call.write(adds_of(range(101, 201)))
        await until(lambda: len(waiting) == at_once)
        waiting.pop(0)(BookieStatus.UNAUTHORIZED, "it is not in the metadata")
        await call.read()
        if then == "busy":
            waiting.pop(0)(BookieStatus.TOO_MANY_REQUESTS, "no answer within 3 s")
            await call.read()
        await asyncio.sleep(1.2)
        assert len(waiting) <= at_once, "at most one for each that was answered"
        call.cancel()
        await until(lambda: not f.service._sessions)
        while waiting:
            waiting.pop()(BookieStatus.OK, "")

    run()


def test_message_that_is_held_goes_on_with_a_stall_of_which_its_first_adds_have_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold_for(monkeypatch, 60.0)

    @on_loop
    async def run(f: Fixture) -> None:
        waiting: list[Any] = []
        add = lambda *_args, done, **_more: waiting.append(done)  # noqa: E731
        monkeypatch.setattr(f.bookie, "add", add)
        call = f.stub.Append(metadata=HERE)
        await call.write(adds_of(range(1, 401)))
        at_once = FIRST_CONTACT_LOOKUPS_MAX + 1
        await until(lambda: len(waiting) == at_once)
        f.service.disks_stall("nothing moves")
        f.service.disks_stall("")
        assert len((await call.read()).results) == at_once
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(waiting) == at_once, "the stall is over"
        f.service.disks_stall("nothing moves again")
        await until(lambda: len(waiting) == 400)
        assert (await call.read()).results[0].status == pb.STALLED
        call.cancel()
        await until(lambda: not f.service._sessions)
        while waiting:
            waiting.pop()(BookieStatus.OK, "")

    run()


def test_messages_that_wait_for_look_ups_take_no_more_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody counts the adds that were not taken in yet."""
    size = adds_of(range(1, 101)).ByteSize()
    hold_for(monkeypatch, 60.0)
    monkeypatch.setattr(held_messages, "BOOKIE_HELD_MESSAGES_BYTES", 2 * size)

    @on_loop
    async def run(f: Fixture) -> None:
        waiting: list[Any] = []
        add = lambda *_args, done, **_more: waiting.append(done)  # noqa: E731
        monkeypatch.setattr(f.bookie, "add", add)
        calls = []
        at_once = FIRST_CONTACT_LOOKUPS_MAX + 1
        for expected in (at_once, 2 * at_once, 2 * at_once + 100):
            calls.append(f.stub.Append(metadata=HERE))
            await calls[-1].write(adds_of(range(1, 101)))
            while len(waiting) < expected:
                await asyncio.sleep(0.001)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(waiting) == expected
        for _number in range(3 * 100):
            while not waiting:
                await asyncio.sleep(0)
            waiting.pop()(BookieStatus.OK, "")
        calls.append(f.stub.Append(metadata=HERE))
        await calls[-1].write(adds_of(range(1, 101)))
        await until(lambda: len(waiting) == at_once)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(waiting) == at_once, "there is room again"
        for call in calls:
            call.cancel()
        await until(lambda: not f.service._sessions)
        while waiting:
            waiting.pop()(BookieStatus.OK, "")

    run()


def test_stream_that_ends_for_its_refusals_does_not_wait_for_its_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold_for(monkeypatch, 60.0)
    monkeypatch.setattr(refused_appenders, "BOOKIE_REFUSED_APPENDERS_MAX", 0)

    @on_loop
    async def run(f: Fixture) -> None:
        waiting: list[Any] = []
        add = lambda *_args, done, **_more: waiting.append(done)  # noqa: E731
        monkeypatch.setattr(f.bookie, "add", add)
        call = f.stub.Append(metadata=HERE)
        await call.write(adds_of(range(1, 201)))
        await until(lambda: len(waiting) == FIRST_CONTACT_LOOKUPS_MAX + 1)
        waiting.pop()(BookieStatus.TOO_MANY_REQUESTS, "later")
        assert "1 appenders of this stream were refused" in await read_to_the_end(call)
        while waiting:
            waiting.pop()(BookieStatus.TOO_MANY_REQUESTS, "later")

    run()


@on_loop
async def test_bookie_hears_on_whose_behalf_it_is_asked(f: Fixture) -> None:
    """It looks ledgers up for each connection in turn."""
    asked: list[tuple[str, str]] = []

    def hear(name: str) -> None:
        honest = getattr(f.bookie, name)

        def heard(*args: Any, **more: Any) -> Any:
            asked.append((name, ASKED_BY.get()))
            return honest(*args, **more)

        setattr(f.bookie, name, heard)

    for name in ("add", "fence", "write_last_confirmed"):
        hear(name)
    call = f.stub.Append(metadata=HERE)
    await call.write(adds_of(range(1, 2)))
    await call.read()
    call.cancel()
    told = pb.WriteLastConfirmedRequest(ledger_id=1, last_add_confirmed=0)
    await f.stub.WriteLastConfirmed(told, timeout=5, metadata=HERE)
    fence = pb.ReadLastConfirmedRequest(ledger_id=1, fence=True)
    await f.stub.ReadLastConfirmed(fence, timeout=5, metadata=HERE)
    recovery = pb.ReadRequest(ledger_id=1, first_entry=0, last_entry=0, fence=True)
    assert [each async for each in f.stub.Read(recovery, timeout=5, metadata=HERE)]
    assert [name for name, _ in asked] == ["add", "write_last_confirmed", "fence", "fence"]
    (peer,) = {who for _, who in asked}
    assert peer.startswith("ipv4:127.0.0.1:")
    assert ASKED_BY.get() == "", "calls of others are theirs"
