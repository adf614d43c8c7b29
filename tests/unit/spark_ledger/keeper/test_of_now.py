"""What a keeper decides by is so now: the streams that there are, and that it is elected."""

from __future__ import annotations

import asyncio
from typing import Any

from spark_ledger.errors import NotFoundError
from spark_ledger.keeper.nodes import EPOCH_PATH
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.client.world import World, run, run_virtually
from tests.unit.spark_ledger.keeper.world import (
    SCHEMA,
    Clock,
    keeper,
    new_stream,
    passes,
    read,
    rows,
    task,
    unsettled,
)


def test_stream_that_a_server_that_lags_does_not_know_keeps_its_ledgers() -> None:
    """It is new, and its first rows are about to be committed."""

    async def test(world: World) -> None:
        clock, stream = Clock(), await new_stream(await world.client())
        (segment,) = await task(world, 1)
        cared = await keeper(world, clock, unnamed_grace_s=1000.0)
        assert await cared.elect()
        store = cared._store
        real = store.get
        path = StreamNodes(store, "s").identity_path(stream.config.stream_id)

        async def lags(asked: str) -> Versioned[bytes]:
            if asked == path:
                raise NotFoundError(asked)
            return await real(asked)

        store.get = lags  # type: ignore[method-assign, assignment]
        await passes(cared, clock, 100)
        assert await unsettled(world) == ([], [segment.ledger_id])
        await stream.commit_segments([segment])

    run(test)


def test_keeper_that_is_elected_again_behind_another_one_works_again() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        first, second = await keeper(world, clock), await keeper(world, clock)
        for cared in (first, second, first, second):
            assert await cared.elect()
            await new_stream(await world.client(), f"s{clock.now:.0f}")
            await task(world, 1, name=f"s{clock.now:.0f}")  # unnamed, and its writer is gone
            await passes(cared, clock, 200)
            assert await unsettled(world) == ([], [])
            await cared._election.resign()

    run(test)


def test_keeper_whose_epoch_a_candidate_that_was_cut_off_has_raised_works_on() -> None:
    """That one had won the place, and lost its session before it came to the epoch."""

    async def test(world: World) -> None:
        clock, client = Clock(), await world.client()
        cut, cared = await keeper(world, clock), await keeper(world, clock, pass_s=0.2)
        store, stop = cut._store, asyncio.Event()
        assert isinstance(store, MemoryMetadataStore)
        real, running = store.get_latest, list[asyncio.Task[None]]()

        async def late(path: str) -> Versioned[bytes]:
            if path == EPOCH_PATH and not running:
                store.expire()
                running.append(asyncio.create_task(cared.run(stop)))
                await asyncio.sleep(2)
                assert cared.is_elected
            return await real(path)

        store.get_latest = late  # type: ignore[method-assign]
        assert await cut.elect(), "for all that it knows"
        assert not await cut._election.is_won()
        await new_stream(client)
        await task(world, 1)  # unnamed, and its writer is gone
        for _ in range(40):
            clock.now += 10.0
            await asyncio.sleep(0.2)
        assert await unsettled(world) == ([], [])
        stop.set()
        await running[0]

    run_virtually(test)


def test_new_stream_of_the_name_of_one_whose_deletion_is_finished_stays() -> None:
    """Whoever was at the deletion ends it while the keeper is about to, and makes another."""

    async def test(world: World) -> None:
        catalog = StreamCatalog(await world.client())
        await catalog.create("s", SCHEMA)
        await catalog._mark_deleted(StreamNodes(catalog._store, "s"))
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 60)
        streams = cared._stream_keeper
        finish = streams._streams.finish_deletion

        async def overtaken(*words: Any) -> bool:
            await catalog.delete("s")
            await (await catalog.create("s", SCHEMA)).append(rows(1, 2, 3))
            return await finish(*words)

        streams._streams.finish_deletion = overtaken  # type: ignore[method-assign, assignment]
        await passes(cared, clock, 60)
        assert await read(await catalog.open("s")) == [1, 2, 3]
        assert not streams.last_error and not streams.done["streams"]

    run(test)
