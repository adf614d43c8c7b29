"""How often clients are looked at: often while one may cost others something; and for room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bookie_server.service.guard import client_watch
from bookie_server.service.guard.client_watch import ClientWatch
from bookie_server.service.guard.hanging_up import Why
from spark_ledger.limits.bookie import (
    BOOKIE_CONNECTION_IDLE_S,
    BOOKIE_CONNECTION_LOOK_S,
    BOOKIE_CONNECTION_SOON_S,
    BOOKIE_CONNECTIONS_LOOK_S,
    BOOKIE_REQUEST_LATE_S,
)
from tests.unit.bookie_server.service.guard.test_client_watch import Stream, World
from tests.unit.virtual_time import VirtualLoop, run_in_virtual_time

LASTS_S = 10.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs in a thread is done before time goes on."""

    def run(loop: VirtualLoop, _pool: object, act: Callable[..., Any], *of: object) -> Any:
        future = loop.create_future()
        future.set_result(act(*of))
        return future

    monkeypatch.setattr(VirtualLoop, "run_in_executor", run)


def looks_of(world: World, *, files: int = 0) -> tuple[int, int]:
    """Looks at streams, and at all connections, in ten seconds; at most 100 may connect."""
    at: set[float] = set()
    lists = 0

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def streams() -> list[Stream]:
            at.add(loop.time())
            return world.streams

        def of_port(_port: int) -> list[str]:
            nonlocal lists
            lists += 1
            return list(world.kernel.bytes)

        world.kernel.of_port = of_port  # type: ignore[method-assign]
        world.watch = ClientWatch(
            world.kernel,
            world.ended,
            world.connections,
            world.limits,
            streams,
            files=lambda: files,
        )
        world.watch.start(1, 100)
        await asyncio.sleep(LASTS_S)
        world.watch.stop()

    run_in_virtual_time(main())
    return len(at), lists


SELDOM = LASTS_S / BOOKIE_CONNECTION_IDLE_S
OFTEN = LASTS_S / BOOKIE_CONNECTION_LOOK_S


def test_idle_bookie_is_looked_at_seldom_and_one_with_half_a_message_often() -> None:
    idle = World()
    idle.streams = [Stream("writer", float("-inf"))]
    looks, lists = looks_of(idle)
    assert SELDOM - 2 <= looks <= SELDOM + 2 and lists == 0
    parts = World()
    parts.half("stopped", 8)
    assert looks_of(parts)[0] >= 0.9 * OFTEN and not parts.ended.by
    strangers = World()
    strangers.streams = [Stream("stranger", float("-inf"), is_known=False)]
    assert looks_of(strangers)[0] >= 0.9 * OFTEN


@pytest.mark.parametrize(("files", "looks"), [(90, 0), (99, LASTS_S / BOOKIE_CONNECTIONS_LOOK_S)])
def test_all_connections_are_listed_twice_a_second_and_only_where_there_is_hardly_room(
    files: int, looks: float
) -> None:
    """Ten thousand take a while, also for those who are busy meanwhile."""
    world = World()
    world.half("stopped", 8)
    assert looks - 1 <= looks_of(world, files=files)[1] <= looks + 1


def test_kernel_is_asked_for_connections_to_the_port_of_the_clients_only() -> None:
    world = World()
    looks_of(world)
    assert world.kernel.port == 1


class Beats:
    """Looks that are due; none comes by itself."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self._due: list[Callable[[], None]] = []

    def call_on_beat(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.delays.append(delay_s)
        self._due.append(callback)
        handle = asyncio.get_running_loop().call_later(0.0, callback)
        handle.cancel()
        return handle

    async def look(self) -> float:
        """One look, and after how long the next one follows."""
        looks = len(self.delays)
        self._due.pop()()
        while len(self.delays) == looks:
            await asyncio.sleep(0.001)
        return self.delays[-1]


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Beats:
    made = Beats()
    monkeypatch.setattr(client_watch, "call_on_beat", made.call_on_beat)
    return made


def test_watch_looks_often_while_there_are_strangers_or_parts_and_seldom_else(
    beats: Beats,
) -> None:
    """Between two seldom looks gRPC takes in three hundred megabytes."""

    async def main() -> None:
        world = World()
        world.watch.start(3181, 10_000)
        assert beats.delays == [BOOKIE_CONNECTION_IDLE_S]
        writer = world.half("writer", 0, waited_s=0.0)
        assert await beats.look() == BOOKIE_CONNECTION_IDLE_S
        new = world.half("new", 0, waited_s=0.0)
        new.is_known = False
        assert await beats.look() == BOOKIE_CONNECTION_LOOK_S, "it may send much, and store nothing"
        new.is_known = True
        assert await beats.look() == BOOKIE_CONNECTION_IDLE_S
        world.kernel.bytes["writer"], writer.has_waited_s = 15_000_000, 1.0
        assert await beats.look() == BOOKIE_CONNECTION_LOOK_S, "a part of a message"
        world.kernel.bytes["writer"], writer.has_waited_s = 0, 0.0
        assert await beats.look() == BOOKIE_CONNECTION_IDLE_S
        new.is_known, world.kernel.bytes["new"] = False, 15_000_000
        assert await beats.look() == BOOKIE_CONNECTION_SOON_S
        assert world.watch._strangers.peers == {"new"}
        world.streams.remove(new)  # its call has ended, and gRPC has what it sent
        assert await beats.look() == BOOKIE_CONNECTION_SOON_S
        del world.kernel.bytes["new"]
        assert await beats.look() == BOOKIE_CONNECTION_IDLE_S
        with world.limits.receiving("asks"):
            assert await beats.look() == BOOKIE_CONNECTION_LOOK_S
            await asyncio.sleep(2 * BOOKIE_REQUEST_LATE_S)
            assert await beats.look() == BOOKIE_CONNECTION_SOON_S, (
                "it may send no request, but much"
            )
        assert await beats.look() == BOOKIE_CONNECTION_IDLE_S
        world.watch.stop()

    asyncio.run(main())


def test_call_that_begins_while_the_watch_rests_has_it_look_soon(beats: Beats) -> None:
    """Forty that are ended at one time begin again at one time, and send what they can."""

    async def main() -> None:
        world = World()
        world.watch.start(3181, 10_000)
        world.connections.on_call = world.watch.sign
        with world.connections.call("one"), world.connections.call("another"):
            pass
        rests_and_looks = [BOOKIE_CONNECTION_IDLE_S, BOOKIE_CONNECTION_LOOK_S]
        assert beats.delays == rests_and_looks, "once for both"
        with world.limits.receiving("asks"):
            assert await beats.look() == BOOKIE_CONNECTION_LOOK_S
            with world.connections.call("asks"):
                assert len(beats.delays) == 3, "it does not rest"
        assert await beats.look() == BOOKIE_CONNECTION_IDLE_S
        world.watch.stop()
        with world.connections.call("late"):
            assert len(beats.delays) == 4

    asyncio.run(main())


def test_watch_makes_room_for_new_clients_by_itself(beats: Beats) -> None:
    async def main() -> None:
        world = World()
        for number in range(100):
            world.kernel.bytes[f"idle {number}"] = 0
            with world.connections.call(f"idle {number}"):
                pass
        world.now, world.files = 10.0, 100
        world.watch.start(3181, 100)
        await beats.look()
        assert set(world.ended.by.values()) == {Why.IDLE} and len(world.ended.by) == 6
        world.watch.stop()

    asyncio.run(main())
