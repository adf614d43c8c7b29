"""Refusals that their clients do not read: they keep no place, and too many are hung up on."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from bookie_server.service import calls
from bookie_server.service.calls import BOUNDS, Kind
from spark_ledger.wire import bookie_pb2 as pb
from tests.unit.bookie_server.service.test_grpc_service import BOOKIE, Fixture, on_loop
from tests.unit.bookie_server.service.test_hostile_calls import connect, serves_the_others, until

REFUSED: dict[Kind, tuple[str, Message]] = {
    Kind.READ: ("Read", pb.ReadRequest(ledger_id=1, first_entry=5, last_entry=0)),
    Kind.FENCE: ("Read", pb.ReadRequest(ledger_id=1, first_entry=5, last_entry=0, fence=True)),
    Kind.LIST: ("ListEntries", pb.ListEntriesRequest(ledger_id=-1)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refusals_that_nobody_reads_keep_no_place(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that lets no byte of an answer through kept the place of its call as well: four of
    them kept all recoveries out."""
    monkeypatch.setitem(BOUNDS, kind, 16)
    method, request = REFUSED[kind]

    @on_loop
    async def run(f: Fixture) -> None:
        hostile = [await connect(f, window=0) for _number in range(4)]
        for _number in range(20):
            for connection in hostile:
                await connection.ask(method, BOOKIE, request.SerializeToString())
        await until(lambda: f.metrics.calls_in_progress[method] == 80)
        await until(lambda: len(f.service.leftovers._calls) == 80)
        assert not f.service._limits._running.total(), "they are answered"
        await serves_the_others(f)
        assert not f.metrics.calls_refused
        assert not any(connection.closed or connection.ended for connection in hostile)
        for connection in hostile:
            await connection.close()
        await until(lambda: not f.service.leftovers._calls)

    run()


@pytest.mark.leaves_open("Leftovers._look", reason="its service goes on")
def test_clients_of_many_refusals_that_nobody_reads_are_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of those that were refused because too many came: gRPC keeps each of them."""
    monkeypatch.setitem(BOUNDS, Kind.READ, 0)
    monkeypatch.setattr(calls, "BOOKIE_LEFTOVERS_MAX", 30)
    monkeypatch.setattr(calls, "BOOKIE_LEFTOVER_S", 1.0)

    @on_loop
    async def run(f: Fixture) -> None:
        method, request = REFUSED[Kind.READ]
        few, many = [await connect(f, window=0) for _number in range(2)]
        for connection, number in ((many, 100), (few, 10)):
            before = f.metrics.calls_in_progress[method]
            for _number in range(number):
                await connection.ask(method, BOOKIE, request.SerializeToString())
            # The oldest are cut: those of the other come behind all of these.
            await until(lambda n=before + number: f.metrics.calls_in_progress[method] == n)  # type: ignore[misc]
        await until(lambda: many.closed)
        await until(lambda: f.metrics.calls_in_progress[method] == 10)
        await until(lambda: f.metrics.connections_ended == {"unread": 1})
        assert not few.closed, "few of them cost nobody anything"
        for connection in (few, many):
            await connection.close()

    run()
