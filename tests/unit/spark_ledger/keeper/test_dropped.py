"""The grace of dropped rows goes by the time that keepers have worked, whoever of them it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.errors import ConflictError
from spark_ledger.keeper.dropped import DroppedRows
from spark_ledger.keeper.nodes import DroppedNode, dropped_path
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_killed_keepers import until_dead
from tests.unit.spark_ledger.keeper.test_streams import (
    closed_commits,
    elected,
    ledgers,
    live_ledgers,
)
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes


def test_before_grace_nothing_is_long_enough_ago() -> None:
    rows = DroppedRows()
    assert rows.before(5, 0.0, 60.0) == 0
    assert rows.before(5, 59.9, 60.0) == 0
    assert rows.before(5, 60.0, 60.0) == 5


def test_next_keeper_goes_on_from_the_looks_of_the_one_before() -> None:
    rows = DroppedRows()
    assert rows.before(5, 0.0, 60.0) == 0
    assert DroppedRows(rows.looks).before(7, 60.0, 60.0) == 5


def test_stream_that_drops_rows_at_each_look_keeps_few_looks() -> None:
    rows = DroppedRows()
    for now in range(1000):
        upto = rows.before(now + 1, float(now), 60.0)
        assert len(rows.looks) <= 17
        assert upto <= max(0, now + 1 - 60)
        assert upto >= now + 1 - 60 - 4 - 1 or now < 65
        assert now + 1 - 30 - 4 - 1 <= rows.seen(float(now), 30.0) <= now + 1 - 30 or now < 35


def test_looks_of_a_time_to_come_begin_anew() -> None:
    rows = DroppedRows([(10_000.0, 5)])
    assert rows.before(5, 100.0, 60.0) == 0
    assert rows.before(5, 160.0, 60.0) == 5


def test_looks_of_commits_that_are_not_dropped_are_void() -> None:
    assert DroppedRows([(0.0, 9)]).before(5, 100.0, 60.0) == 0


def test_keepers_killed_before_the_grace_is_over_give_space_back_together() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 6)
        await stream.retention.truncate((4,))
        clock = Clock()
        for _ in range(4):  # each is killed after 40 of the 60 s
            cared = await elected(world, clock)
            await passes(cared, clock, 40)
            await cared._save()
            await until_dead(cared)
        assert await ledgers(world) == await live_ledgers(stream)

    run(test)


def test_time_without_a_keeper_is_no_part_of_the_grace() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 3)
        await stream.retention.truncate((2,))
        before, clock = await ledgers(world), Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 10)
        await cared._save()
        await until_dead(cared)
        clock.now += 365 * 86_400.0
        await passes(await elected(world, clock), clock, 30)
        assert await ledgers(world) == before

    run(test)


def test_note_of_a_stream_that_is_gone_is_removed() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        stream_id = stream.config.stream_id
        await closed_commits(world, stream, 3)
        await stream.retention.truncate((2,))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 10)
        assert await read_node(client.store, DroppedNode, dropped_path(stream_id)) is not None
        await StreamCatalog(client).delete("s")
        await passes(cared, clock, 60)
        assert await read_node(client.store, DroppedNode, dropped_path(stream_id)) is None

    run(test)


def test_note_of_a_stream_that_cannot_be_read_stays() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await closed_commits(world, stream, 3)
        await stream.retention.truncate((2,))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 10)
        path = "streams/s/config"
        await client.store.put(path, b"{}", (await client.store.get(path)).version)
        await passes(cared, clock, 60)
        assert await client.store.children("keeper/dropped") == [stream.config.stream_id]

    run(test)


def test_keeper_that_is_not_elected_any_more_notes_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await closed_commits(world, stream, 3)
        await stream.retention.truncate((2,))
        clock = Clock()
        first = await elected(world, clock)
        await first._election.resign()
        await elected(world, clock)
        await first._stream_keeper.sweep()
        assert await client.store.children(dropped_path("x").rpartition("/")[0]) == []
        assert first._stream_keeper._conflicts == {"s": 1}

    run(test)


def test_note_that_somebody_else_has_changed_is_read_again_by_the_next_sweep() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await closed_commits(world, stream, 6)
        path, clock = dropped_path(stream.config.stream_id), Clock()
        cared = await elected(world, clock)
        await stream.retention.truncate((2,))
        await cared._stream_keeper.sweep()
        note = await client.store.get(path)
        await client.store.put(path, note.value, note.version)
        await stream.retention.truncate((4,))
        conflicts = []
        for _ in range(3):
            clock.now += 20.0
            await cared._stream_keeper.sweep()
            conflicts.append(cared._stream_keeper._conflicts["s"])
        assert conflicts == [1, 0, 0]
        found = await read_node(client.store, DroppedNode, dropped_path(stream.config.stream_id))
        assert found is not None and found.value.looks[-1][1] == 4

    run(test)


@pytest.mark.parametrize("stays", [True, False])
def test_keeper_without_a_rival_meets_no_conflict_in_what_it_writes_down(stays: bool) -> None:
    """Pass after pass, and one after the other: a note whose version is not kept fails each second
    time, and is read again."""

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await closed_commits(world, stream, 8)
        clock = Clock()
        cared = await elected(world, clock)
        for upto in range(1, 7):
            conflicts = conflicts_of(cared._store)
            await stream.retention.truncate((upto,))
            await passes(cared, clock, 60)  # one of them sweeps
            await cared._save()
            assert conflicts == []
            found = await read_node(
                client.store, DroppedNode, dropped_path(stream.config.stream_id)
            )
            assert found is not None and found.value.looks[-1][1] == upto
            if not stays:
                await until_dead(cared)
                cared = await elected(world, clock)

    run(test)


def conflicts_of(store: MetadataStore) -> list[ConflictError]:
    """The list gets the conflicts of changes from now on."""
    conflicts: list[ConflictError] = []

    def noting(change: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def noted(*of: object) -> object:
            try:
                return await change(*of)
            except ConflictError as error:
                conflicts.append(error)
                raise

        return noted

    for name in ("put", "transaction"):
        setattr(store, name, noting(getattr(store, name)))
    return conflicts


@pytest.mark.parametrize("sink_records_s", [0.0, 86_400.0])
def test_sweep_visits_each_stream_once(sink_records_s: float) -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 2)
        cared = await elected(world, Clock(), sink_records_s=sink_records_s)
        store, reads = cared._store, 0
        assert isinstance(store, MemoryMetadataStore)

        def interpose(name: str, path: str) -> Fault:
            nonlocal reads
            reads += path == "streams/s/config"
            return Fault()

        store.interpose = interpose
        await cared._stream_keeper.sweep()
        assert reads == 1

    run(test)
