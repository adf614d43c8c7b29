"""One call of a bookie's garbage collection fails, each in turn: it goes on, and does the same."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable, Sequence

import pytest

from bookie_server.storage.fs.fault_fs import Fault as DiskFault
from bookie_server.storage.fs.fault_fs import FaultFileSystem, Operation
from spark_ledger.errors import (
    ConflictError,
    CorruptionError,
    LedgerError,
    NotFoundError,
    UnauthorizedError,
)
from spark_ledger.metadata.collection import CollectionOrder, read_collection, write_order
from spark_ledger.metadata.memory import Fault, Outcome
from tests.unit.bookie_server.collection.cluster import BOOKIE, World
from tests.unit.virtual_time import run_in_virtual_time

Fail = Callable[[], Fault]


def outcome(of: Outcome) -> Fail:
    return lambda: Fault(of)


def error(kind: type[LedgerError]) -> Fail:
    def fail() -> Fault:
        raise kind("drawn by the test")

    return fail


FAILURES: Sequence[Fail] = [
    outcome(Outcome.UNAVAILABLE),
    error(ConflictError),
    outcome(Outcome.LOST_REPLY),
    error(CorruptionError),
    outcome(Outcome.LOST_REQUEST),
    error(UnauthorizedError),
    error(NotFoundError),
]
"""Neighbours fail in different ways."""


@pytest.mark.parametrize("of_the_disk", [False, True])
def test_collector_one_of_whose_calls_fails_goes_on_and_lets_the_same_go(of_the_disk: bool) -> None:
    for step in itertools.count(1):
        if not run_in_virtual_time(collect(of_the_disk, step)):
            break
    assert step > 20, "there are as many calls"


async def collect(of_the_disk: bool, step: int) -> bool:
    """Whether there was a call of that number."""
    left = 1_000_000

    def is_hit() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def interpose(_name: str, _path: str) -> Fault:
        if of_the_disk or not is_hit():
            return Fault()
        return FAILURES[step % len(FAILURES)]()

    def plan(_operation: Operation) -> DiskFault | None:
        return DiskFault(errno.EIO) if of_the_disk and is_hit() else None

    def shelf() -> None:
        if of_the_disk and is_hit():
            raise OSError(errno.EIO, "Input/output error")

    world = World(interpose)
    world.files = FaultFileSystem(world.files, plan)  # type: ignore[assignment]
    world.shelf.before_page = world.shelf.before_delete = shelf
    world.interval_s, world.whole_interval_s = 20.0, 40.0
    await world.make(*range(1, 10))
    collector = world.collector()
    collector.start()
    await asyncio.sleep(6)
    left = step
    await world.delete(2)
    await world.move(3)
    await write_order(world.operator, BOOKIE, CollectionOrder(token="a"))
    await asyncio.sleep(3)
    await world.make(20)
    await asyncio.sleep(17)
    was_hit, left = left <= 0, 1_000_000
    await asyncio.sleep(80)
    where = f"call {step}"
    assert collector._task is not None and not collector._task.done(), where
    assert sorted(world.shelf.deleted) == [2, 3], where
    assert sorted(world.shelf.keys) == [1, 4, 5, 6, 7, 8, 9, 20], where
    assert collector.stats().cause is None and not collector.last_error, where
    found = await read_collection(world.operator, BOOKIE)
    assert found is not None and found.value.report is not None, where
    assert found.value.report.order == "a", where
    assert not any(each in world.shelf.giving_back for each in range(21)), where
    await collector.stop()
    return was_hit
