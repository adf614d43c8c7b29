"""The cluster's cookie of a bookie that runs, where replies are late or writes do not succeed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bookie_server.identity import Identity
from spark_ledger.errors import ConflictError, OutcomeUnknownError
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.cookies import accept_newer_starts, cookie_path, encode_cookie
from spark_ledger.metadata.memory import Fault, Outcome
from spark_ledger.types import BookieStart
from tests.unit.bookie_server.test_identity import DIRECTORIES, B, World, in_world
from tests.unit.spark_ledger.metadata.late_replies import LateReplies, once


@in_world
async def test_later_start_while_the_cookie_is_read_is_told(world: World) -> None:
    """The reply of the read is older than the news of the start, and arrives after it."""
    told: list[str] = []
    running = await world.start()
    store = LateReplies(world.tree)
    watching = Identity(world.cookie, DIRECTORIES, store, world.files)
    watching.start = running.start
    later = BookieStart(9, "another")
    data = encode_cookie(msgspec.structs.replace(world.known(), start=later))
    put = Put(cookie_path(B), data, world.tree.get(cookie_path(B)).version)
    store.on_way = once("get", cookie_path(B), lambda: world.tree.apply([put]))
    watching.watch(told.append)
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.001)
    assert "start 9, this is start 1" in told[0]
    await watching.close()


@pytest.mark.parametrize("trouble", ["request lost", "others write"])
def test_note_that_cannot_be_written_is_no_success(trouble: str) -> None:
    """`ledger cluster restored` must not say that a bookie may start which may not."""

    async def main() -> None:
        world = await World().prepare()
        await world.start()

        def interpose(name: str, path: str) -> Fault:
            if name != "put" or path != cookie_path(B):
                return Fault()
            if trouble == "request lost":
                return Fault(Outcome.LOST_REQUEST)
            known = world.tree.get(path)
            world.tree.apply([Put(path, known.value, known.version)])
            return Fault()

        with pytest.raises(OutcomeUnknownError if trouble == "request lost" else ConflictError):
            await accept_newer_starts(world.tree.open_session(interpose=interpose))
        assert not world.known().accepts_newer

    asyncio.run(main())


@in_world
async def test_bookie_that_notes_its_own_stop_does_not_take_it_for_another_start(
    world: World,
) -> None:
    """The news of the cookie comes before the reply of the write."""
    identity = await world.start()
    told: list[str] = []
    identity.watch(told.append)
    put = identity._store.put

    async def slow_put(path: str, data: bytes, version: int) -> int:
        written = await put(path, data, version)
        for _turn in range(10):
            await asyncio.sleep(0)
        return written

    identity._store.put = slow_put  # type: ignore[method-assign]
    await identity.release()
    assert told == []
