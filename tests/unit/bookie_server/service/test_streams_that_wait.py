"""Streams and polls that wait: who came first goes first, who is busy is not cut or interrupted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from bookie_server.service import append_session
from bookie_server.service.append_gate import AppendGate, AppendShares
from bookie_server.service.append_turns import AppendTurns
from bookie_server.service.guard.nonsense import Nonsense
from spark_ledger.limits.bookie import ADD_COST_BYTES, APPEND_TURN_S
from spark_ledger.types import BookieStatus, LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from tests.contracts.scripted_bookie import ScriptedBookie
from tests.unit.bookie_server.service import test_append_session, test_appenders
from tests.unit.bookie_server.service import test_grpc_service as grpc_tests
from tests.unit.bookie_server.service.test_append_session import Fixture, settle
from tests.unit.bookie_server.service.test_long_answers import poll

OK = int(BookieStatus.OK)


@test_appenders.gated
async def test_stream_that_comes_last_does_not_go_first(
    bookie: ScriptedBookie, gate: AppendGate
) -> None:
    """There is room again, and those that wait have not been told yet."""
    order: list[int] = []

    async def read(number: int) -> None:
        await gate.wait(10)
        order.append(number)

    bookie.append_bytes_in_flight = 101
    first = [asyncio.ensure_future(read(number)) for number in range(3)]
    await settle()
    bookie.append_bytes_in_flight = 0
    last = asyncio.ensure_future(read(3))
    await settle()
    assert order == []
    gate.completed()
    await asyncio.gather(*first, last)
    assert order == [0, 1, 2, 3]


def test_call_that_is_cancelled_leaves_no_error_in_the_loop() -> None:
    errors: list[object] = []

    @test_append_session.on_loop
    async def cancel(f: Fixture) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
        await settle()
        f.task.cancel()
        await asyncio.gather(f.task, return_exceptions=True)
        await settle()

    cancel()
    assert errors == []


def test_drain_in_the_middle_of_a_message_answers_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_session, "APPEND_TURN_S", 0.0)

    @test_append_session.on_loop
    async def drain(f: Fixture) -> None:
        f.context.send(*[(tag, 0) for tag in range(1, 9)])
        while not f.bookie.adds:
            await asyncio.sleep(0)
        assert len(f.bookie.adds) < 8, "an add for each turn"
        f.session.drain()
        await f.task
        assert sorted(f.results) == [(tag, 0, OK) for tag in range(1, 9)]

    drain()


def test_turn_ends_by_the_time_that_the_bookie_takes_for_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small adds are decoded together, so that to take the next one is nearly no time."""
    now_s = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now_s)

    @test_append_session.on_loop
    async def flood(f: Fixture) -> None:
        add = f.bookie.add

        def add_slowly(*given: Any, **named: Any) -> None:
            nonlocal now_s
            now_s += APPEND_TURN_S / 3.5
            add(*given, **named)

        monkeypatch.setattr(f.bookie, "add", add_slowly)
        monkeypatch.setattr(append_session, "time", clock)
        f.context.send(*[(tag, 0) for tag in range(1, 31)])
        while not f.bookie.adds:
            await asyncio.sleep(0)
        assert len(f.bookie.adds) == 4, "the fourth ends the turn"
        await settle()
        assert len(f.bookie.adds) == 30

    flood()


@test_append_session.on_loop
async def test_stream_above_its_share_is_not_read(f: Fixture) -> None:
    peer = f.context.peer()
    f.shares = AppendShares(1000)
    f.shares.began(peer, 1001)
    f.context.send((1, 0))
    await settle()
    assert f.context.reads == 0
    f.shares.ended(peer, 1001)
    await settle()
    assert f.results == [(1, 0, OK)]


@test_append_session.on_loop
async def test_stream_that_is_kept_waiting_does_not_count_as_a_silent_client(f: Fixture) -> None:
    """Who is hung up on for what it holds is a client that could send, and does not."""
    await settle()
    assert f.session.is_read and f.session.has_waited_s >= 0
    f.shares.began(f.context.peer(), 1 << 40)
    f.context.send((1, 0))
    await settle()
    assert f.results == [(1, 0, OK)]
    assert not f.session.is_read and f.session.has_waited_s < 0


@test_append_session.on_loop
async def test_other_streams_of_who_sends_nonsense_are_not_read_meanwhile(f: Fixture) -> None:
    f.context.requests.put_nowait(b"\xff\xff\xff\xff")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Nonsense, "pause_s", lambda *_given: 3600.0)
        await settle()
    other = asyncio.ensure_future(f.shares.wait(f.context.peer(), 10))
    await f.shares.wait("ipv4:127.0.0.1:2", 10)
    await settle()
    assert not other.done()
    other.cancel()


def test_time_of_each_turn_counts_in_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[float] = []
    monkeypatch.setattr(append_session, "APPEND_TURN_S", 3600.0)
    monkeypatch.setattr(AppendTurns, "_used", lambda _turns, seconds: used.append(seconds))

    @test_append_session.on_loop
    async def send(f: Fixture) -> None:
        f.context.send((1, 0), (2, 0))
        f.context.send((1, 1))
        await settle()

    send()
    assert len(used) == 2 and min(used) > 0


