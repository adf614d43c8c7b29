"""Handles of a deleted stream drop and hold nothing of one that has its name since (rule T7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.errors import NoSuchStreamError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention.handle import StreamRetention
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.test_replaced_streams import before_the_next
from tests.unit.spark_ledger.stream.world import SCHEMA, another, run, table

NODES = ("config", "head", "holds", "manifests")
CHANGES: list[Callable[[StreamRetention], Awaitable[object]]] = [
    lambda kept: kept.truncate((2,)),
    lambda kept: kept.apply(1 << 50),
    lambda kept: kept.set_limits(Retention(rows=7)),
    lambda kept: kept.hold("new", (1,), for_s=60),
    lambda kept: kept.hold("slow", (2,), for_s=60),
    lambda kept: kept.release("slow"),
    lambda kept: kept.allow_packs(),
]


async def made(ledgers: FakeLedgers) -> Stream:
    """A stream whose nodes have the versions of any other that was made here."""
    stream = await StreamCatalog(ledgers).create("s", SCHEMA, retention=Retention(rows=1))
    for n in range(4):
        await stream.append(table(n))
    await stream.retention.hold("slow", (1,), for_s=600)
    return stream


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", ["transaction", "get"])
def test_change_of_a_stream_that_was_replaced_meanwhile_is_refused(
    change: Callable[[StreamRetention], Awaitable[object]], call: str
) -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await made(ledgers)
        stale = await another(ledgers)[1].open("s")
        await stale.retention.release("slow")
        await stale.retention.hold("slow", (3,), for_s=600)
        before: list[object] = []

        async def replace() -> None:
            await StreamCatalog(ledgers).delete("s")
            new = await made(ledgers)
            await new.retention.release("slow")
            await new.retention.hold("slow", (3,), for_s=600)
            before.extend([await ledgers.store.get(f"streams/s/{node}") for node in NODES])

        before_the_next(stale, call, replace)
        with pytest.raises(NoSuchStreamError):
            await change(stale.retention)
        assert [await ledgers.store.get(f"streams/s/{node}") for node in NODES] == before

    run(scenario())


def test_look_at_a_stream_that_was_replaced_is_refused() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stale = await made(ledgers)
        reclaimer = stale.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        await StreamCatalog(ledgers).delete("s")
        await made(ledgers)
        kept = stale.retention
        for look in (
            kept.extent,
            kept.holds,
            kept.limits,
            kept.ledgers,
            lambda: kept.crowded(1),
            lambda: kept.release_void(1 << 50),
            reclaimer.withdraw,
            stale.sealed_commits,
        ):
            with pytest.raises(NoSuchStreamError):
                await look()

    run(scenario())
