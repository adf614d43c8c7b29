"""What is to be given back is counted, and written down for those who watch the cluster."""

from __future__ import annotations

import pytest

from spark_ledger.cli.show.extent import ledger_facts
from spark_ledger.keeper.nodes import SweptNode, read_swept
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Retention
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.keeper.test_streams import (
    closed_commits,
    elected,
    ledgers,
    live_ledgers,
)
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes
from tests.unit.spark_ledger.stream.world import former_of, small_manifests


@pytest.mark.parametrize("manifests", [False, True])
def test_ledgers_of_a_stream_are_counted_by_what_needs_them(
    manifests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manifests:
        small_manifests(monkeypatch)

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 8)
        pages = len(await live_ledgers(stream)) - 8
        assert bool(pages) is manifests
        former = len(await former_of(stream))
        assert await stream.retention.ledgers() == (8 + pages, 0, former, former)
        await stream.retention.truncate((2,))
        assert (await stream.retention.ledgers())[1:] == (0, 2 + former, former)
        await stream.retention.hold("slow", for_s=3600.0)
        await stream.retention.set_limits(Retention(rows=3))
        live, held, reclaimable, replaced = await stream.retention.ledgers()
        assert (held, reclaimable, replaced) == (3, 2 + former, former)
        ((_, told),) = ledger_facts(await stream.retention.ledgers())
        assert f"{reclaimable} reclaimable" in told
        assert (f"of which {former} were replaced and wait for backups" in told) is manifests
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 180)
        assert await stream.retention.ledgers() == (len(await ledgers(world)), 3, 0, 0)
        assert live == 6 + pages

    run(test)


def test_keeper_writes_down_what_is_not_given_back_yet() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 5)
        clock = Clock()
        cared = await elected(world, clock)
        await stream.retention.truncate((3,))
        await passes(cared, clock, 10)
        waits = await read_swept(cared._store)
        extent = await stream.retention.extent()
        assert waits is not None and extent.reclaimable_bytes > 0
        assert (waits.value.reclaimable_commits, waits.value.reclaimable_bytes) == (
            3,
            extent.reclaimable_bytes,
        )
        await passes(cared, clock, 180)
        waits = await read_swept(cared._store)
        assert waits is not None and waits.value == SweptNode()

    run(test)


def test_nothing_waits_of_a_stream_that_was_deleted() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await closed_commits(world, stream, 5)
        clock = Clock()
        cared = await elected(world, clock)
        await stream.retention.truncate((3,))
        await passes(cared, clock, 10)
        waits = await read_swept(cared._store)
        assert waits is not None and waits.value.reclaimable_commits == 3
        await stream.close()
        await StreamCatalog(client).delete("s")
        await passes(cared, clock, 60)
        waits = await read_swept(cared._store)
        assert waits is not None and waits.value == SweptNode()

    run_virtually(test)