@test_append_session.on_loop
async def test_results_that_come_while_the_last_are_written_are_sent_too(f: Fixture) -> None:
    f.bookie.hold = True
    f.context.may_write.clear()
    f.context.send((1, 0))
    await settle()
    f.bookie.release()
    await settle()  # the first result is on its way to a slow client
    f.context.send((1, 1), (2, 0))
    f.context.requests.put_nowait(grpc.aio.EOF)
    await settle()
    f.bookie.release()
    f.context.may_write.set()
    await f.task
    assert f.context.responses == [[(1, 0, OK)], [(1, 1, OK), (2, 0, OK)]]


@test_append_session.on_loop
async def test_message_without_adds_is_no_part_of_what_is_in_flight(f: Fixture) -> None:
    f.context.send()
    await settle()
    assert f.context.reads == 2
    assert f.context.peer() not in f.shares._in_flight, "others would have less of a share for ever"


@grpc_tests.on_loop
async def test_long_poll_ends_after_its_milliseconds(f: grpc_tests.Fixture) -> None:
    await f.store(0, 1)
    async with asyncio.timeout(3):
        answer = await poll(f, above=5, wait_ms=50)
    assert (answer.status, answer.last_entry) == (pb.OK, 0)


@grpc_tests.on_loop
async def test_read_that_fails_keeps_no_room_and_is_over(f: grpc_tests.Fixture) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise RuntimeError("a bug")

    await f.store(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f.bookie, "read", fail)
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError):
                await grpc_tests.read(f, pb.ReadRequest(ledger_id=1))
    assert f.service._answers._reading == 0
    assert not any(f.metrics.calls_in_progress.values())
    (response,) = await grpc_tests.read(f, pb.ReadRequest(ledger_id=1))
    assert response.status == pb.OK


@grpc_tests.on_loop
async def test_read_whose_fence_is_refused_reads_nothing(f: grpc_tests.Fixture) -> None:
    await f.store(0, 1)
    request = pb.ReadRequest(ledger_id=1, fence=True, access_key=b"of a stranger")
    (response,) = await grpc_tests.read(f, request)
    assert response.status == pb.UNAUTHORIZED and not response.run.frames
    assert not f.bookie.ledgers[LedgerId(1)].fenced


@grpc_tests.on_loop
async def test_stream_that_begins_while_the_disk_stalls_is_told(f: grpc_tests.Fixture) -> None:
    """It has sent nothing yet when the stall was told to the others."""
    f.bookie.hold = True
    f.service.disks_stall("journal /journal has not synced for 2.0 s")
    call = f.stub.Append(metadata=grpc_tests.HERE)
    run = pb.EntryRun(ledger_id=1, first_entry=0, sizes=[50], frames=bytes(50))
    await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=1, run=run)]))
    (note,) = (await call.read()).results
    assert (note.tag, note.status) == (1, pb.STALLED) and "not synced" in note.message
    f.bookie.release()
    (result,) = (await call.read()).results
    assert (result.last_entry, result.status) == (0, pb.OK)
    call.cancel()


@test_append_session.on_loop
async def test_appender_that_comes_after_a_stall_is_told_of_none(f: Fixture) -> None:
    await settle()
    f.session.disks_stall("it stalls")
    f.session.disks_stall("")
    f.bookie.hold = True
    f.context.send((1, 0))
    await settle()
    assert f.results == [] and len(f.bookie.adds) == 1


@test_append_session.on_loop
async def test_next_message_is_expected_to_be_as_large_as_the_last(f: Fixture) -> None:
    """Were all expected to be large, streams of small adds would be read one after the other."""
    sizes: list[int] = []
    costs: list[int] = []

    async def gate(expected_bytes: int) -> None:
        sizes.append(expected_bytes)

    async def share(_connection: str, expected_cost: int) -> None:
        costs.append(expected_cost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f.gate, "wait", gate)
        patch.setattr(f.shares, "wait", share)
        for adds in ([(1, 0), (2, 0)], [(1, 1)]):
            f.context.send(*adds)
            await settle()
    add = ADD_COST_BYTES + 50
    assert sizes[0] > 1 << 20 and 0 < sizes[2] < sizes[1] < 400
    assert costs[1:] == [2 * add, add]


@test_append_session.on_loop
async def test_results_that_pile_up_again_are_waited_for_again(f: Fixture) -> None:
    """After some that were sent at once."""
    f.context.send((99, 0))
    await settle()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_session, "BOOKIE_UNSENT_RESULTS_MAX", 10)
        f.context.may_write.clear()
        for tag in range(20):
            f.context.send((tag, 0))
            await settle()
        assert f.context.reads < 20
        f.context.may_write.set()
        while len(f.results) < 21:
            await settle()


@test_append_session.on_loop
async def test_stream_is_known_once_something_of_it_is_stored(f: Fixture) -> None:
    f.bookie.refuse_next = BookieStatus.UNAUTHORIZED, "a stranger"
    f.context.send((1, 0))
    await settle()
    assert len(f.results) == 1 and not f.session.is_known
    f.context.send((2, 0))
    await settle()
    assert f.session.is_known
