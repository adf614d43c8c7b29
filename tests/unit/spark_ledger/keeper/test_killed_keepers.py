"""A keeper that is killed before or after any of its metadata operations loses nothing: whatever it
had begun, the next one ends. A writer that commits meanwhile has its rows, or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from spark_ledger.errors import ConflictError, NoSuchLedgerError
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Segment
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.world import (
    Clock,
    keeper,
    new_stream,
    passes,
    read,
    rows,
    task,
    unsettled,
)

AT_ONCE = {"owner_grace_s": 0.0, "unnamed_grace_s": 10.0}
OPERATIONS_MAX = 400


pytestmark = pytest.mark.leaves_open(
    "Task exception was never retrieved", reason="of a killed keeper nobody waits for anything"
)


class _Killed(BaseException):
    """The process is gone: nothing of it runs on."""


async def left_behind(world: World) -> tuple[Stream, list[Segment]]:
    """A stream with rows 1 and 2, a task's rows 3 that no commit names, a raw ledger that was left
    open, and a stream whose deletion was cut off."""
    client = await world.client()
    stream = await new_stream(client)
    await stream.commit_segments(await task(world, 1, closes=False))
    await stream.commit_segments(await task(world, 2))
    lost = await task(world, 3, closes=False)
    dead = await world.client()
    await (await dead.create_ledger()).append(b"0")
    gone = await new_stream(dead, "gone")
    await gone.append(rows(9))
    catalog = StreamCatalog(dead)

    async def cut_off(*_: object) -> None:
        raise ConflictError("killed here")

    catalog._delete_nodes = cut_off  # type: ignore[method-assign, assignment]
    with pytest.raises(ConflictError):
        await catalog.delete("gone")
    await dead.close()
    return stream, lost


def kill_at(cared: Keeper, operation: int, *, applied: bool) -> Callable[[], int]:
    """Kill the keeper at its nth operation from now on: before it happens, or after. The result
    tells how many there were."""
    store, count = cared._store, 0
    assert isinstance(store, MemoryMetadataStore)

    def interpose(_name: str, _path: str) -> Fault:
        nonlocal count
        count += 1
        if count == operation and applied:
            return Fault(Outcome.LOST_REPLY)
        if count >= operation:
            raise _Killed
        return Fault()

    store.interpose = interpose
    return lambda: count


async def work(cared: Keeper, clock: Clock) -> bool:
    """Seven passes, as far as the keeper lives; whether it does."""
    try:
        if not await cared.elect():
            return False
        for _ in range(7):
            await passes(cared, clock, 10)
            await cared._save()
    except BaseException as error:
        if not isinstance(error, _Killed | Exception):
            raise
        return False
    return True


async def until_dead(cared: Keeper) -> None:
    store = cared._store
    assert isinstance(store, MemoryMetadataStore)
    store.interpose = None
    await cared._client.close()


@pytest.mark.parametrize("applied", [False, True])
def test_killed_keeper_is_followed_by_one_that_ends_its_work(applied: bool) -> None:
    survived = False
    for operation in range(1, OPERATIONS_MAX, 3):

        async def test(world: World, operation: int = operation) -> None:
            nonlocal survived
            stream, _ = await left_behind(world)
            clock = Clock()
            first = await keeper(world, clock, **AT_ONCE)
            kill_at(first, operation, applied=applied)
            survived = await work(first, clock)
            await until_dead(first)
            second = await keeper(world, clock, **AT_ONCE)
            assert await work(second, clock)
            assert await unsettled(world) == ([], [])
            assert await second._store.children("streams") == ["s"]
            assert await read(stream) == [1, 2]

        run(test)
        if survived:
            return
    raise AssertionError(f"the keeper needs more than {OPERATIONS_MAX} operations")


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_commit_beside_a_keeper_has_its_rows_or_an_error(steps: int) -> None:
    """The driver commits what the keeper is about to delete, ``steps`` turns of the loop later."""

    async def test(world: World) -> None:
        stream, lost = await left_behind(world)
        clock = Clock()
        cared = await keeper(world, clock, **AT_ONCE)
        await cared.elect()
        await passes(cared, clock, 10)
        working = asyncio.create_task(passes(cared, clock, 10))
        for _ in range(steps):
            await asyncio.sleep(0)
        try:
            await stream.commit_segments(lost)
            expected = [1, 2, 3]
        except NoSuchLedgerError:
            expected = [1, 2]
        await working
        await passes(cared, clock, 30)
        assert await read(stream) == expected
        assert await unsettled(world) == ([], [])

    run(test)


def test_candidate_waits_out_a_store_that_is_away() -> None:
    async def test(world: World) -> None:
        cared = await keeper(world, Clock())
        store = cared._store
        assert isinstance(store, MemoryMetadataStore)
        for outcome in (Outcome.UNAVAILABLE, Outcome.LOST_REQUEST, Outcome.LOST_REPLY):
            store.interpose = lambda *_, outcome=outcome: Fault(outcome)
            assert not await cared._election.win(wait=False)
        store.interpose = None
        assert await cared._election.win()

    run(test)
