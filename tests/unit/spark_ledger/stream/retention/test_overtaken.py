"""Keepers that are overtaken in the middle of a sweep: by another keeper, or by another stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import pytest

from spark_ledger.errors import ConflictError, NoSuchStreamError, NotFoundError
from spark_ledger.metadata.base import Check, Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.reclaim import Reclaimer
from spark_ledger.stream.stream import Stream
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.retention.test_truncation import Between
from tests.unit.spark_ledger.stream.world import SCHEMA, another, numbers, run, table

Sweep = Callable[[Reclaimer], Awaitable[object]]
SWEEPS: dict[str, Sweep] = {
    "step": lambda reclaimer: reclaimer.step(2),
    "packs": lambda reclaimer: reclaimer.free_packed(),
    "withdraw": lambda reclaimer: reclaimer.withdraw(),
}
NODES = ("config", "manifests", "packs")


class OfOne(ClosedDeletions):
    """Of the keeper that is elected as long as nobody has written the node of keepers."""

    def guard(self) -> Operation:
        return Check("keeper", 0)


class Seen(NamedTuple):
    """What is there of a stream, and of all ledgers."""

    nodes: list[Versioned[bytes]]
    ledgers: set[int]


async def seen(ledgers: FakeLedgers) -> Seen:
    nodes = [await ledgers.store.get(f"streams/s/{node}") for node in NODES]
    return Seen(nodes, set(ledgers.ledgers))


async def made(ledgers: FakeLedgers) -> Stream:
    """Commits 0 and 1 are dropped, and in a pack with 2; commit 3 is packed alone. A keeper that
    was killed has left its list."""
    stream = await StreamCatalog(ledgers).create("s", SCHEMA, retention=Retention(rows=100))
    for n in range(4):
        await stream.append(table(n))
        await stream.close()
        if n > 1:
            await stream.optimizer.run_all(entries_min=1)
    await stream.retention.truncate((2,))
    return stream


async def swept(
    ledgers: FakeLedgers, at: int, work: Sweep, happen: Callable[[], Awaitable[None]]
) -> bool:
    """Whether the sweep had ended before that step of it."""
    keeper = await another(ledgers)[1].open("s")
    reclaimer = keeper.retention.reclaimer(OfOne(ledgers), LiveNames())
    between = Between(keeper._nodes.store, at, happen)
    keeper._nodes.store = between
    with suppress(ConflictError, NotFoundError, NoSuchStreamError):
        await work(reclaimer)
    return between.calls_left > 0


@pytest.mark.parametrize("work", SWEEPS)
def test_keeper_that_another_has_followed_changes_nothing_from_then_on(work: str) -> None:
    async def scenario(at: int) -> bool:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        await made(ledgers)
        before: list[Seen] = []

        async def elected() -> None:
            await ledgers.store.put("keeper", b"another", 0)
            before.append(await seen(ledgers))

        is_over = await swept(ledgers, at, SWEEPS[work], elected)
        if not is_over:
            assert [await seen(ledgers)] == before, at
        return is_over

    at = 1
    while not run(scenario(at)):
        at += 1
    assert at > (1 if work == "withdraw" else 5)


@pytest.mark.parametrize("work", SWEEPS)
def test_sweep_of_a_stream_that_was_replaced_leaves_the_new_one_as_it_is(work: str) -> None:
    """The nodes of both have the same versions (rule T7)."""

    async def scenario(at: int) -> bool:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        await made(ledgers)
        before: list[Seen] = []

        async def replaced() -> None:
            versions = [node.version for node in (await seen(ledgers)).nodes]
            await StreamCatalog(ledgers).delete("s")
            await made(ledgers)
            fresh = await seen(ledgers)
            for node, old in zip(NODES, versions, strict=True):
                found = await ledgers.store.get(f"streams/s/{node}")
                for version in range(found.version, old):
                    await ledgers.store.put(f"streams/s/{node}", found.value, version)
            before.append(fresh._replace(nodes=(await seen(ledgers)).nodes))

        is_over = await swept(ledgers, at, SWEEPS[work], replaced)
        if not is_over:
            after = await seen(ledgers)
            assert (after.nodes, after.ledgers) == (before[0].nodes, before[0].ledgers), at
            new = await another(ledgers)[1].open("s")
            assert await numbers(new.read()) == [2, 3]
        return is_over

    at = 1
    while not run(scenario(at)):
        at += 1
