"""What waits at a bookie is told of an end in its moment: of a fence, of a stall that is over."""

from __future__ import annotations

import asyncio

from spark_ledger.types import LedgerId
from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.bookie_server.service.test_append_session import settle
from tests.unit.bookie_server.service.test_grpc_service import HERE, Fixture, on_loop
from tests.unit.bookie_server.service.test_long_answers import poll


async def fence(f: Fixture) -> None:
    request = pb.ReadLastConfirmedRequest(ledger_id=1, fence=True)
    answer = await f.stub.ReadLastConfirmed(request, timeout=5, metadata=HERE)
    assert answer.fenced


@on_loop
async def test_long_poll_of_a_ledger_that_is_fenced_is_answered_with_that(f: Fixture) -> None:
    """Nothing more is confirmed there: its readers look for the close, and for other bookies."""
    await f.store(0, 1)
    waiting = asyncio.ensure_future(poll(f, above=5, wait_ms=15_000))
    while not f.metrics.long_polls:
        await asyncio.sleep(0.001)
    await fence(f)
    async with asyncio.timeout(5):
        assert (await waiting).fenced
        assert (await poll(f, above=5, wait_ms=15_000)).fenced, "and at once from then on"


@on_loop
async def test_stream_that_begins_after_a_stall_is_told_of_none(f: Fixture) -> None:
    """Its writer would replace a bookie whose disk is well again."""
    f.service.disks_stall("the journal has not synced for 3 s")
    f.service.disks_stall("")
    f.bookie.hold = True
    call = f.stub.Append(metadata=HERE)
    run = pb.EntryRun(ledger_id=1, first_entry=0, sizes=[50], frames=bytes(50))
    await call.write(pb.AppendRequest(adds=[pb.AddRun(tag=9, run=run)]))
    while not f.bookie.adds:
        await asyncio.sleep(0.001)
    await settle()
    f.bookie.hold = False
    f.bookie.release()
    response = await call.read()
    assert [(r.tag, r.last_entry, r.status) for r in response.results] == [(9, 0, pb.OK)]
    assert list(f.bookie.ledgers[LedgerId(1)].entries) == [0]
    await call.done_writing()
