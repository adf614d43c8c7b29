"""How often clients are looked at: often while something may arrive that costs others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bookie_server.service.guard.client_watch import ClientWatch
from spark_ledger.limits.bookie import (
    BOOKIE_CONNECTION_IDLE_S,
    BOOKIE_CONNECTION_LOOK_S,
    BOOKIE_CONNECTIONS_LOOK_S,
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
