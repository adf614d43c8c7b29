"""How often clients are looked at: often while some may hold what others need; and for room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie_server.service.guard import client_watch
from bookie_server.service.guard.hanging_up import Why
from spark_ledger.limits.bookie import BOOKIE_CONNECTION_IDLE_S, BOOKIE_CONNECTION_LOOK_S
from tests.unit.bookie_server.service.guard.test_client_watch import World


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
        assert await beats.look() == BOOKIE_CONNECTION_LOOK_S
        assert world.watch._strangers.peers == {"new"}
        world.streams.remove(new)  # its call has ended, and gRPC has what it sent
        assert await beats.look() == BOOKIE_CONNECTION_LOOK_S
        del world.kernel.bytes["new"]
        assert await beats.look() == BOOKIE_CONNECTION_IDLE_S
        world.watch.stop()

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
