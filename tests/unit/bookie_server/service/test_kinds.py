"""Which bound each call of the service has: many of one kind never refuse another."""

from __future__ import annotations

from typing import Any, Final

import pytest

from bookie_server.service import calls
from bookie_server.service.calls import Kind
from spark_ledger.types import BookieStatus
from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.bookie_server.service.test_grpc_service import HERE, Fixture, on_loop

_POLL: Final = pb.ReadLastConfirmedRequest(ledger_id=1, wait_ms=1)
_FENCE: Final = pb.ReadLastConfirmedRequest(ledger_id=1, fence=True, wait_ms=1)
CALLS: Final = {
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
}


async def status_of(f: Fixture, method: str, request: Any) -> int:
    call = getattr(f.stub, method)(request, timeout=5, metadata=HERE)
    if method in ("Read", "ListEntries"):
        return [answer.status async for answer in call][-1]
    return (await call).status


@pytest.mark.parametrize("kind", [each for each in Kind if each is not Kind.APPEND])
def test_full_kind_refuses_its_own_calls_and_no_other(kind: Kind) -> None:
    @on_loop
    async def run(f: Fixture) -> None:
        await f.store(0, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(calls.BOUNDS, kind, 0)  # type: ignore[arg-type]
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
