"""Clients with streams looked at in turn: who is a stranger, who is forgotten, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from bookie_server.service.guard import client_watch
from bookie_server.service.guard.connections import Connections
from bookie_server.service.guard.sockets import Received
from spark_ledger.limits import MIB
from spark_ledger.limits.bookie import BOOKIE_STRANGERS_AT_ONCE
from tests.unit.bookie_server.service.guard.test_client_watch import Stream, World


def on_loop(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await test(World())

    asyncio.run(main())


def test_second_stream_of_a_client_that_has_stored_something_is_no_strangers() -> None:
    """As of a program with two connections' worth of writers: its large entries are heard."""

    async def test(world: World) -> None:
        for number in range(8):
            stream = world.half(f"client {number}", 15, waited_s=0.0)
            stream.is_known = False
            world.streams.append(Stream(stream.peer, float("-inf"), is_known=True))
        await world.watch.look()
        assert world.kernel.muted == set() and not world.watch._strangers.peers

    on_loop(test)


def test_strangers_that_are_not_heard_stay_so_while_others_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With some thousand streams it takes a second until each was looked at again."""
    monkeypatch.setattr(client_watch, "BOOKIE_CONNECTIONS_LOOKED_AT", 1)

    async def test(world: World) -> None:
        for number in range(8):
            world.half(f"client {number}", 15, waited_s=0.0).is_known = False
        for _ in range(8):
            before = set(world.kernel.muted)
            await world.watch.look()
            assert before <= world.kernel.muted, "nothing of them became whole"
        assert len(world.watch._strangers.peers) == 8
        assert len(world.kernel.muted) >= 8 - BOOKIE_STRANGERS_AT_ONCE

    on_loop(test)


def test_bookie_of_many_clients_looks_at_all_of_them_once_and_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are looked at to forget those that are gone; all of these are there."""
    monkeypatch.setattr(client_watch, "BOOKIE_CONNECTIONS_LOOK_S", 0.0)

    async def test(world: World) -> None:
        looks, of_port = [0], world.kernel.of_port

        def counted(port: int) -> list[str]:
            looks[0] += 1
            return of_port(port)

        world.kernel.of_port = counted  # type: ignore[method-assign, assignment]

        def call(numbers: Iterable[int]) -> None:
            for number in numbers:
                world.kernel.bytes[f"client {number}"] = 0
                with world.connections.call(f"client {number}"):
                    pass

        call(range(1_100))
        for _ in range(5):
            await world.watch.make_room(3181, 10_000)
        assert looks[0] == 1
        call(range(1_100, 2_300))
        for _ in range(5):
            await world.watch.make_room(3181, 10_000)
        assert looks[0] == 2, "twice as many"
        world.kernel.bytes.clear()
        call(range(2_300, 4_700))
        world.kernel.bytes.clear()
        await world.watch.make_room(3181, 10_000)
        assert len(world.connections) == 0

    on_loop(test)


def test_connection_that_is_accepted_while_all_are_listed_keeps_its_counts() -> None:
    """It is not in the list. Were it forgotten, all that it was given would seem to be held."""
    connections = Connections()
    with connections.call("new"):
        connections.given("new", 8 * MIB)
        connections.keep([])
        found = Received(8 * MIB + 1_000, frozenset({1}))
        assert connections.held({"new": found}, connections.granted(["new"]))["new"] <= 0
    connections.keep([])
    assert len(connections) == 0


def test_parts_that_each_client_may_have_are_kept_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred clients whose network is slow: none of them holds more than one may."""
    monkeypatch.setattr(client_watch, "BOOKIE_CONNECTIONS_LOOKED_AT", 1_000)

    async def test(world: World) -> None:
        for number in range(100):
            world.half(f"client {number}", 1, waited_s=6.0)
        for _ in range(3):
            await world.watch.look()
        assert not world.ended.by and not world.watch._parts

    on_loop(test)


def test_client_whose_stream_has_ended_is_judged_by_the_streams_that_it_has() -> None:
    """It left the old one in the middle of a message, and goes on with another on the same
    connection: it waits for nobody, and gRPC has let go of what was sent of that message."""

    async def test(world: World) -> None:
        left = [world.half(f"client {number}", 15) for number in range(6)]
        await world.watch.look()
        assert len(world.watch._parts) == 6
        world.streams = [Stream(each.peer, 0.001) for each in left]
        for each in left:
            each.has_waited_s = 6.0  # as it would for ever
            world.kernel.bytes[each.peer] += MIB
            world.connections.given(each.peer, MIB)
        for _ in range(3):
            await world.watch.look()
        assert not world.ended.by and not world.watch._parts

    on_loop(test)
