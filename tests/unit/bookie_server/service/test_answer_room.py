"""Room for answers: a call that had to wait for it is looked at as any other afterwards."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.bookie_server.service.test_calls import MIB, name, on_loop, room_of, until

pytestmark = pytest.mark.leaves_open("AnswerRoom._look", reason="its service goes on")


@on_loop
async def test_call_that_has_waited_for_room_is_cut_as_others_once_its_client_stops() -> None:
    room = room_of(64 * MIB, grace_s=60.0, unread_s=5.0)
    begun, other_ends = asyncio.Event(), asyncio.Event()

    async def stops() -> None:
        await room.reserve()
        with room.hold(MIB, name()):
            begun.set()
        await asyncio.sleep(0.01)
        await room.reserve()
        with room.hold(MIB, name()):
            await asyncio.sleep(3600.0)

    async def other() -> None:
        await begun.wait()
        await room.reserve()
        with room.hold(30 * MIB, name()):
            await other_ends.wait()

    task, beside = asyncio.ensure_future(stops()), asyncio.ensure_future(other())
    await until(lambda: bool(room._begun))
    other_ends.set()
    await beside
    async with asyncio.timeout(60.0):
        await asyncio.wait([task])
    assert task.cancelled()
