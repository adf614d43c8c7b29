"""Which bound each call of the service has: many of one kind never refuse another."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie_server.service import calls
from bookie_server.service.calls import Kind
from bookie_server.service.grpc_service import Description
from spark_ledger.types import BookieStatus
from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.bookie_server.service.test_grpc_service import (
    BOOKIE,
    HERE,
    Fixture,
    on_loop,
)

_POLL: Final = pb.ReadLastConfirmedRequest(ledger_id=1, wait_ms=1)
_FENCE: Final = pb.ReadLastConfirmedRequest(ledger_id=1, fence=True, wait_ms=1)
CALLS: Final[dict[str, tuple[str, Any, Kind | None]]] = {
    "read": ("Read", pb.ReadRequest(ledger_id=1), Kind.READ),
    "read that fences": ("Read", pb.ReadRequest(ledger_id=1, fence=True), Kind.FENCE),
    "poll": ("ReadLastConfirmed", _POLL, Kind.POLL),
    "question": ("ReadLastConfirmed", pb.ReadLastConfirmedRequest(ledger_id=1), Kind.CONFIRM),
    "question that fences": ("ReadLastConfirmed", _FENCE, Kind.FENCE),
    "confirmation": (
        "WriteLastConfirmed",
        pb.WriteLastConfirmedRequest(ledger_id=1, last_add_confirmed=0),
        Kind.CONFIRM,
    ),
    "list": ("ListEntries", pb.ListEntriesRequest(ledger_id=1), Kind.LIST),
    "description": ("Describe", pb.DescribeRequest(), Kind.DESCRIBE),
    "watch of the health": ("Watch", health_pb2.HealthCheckRequest(), Kind.HEALTH),
    "health check": ("Check", health_pb2.HealthCheckRequest(), None),
}


async def status_of_health(f: Fixture, method: str, request: Any) -> int:
    """This service has the codes of gRPC for its refusals."""
    call = getattr(health_pb2_grpc.HealthStub(f.channel), method)(request, timeout=5)
    try:
        answer = await (call.read() if method == "Watch" else call)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return int(pb.TOO_MANY_REQUESTS)
    call.cancel()
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    return int(pb.OK)


async def status_of(f: Fixture, method: str, request: Any) -> int:
    if isinstance(request, health_pb2.HealthCheckRequest):
        return await status_of_health(f, method, request)
    call = getattr(f.stub, method)(request, timeout=5, metadata=HERE)
    if method in ("Read", "ListEntries"):
        return int([answer.status async for answer in call][-1])
    return int((await call).status)


@pytest.mark.parametrize("kind", [each for each in Kind if each is not Kind.APPEND])
def test_full_kind_refuses_its_own_calls_and_no_other(kind: Kind) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        await f.store(0, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(calls.BOUNDS, kind, 0)
            refused = {
                name
                for name, (method, request, _kind) in CALLS.items()
                if await status_of(f, method, request) == pb.TOO_MANY_REQUESTS
            }
        assert refused == {name for name, (*_call, its) in CALLS.items() if its is kind}
        assert f.metrics.calls_refused[kind.name.lower()] == len(refused)
        reads = "read" in refused or "read that fences" in refused
        assert f.metrics.reads[BookieStatus.TOO_MANY_REQUESTS] == reads

    run()


@on_loop
async def test_each_figure_of_a_description_stands_under_its_name(f: Fixture) -> None:
    described = Description("c", "1.2", "writable", 3, 4, 5, 6, 7.5, 8, 9.5, 10, 11)
    f.service._describe = lambda: described
    answer = await f.stub.Describe(pb.DescribeRequest(), timeout=5, metadata=HERE)
    fields = [field.name for field in dataclasses.fields(Description)]
    assert {name: getattr(answer, name) for name in fields} == dataclasses.asdict(described)
    assert (answer.status, answer.bookie_id) == (pb.OK, BOOKIE)


@on_loop
async def test_each_ledger_of_a_refused_confirmation_is_refused(f: Fixture) -> None:
    """Each writer that shares a call finds its own answer."""
    request = pb.WriteLastConfirmedRequest(ledger_id=1)
    request.more.add(ledger_id=2)
    request.more.add(ledger_id=3)
    other = (("bookie-id", "another"),)
    answer = await f.stub.WriteLastConfirmed(request, timeout=5, metadata=other)
    assert [answer.status, *answer.more] == [pb.WRONG_BOOKIE] * 3
