"""Turns of the connections that append on the service loop: bounded, and the same for each."""

from __future__ import annotations

import asyncio

import pytest

from bookie_server.service import append_turns
from bookie_server.service.append_turns import AppendTurns
from tests.unit.bookie_server.service.test_append_shares import on_loop


class Turns(AppendTurns):
    """A round has 2 ms, and time passes as a test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []
        super().__init__(0.002, lambda: self.now)

    async def take(self, connection: str, seconds: float) -> None:
        async with self.turn(connection):
            self.order.append(connection)
            self.now += seconds

    def begin(self, connection: str, seconds: float) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.take(connection, seconds))


@on_loop
async def test_streams_beyond_the_time_of_a_round_wait_for_the_next() -> None:
    turns = Turns()
    streams = [turns.begin(f"{number}", 0.005) for number in range(4)]
    await asyncio.sleep(0)
    assert turns.order == ["0"], "its turn has used the round up, and that of a light client"
    streams[1].cancel()  # its client leaves
    streams.append(turns.begin("4", 0.005))
    await asyncio.gather(*streams, return_exceptions=True)
    assert turns.order == ["0", "2", "3", "4"]


@on_loop
async def test_short_turns_share_a_round() -> None:
    turns = Turns()
    streams = [turns.begin("one", 0.0001) for _number in range(10)]
    await asyncio.sleep(0)
    assert len(turns.order) == 10
    await asyncio.gather(*streams)


@on_loop
async def test_connection_that_used_least_goes_first() -> None:
    turns = Turns()
    for _number in range(4):
        await turns.take("heavy", 0.003)
        await turns.take("middle", 0.002)
        await turns.take("light", 0.0001)
    turns.order.clear()
    await asyncio.sleep(0)
    turns._used_s = 1.0  # the round is over
    rest = [turns.begin(name, 0.003) for name in ("heavy", "middle", "light")]
    await asyncio.gather(*rest)
    assert turns.order == ["light", "middle", "heavy"]


@on_loop
async def test_connection_with_many_streams_has_one_share() -> None:
    turns = Turns()
    streams = [turns.begin("many", 0.003) for _number in range(20)]
    await asyncio.sleep(0)
    streams += [turns.begin(f"one {number}", 0.003) for number in range(3)]
    await asyncio.gather(*streams)
    assert {*turns.order[1:5]} >= {"one 0", "one 1", "one 2"}
    assert len(turns.order) == 23, "and each has its turn"


@on_loop
async def test_connections_that_send_as_much_have_the_same_share() -> None:
    turns = Turns()

    async def flood(connection: str, seconds: float) -> None:
        while True:
            await turns.take(connection, seconds)
            await asyncio.sleep(0)

    kinds = (("long", 0.002), ("short", 0.0005))
    floods = [asyncio.ensure_future(flood(*kind)) for kind in kinds for _stream in range(8)]
    while len(turns.order) < 1000:
        await asyncio.sleep(0)
    for each in floods:
        each.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    used = {"long": 0.002 * turns.order.count("long"), "short": 0.0005 * turns.order.count("short")}
    assert 0.8 < used["long"] / used["short"] < 1.25


@on_loop
async def test_light_client_begins_in_a_round_that_is_over_and_a_crowd_of_them_does_not() -> None:
    turns = Turns()
    crowd = [turns.begin(f"light {number}", 0.0005) for number in range(20)]
    crowd.append(turns.begin("heavy", 0.001))
    await turns.take("heavy", 0.0025)
    await asyncio.sleep(0)
    assert turns.order == ["heavy", "light 0", "light 1", "light 2"], "a round more, and no longer"
    await asyncio.gather(*crowd)


@on_loop
async def test_stream_that_leaves_in_its_turn_lets_the_next_go_on_and_has_used_nothing() -> None:
    turns = Turns()
    turns._used_s = 1.0  # the round is over
    gone, waits = (turns.begin(name, 0.01) for name in ("gone", "other"))
    await asyncio.sleep(0)  # both wait
    await asyncio.sleep(0)  # the first is let go
    gone.cancel()
    await asyncio.wait_for(waits, 1)
    assert gone.cancelled() and turns.order == ["other"]
    assert turns._ends["gone"] == 0.0 < turns._ends["other"]


@on_loop
async def test_connections_that_came_once_are_forgotten() -> None:
    turns = Turns()
    for number in range(3 * append_turns._CONNECTIONS_KNOWN):
        async with turns.turn(f"{number}"):
            pass
    assert len(turns._ends) <= append_turns._CONNECTIONS_KNOWN
    await turns.take("one that is known", 0.001)
    assert turns.order == ["one that is known"]


@pytest.mark.parametrize("came_before", [True, False])
def test_connection_that_comes_later_has_its_share_and_no_more(came_before: bool) -> None:
    """What it did not use before it came is gone."""

    @on_loop
    async def run() -> None:
        turns = Turns()
        if came_before:
            await turns.take("late", 0.0001)

        async def flood(connection: str) -> None:
            while True:
                await turns.take(connection, 0.002)
                await asyncio.sleep(0)

        floods = [asyncio.ensure_future(flood("early")) for _stream in range(8)]
        while len(turns.order) < 200:
            await asyncio.sleep(0)
        turns.order.clear()
        floods += [asyncio.ensure_future(flood("late")) for _stream in range(8)]
        while len(turns.order) < 60:
            await asyncio.sleep(0)
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        assert 20 < turns.order.count("early") < 40

    run()


@on_loop
async def test_round_lets_as_many_short_turns_go_on_as_there_is_time_for() -> None:
    turns = Turns()
    for _number in range(60):
        await turns.take("before", 0.0001)
        await asyncio.sleep(0)
    turns.order.clear()
    turns._used_s = 1.0  # the round is over
    rest = [turns.begin(f"{number}", 0.0001) for number in range(12)]
    for _number in range(3):
        await asyncio.sleep(0)
    assert len(turns.order) >= 10
    await asyncio.gather(*rest)


@on_loop
async def test_crowd_of_which_nobody_comes_twice_keeps_no_stream_waiting_for_ever() -> None:
    """Each of them has used nothing. Once too many are known all are equal."""
    turns = Turns()

    async def crowd(name: str) -> None:
        for number in range(200):
            await turns.take(f"{name} {number}", 0.002)
            await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_turns, "_CONNECTIONS_KNOWN", 8)
        turns._used_s = 1.0  # the round is over
        waiting = [turns.begin("one", 0.002) for _stream in range(4)]
        crowds = [asyncio.ensure_future(crowd(f"{number}")) for number in range(16)]
        while len(turns.order) < 200:
            await asyncio.sleep(0)
        for each in crowds:
            each.cancel()
        await asyncio.gather(*crowds, return_exceptions=True)
    assert all(stream.done() for stream in waiting)


@on_loop
async def test_stream_that_leaves_behind_others_takes_nobody_with_it() -> None:
    """Whoever comes next looks for those that have left: it must not take away one that waits."""
    turns = Turns()
    turns._used_s = 1.0  # the round is over
    first, waits, leaves = (turns.begin(name, 0.002) for name in ("first", "waits", "leaves"))
    await asyncio.sleep(0)
    assert len(turns._waiting) == 3
    leaves.cancel()
    comes = turns.begin("comes", 0.002)
    async with asyncio.timeout(1):
        await asyncio.gather(first, waits, comes)
    assert turns.order == ["first", "waits", "comes"]


@on_loop
async def test_light_client_goes_before_those_that_wait_for_the_next_round() -> None:
    """Were it to wait behind them once, each of its adds would take a round."""
    turns = Turns()
    heavy = [turns.begin("heavy", 0.001) for _stream in range(2)]
    light = turns.begin("light", 0.0001)
    await turns.take("heavy", 0.0025)
    await asyncio.sleep(0)
    assert turns.order == ["heavy", "light"]
    await asyncio.gather(*heavy, light)
    assert turns.order == ["heavy", "light", "heavy", "heavy"]


@on_loop
async def test_round_that_comes_behind_a_long_one_has_its_whole_time() -> None:
    turns = Turns()
    await turns.take("long", 0.5)
    await asyncio.sleep(0)
    streams = [turns.begin("short", 0.0001) for _number in range(10)]
    await asyncio.sleep(0)
    assert turns.order == ["long", *["short"] * 10]
    await asyncio.gather(*streams)


@on_loop
async def test_message_that_took_long_to_receive_has_used_that_of_the_round() -> None:
    turns = Turns()
    streams = [turns.begin(name, 0.0001) for name in ("long", "other")]
    async with turns.turn("long", 5_000_000):
        pass
    await asyncio.sleep(0)
    assert turns.order == [], "the round is over"
    await asyncio.gather(*streams)
    assert turns.order == ["other", "long"], "and its connection has used it"
