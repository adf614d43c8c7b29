"""Clients that leave while a bookie works for them: what was reserved for them goes to others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.bookie_server.service import test_grpc_service as grpc_tests
from tests.unit.bookie_server.service.test_grpc_service import HERE, Fixture


def _list(f: Fixture, request: pb.ListEntriesRequest) -> Any:
    return f.stub.ListEntries(request, timeout=10, metadata=HERE)


REQUESTS: dict[str, Callable[[Fixture], Any]] = {
    "read": lambda f: f.stub.Read(
        pb.ReadRequest(ledger_id=1, last_entry=0), timeout=10, metadata=HERE
    ),
    "entry_page": lambda f: _list(f, pb.ListEntriesRequest(ledger_id=1)),
    "held_ledgers": lambda f: _list(f, pb.ListEntriesRequest(ledgers=True)),
}


def _last_confirmed(f: Fixture, **what: Any) -> Any:
    request = pb.ReadLastConfirmedRequest(ledger_id=1, **what)
    return f.stub.ReadLastConfirmed(request, timeout=60, metadata=HERE)


def _append(f: Fixture) -> Any:
    run = pb.EntryRun(ledger_id=1, first_entry=1, sizes=[50], frames=bytes(50))
    call = f.stub.Append(metadata=HERE)
    call.writing = asyncio.ensure_future(
        call.write(pb.AppendRequest(adds=[pb.AddRun(tag=9, run=run)]))
    )
    return call


WAITS: dict[str, Callable[[Fixture], Any]] = {
    "an append": _append,
    "a fence": lambda f: _last_confirmed(f, fence=True),
    "a read that fences": lambda f: f.stub.Read(
        pb.ReadRequest(ledger_id=1, last_entry=0, fence=True), timeout=60, metadata=HERE
    ),
    "a tail request": lambda f: _last_confirmed(f, wait_above=9, wait_ms=60_000),
    "a last add confirmed": lambda f: f.stub.WriteLastConfirmed(
        pb.WriteLastConfirmedRequest(ledger_id=1, last_add_confirmed=0), timeout=60, metadata=HERE
    ),
}
"""Calls that wait for the disk, or for something to happen."""


def _kept(f: Fixture) -> dict[str, object]:
    """What the service and its bookie keep for calls."""
    service, answers, limits = f.service, f.service._answers, f.service._limits
    return {
        "calls": (service.connections.calls, dict(+f.metrics.calls_in_progress)),
        "by kind": (dict(+limits._running), dict(limits._of_connection), len(limits._receiving)),
        "answers": (answers.bytes_held, answers._reading, answers._writing, len(answers._held)),
        "waiting": (len(answers._begun), len(answers._waiting), len(service._gate._waiting)),
        "in flight": (dict(service._shares._in_flight), dict(service._shares._waiting)),
        "streams": (len(service._sessions), f.metrics.append_streams),
        "tail requests": (len(service._polls), f.metrics.long_polls),
        "watches": {each: len(ledger.watches) for each, ledger in f.bookie.ledgers.items()},
        "bytes of adds": f.bookie.append_bytes_in_flight,
    }


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("method", REQUESTS)
def test_answer_whose_client_leaves_while_it_is_read_keeps_no_room(method: str) -> None:
    @grpc_tests.on_loop
    async def leave(f: Fixture) -> None:
        entered, goes_on = threading.Event(), threading.Event()
        await f.store(0, 1)
        real = getattr(f.bookie, method)

        def slow(*given: Any, **named: Any) -> Any:
            entered.set()
            goes_on.wait(10)
            return real(*given, **named)

        setattr(f.bookie, method, slow)
        try:
            call = REQUESTS[method](f)
            reading = asyncio.ensure_future(call.read())
            await _until(entered.is_set)
            call.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await _until(lambda: not any(f.metrics.calls_in_progress.values()))
        finally:
            goes_on.set()
        assert f.service._answers._reading == 0, "its room is that of others again"
        (response,) = [each async for each in REQUESTS[method](f)]
        assert response.status == pb.OK

    leave()


@grpc_tests.on_loop
async def test_list_of_ledgers_that_fails_keeps_no_room(f: Fixture) -> None:
    def fail(*_given: object) -> None:
        raise RuntimeError("a bug")

    await f.store(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f.bookie, "held_ledgers", fail)
        with pytest.raises(grpc.aio.AioRpcError):
            await _list(f, pb.ListEntriesRequest(ledgers=True)).read()
    assert f.service._answers._reading == 0


@pytest.mark.parametrize("what", WAITS)
def test_call_whose_client_leaves_while_it_waits_leaves_nothing_behind(what: str) -> None:
    """Nothing of those that have left may add up, and none may take another's place."""

    @grpc_tests.on_loop
    async def leave(f: Fixture) -> None:
        await f.store(0, 1)
        await _until(lambda: not f.service.connections.calls)
        before = _kept(f)
        f.bookie.hold = True
        for _ in range(3):
            call = WAITS[what](f)
            waits = asyncio.ensure_future(call.code())
            await _until(lambda: f.metrics.long_polls + len(f.bookie._held) > 0)
            assert _kept(f) != before, "it is counted while it waits"
            call.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            await _until(lambda: not f.service.connections.calls)
            f.bookie.release()
        assert _kept(f) == before

    leave()
