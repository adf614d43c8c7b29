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
