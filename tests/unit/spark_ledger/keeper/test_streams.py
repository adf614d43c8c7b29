"""The keeper gives back the space of rows that were dropped, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.errors import DataLossError, NoSuchLedgerError
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.streams import StreamKeeper
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.format import codec
from spark_ledger.stream.model import Retention, Segment
from spark_ledger.stream.retention import live_names, reclaim
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_killed_keepers import kill_at, until_dead
from tests.unit.spark_ledger.keeper.world import (
    Clock,
    keeper,
    new_stream,
    passes,
    read,
    rows,
    task,
)
from tests.unit.spark_ledger.stream.world import former_of, small_manifests

GRACE_S = 60.0
FAST: dict[str, Any] = {
    "owner_grace_s": 0.0,
    "unnamed_grace_s": 10.0,
    "dropped_grace_s": GRACE_S,
}


async def ledgers(world: World) -> set[int]:
    """The ledgers that the metadata name."""
    return set(await LedgerStore(MemoryMetadataStore(world.tree)).list())


async def live_ledgers(stream: Stream) -> set[int]:
    """The ledgers that are needed: of live rows, their lists, and of manifests."""
    head = await stream._watch.read()
    log = stream._log
    numbers = range(head.earliest_commit, head.next_commit)
    named = (await log.ledgers(numbers)).values()
    found = {ledger_id for each in named for ledger_id in each.rows}
    found |= {each.segment_list for each in named if each.segment_list is not None}
    root = await log.manifests.read_root(latest=True)
    async for page in log.manifests.walk():
        if page.first + root.span(page.level) > head.earliest_commit:
            found.add(LedgerId(page.pointer.ledger_id))
    return set(map(int, found))


async def elected(world: World, clock: Clock, **config: Any) -> Keeper:
    cared = await keeper(world, clock, **{**FAST, **config})
    assert await cared.elect()
    return cared


async def closed_commits(world: World, stream: Stream, count: int) -> None:
    """Commits of one row each, by workers that close their ledgers."""
    for _ in range(count):
        number = (await stream._watch.read()).next_commit
        await stream.commit_segments(await task(world, number, name=stream.name))


@pytest.mark.parametrize("manifests", [False, True])
def test_ledgers_of_truncated_commits_are_deleted_after_the_grace(
    manifests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manifests:
        small_manifests(monkeypatch)

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 9)
        clock = Clock()
        cared = await elected(world, clock)
        before = await ledgers(world) - await former_of(stream)
        await passes(cared, clock, 180)
        assert await ledgers(world) == before  # nothing was dropped
        await stream.retention.truncate((5,))
        await passes(cared, clock, 60)  # seen for the first time
        assert await ledgers(world) == before
        await passes(cared, clock, 60)
        assert await ledgers(world) == await live_ledgers(stream)
        assert await read(stream) == [5, 6, 7, 8]
        await closed_commits(world, stream, 4)
        await stream.retention.truncate((11,))
        await passes(cared, clock, 180)
        assert await ledgers(world) == await live_ledgers(stream)
        other = await StreamCatalog(await world.client()).open("s")
        assert await read(other) == [11, 12]
        if manifests:
            with pytest.raises(DataLossError, match="truncated"):
                await other.commit(3)
        await StreamCatalog(await world.client()).delete("s")
        assert await ledgers(world) == set()
        assert await cared._store.children("streams") == []

    run(test)


def test_overwritten_rows_give_their_space_back() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 3)
        await stream.commit_segments(await task(world, 7), overwrite=True)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 180)
        assert await ledgers(world) == await live_ledgers(stream)
        assert len(await ledgers(world)) == 1
        assert await read(stream) == [7]

    run(test)


def test_ledger_that_a_live_commit_names_stays() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        writer = stream.writer()
        segments: list[list[Segment]] = []
        for n in range(3):
            await writer.write(rows(n))
            segments.append(await writer.finish())
        await writer.close()
        await stream.commit_segments(segments[0])
        await closed_commits(world, stream, 2)
        await stream.commit_segments(segments[1])
        await stream.retention.truncate((2,))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 180)
        assert await read(stream) == [2, 1]
        assert await ledgers(world) == await live_ledgers(stream)
        await stream.commit_segments(segments[2])  # it is live, so its ledger may be named
        assert await read(stream) == [2, 1, 2]
        await stream.retention.truncate("latest")
        await passes(cared, clock, 180)
        assert await ledgers(world) == set()

    run(test)


def test_ledger_that_is_open_waits_for_its_writer() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await stream.append(rows(0))
        await closed_commits(world, stream, 2)
        await stream.retention.truncate((2,))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 180)
        assert (await stream._log.manifests.read_root()).dropped == 0
        await stream.append(rows(3))  # its ledger is there
        assert await read(stream) == [2, 3]
        await stream.close()
        await stream.retention.truncate("latest")
        await passes(cared, clock, 180)
        assert await ledgers(world) == set()
        assert (await stream._log.manifests.read_root()).dropped == 4

    run(test)


def test_late_commit_of_a_ledger_that_was_deleted_says_so() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        writer = stream.writer()
        await writer.write(rows(0))
        early = await writer.finish()
        await writer.write(rows(1))
        late = await writer.finish()
        await writer.close()
        await stream.commit_segments(early)  # this handle knows the ledger as named
        await closed_commits(world, stream, 1)
        await stream.retention.truncate((1,))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 180)
        head = await stream._watch.read()
        with pytest.raises(NoSuchLedgerError, match="write the rows again"):
            await stream.commit_segments(late)
        assert await stream._watch.read() == head
        assert await read(stream) == [1]

    run(test)


@pytest.mark.parametrize("step", range(1, 36))
def test_commit_beside_the_deletion_has_its_rows_or_an_error(step: int) -> None:
    """The late commit comes before the nth operation of the sweep that deletes its ledger."""

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        writer = stream.writer()
        await writer.write(rows(0))
        early = await writer.finish()
        await writer.write(rows(1))
        late = await writer.finish()
        await writer.close()
        await stream.commit_segments(early)
        await closed_commits(world, stream, 2)
        await stream.retention.truncate((1,))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 60)
        assert (await stream._log.manifests.read_root(latest=True)).dropped == 0
        inner, count = cared._stream_keeper._store, 0
        gate, done = asyncio.Event(), asyncio.Event()
        assert isinstance(inner, MemoryMetadataStore)

        async def commit() -> list[int]:
            await gate.wait()
            try:
                await stream.commit_segments(late)
                return [1, 2, 1]
            except NoSuchLedgerError:
                return [1, 2]
            finally:
                done.set()

        committing = asyncio.create_task(commit())

        def interpose(_name: str, _path: str) -> Fault:
            nonlocal count
            count += 1
            if count == step:
                gate.set()
            return Fault(delay_s=0.03 * (step == count))

        inner.interpose = interpose
        await passes(cared, clock, 10)
        gate.set()
        expected = await committing
        await passes(cared, clock, 180)
        assert await read(stream) == expected
        assert await ledgers(world) == await live_ledgers(stream)

    run(test)


@pytest.mark.parametrize("applied", [False, True])
def test_keeper_killed_in_a_sweep_is_followed_by_one_that_ends_it(
    applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_manifests(monkeypatch)
    monkeypatch.setattr(reclaim, "DROPPED_PER_STEP", 3)

    async def test(world: World, operation: int) -> bool:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 9)
        await stream.retention.truncate((7,))
        clock = Clock()
        first = await elected(world, clock)
        await passes(first, clock, 60)
        assert (await stream._log.manifests.read_root(latest=True)).dropped == 0
        operations = kill_at(first, operation, applied=applied)
        try:
            await passes(first, clock, 10)
        except BaseException as error:
            if type(error).__name__ != "_Killed" and not isinstance(error, Exception):
                raise
        await until_dead(first)
        await closed_commits(world, stream, 2)
        second = await elected(world, clock)
        await passes(second, clock, 180)
        assert await read(stream) == [7, 8, 9, 10]
        assert await ledgers(world) == await live_ledgers(stream)
        root = await stream._log.manifests.read_root(latest=True)
        assert root.dropped == 7
        assert (await stream.refresh()).dropping == ()
        return operations() < operation

    for operation in range(1 + applied, 400, 7):
        outcome: list[bool] = []

        async def once(world: World, number: int = operation) -> None:
            outcome.append(await test(world, number))  # noqa: B023 - called at once

        run(once)
        if outcome == [True]:
            return
    raise AssertionError("a sweep takes fewer operations")


def test_retention_is_applied_by_the_keeper_and_holds_end() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await StreamCatalog(client).create(
            "s", rows(1).schema, retention=Retention(rows=2)
        )
        await closed_commits(world, stream, 6)
        hold = await stream.retention.hold("slow", (3,), for_s=3600)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 180)
        assert await read(stream) == [3, 4, 5]
        cared._stream_keeper._wall_ms = lambda: hold.expires_ms
        await passes(cared, clock, 300)  # a clock that jumped by an hour is not believed
        assert len(await stream.retention.holds()) == 1
        await passes(cared, clock, 3600)
        assert await stream.retention.holds() == []
        assert await read(stream) == [4, 5]
        assert await ledgers(world) == await live_ledgers(stream)

    run(test)


@pytest.mark.parametrize("restarts", [False, True])
def test_clock_that_jumps_a_year_drops_nothing_young(restarts: bool) -> None:
    """Also the clock of the writers, and a keeper that starts with it."""

    async def test(world: World) -> None:
        client = await world.client()
        stream = await StreamCatalog(client).create(
            "s", rows(1).schema, retention=Retention(age_s=7 * 24 * 3600.0)
        )
        await closed_commits(world, stream, 3)
        clock = Clock()
        cared = await elected(world, clock)
        wall_ms = cared._stream_keeper._wall_ms
        await passes(cared, clock, 60)
        if restarts:
            await until_dead(cared)
            cared = await elected(world, clock)

        def jumped() -> int:
            return wall_ms() + 365 * 24 * 3600 * 1000

        cared._stream_keeper._wall_ms = jumped
        stream._committer.clock_ms = jumped
        await closed_commits(world, stream, 2)
        await passes(cared, clock, 3600)
        assert await read(stream) == [0, 1, 2, 3, 4]

    run(test)


def test_stream_of_the_former_format_is_upgraded_and_given_back() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await closed_commits(world, stream, 3)
        nodes = stream._nodes
        config = await nodes.config()
        assert not config.value.has_retention
        old = codec.encode_config(config.value).replace(b'"v":2', b'"v":1')
        await nodes.store.put(nodes.config_path, old, config.version)
        await nodes.store.delete(nodes.manifests_path)
        other = await StreamCatalog(await world.client()).open("s")
        await other.retention.truncate((2,))
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 180)
        assert (await other.refresh()).has_retention
        assert await read(other) == [2]
        assert len(await ledgers(world)) == 1

    run(test)


def test_one_stream_that_fails_keeps_no_other_waiting() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client, "broken")
        stream = await new_stream(client)
        await closed_commits(world, stream, 2)
        await stream.retention.truncate("latest")
        await client.store.put("streams/broken/head", b"{}", 0)
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 180)
        assert await ledgers(world) == set()
        assert "broken" in cared._stream_keeper.last_error
        assert cared.done["reclaimed"] == 2

    run(test)


def test_former_keeper_deletes_nothing_that_was_dropped() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 3)
        await stream.retention.truncate("latest")
        clock = Clock()
        first = await elected(world, clock)
        await passes(first, clock, 60)
        await first._election.resign()
        await elected(world, clock)
        clock.now += GRACE_S
        before = await ledgers(world)
        sweeper = first._stream_keeper
        assert isinstance(sweeper, StreamKeeper)
        await sweeper.sweep()
        assert await ledgers(world) == before
        assert not sweeper.done["reclaimed"]

    run(test)


def test_keeper_that_was_paused_before_a_deletion_does_not_do_it() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 1)
        await stream.retention.truncate("latest")
        clock = Clock()
        first = await elected(world, clock)
        await passes(first, clock, 60)
        clock.now += GRACE_S
        deletions = first._stream_keeper._deletions
        delete = deletions.delete
        done: list[bool] = []

        async def paused(ledger: Any, checks: Any) -> bool:
            if not done:
                await first._election.resign()
                await elected(world, clock)
            done.append(await delete(ledger, checks))
            return done[-1]

        deletions.delete = paused  # type: ignore[method-assign]
        await first._stream_keeper.sweep()
        assert done == [False]
        assert len(await ledgers(world)) == 1

    run(test)


def test_lost_replies_of_deletions_are_made_good() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 3)
        await stream.retention.truncate("latest")
        clock = Clock()
        cared = await elected(world, clock)
        await passes(cared, clock, 60)
        store = cared._store
        assert isinstance(store, MemoryMetadataStore)
        store.interpose = lambda name, _: Fault(
            Outcome.LOST_REPLY if name == "transaction" else Outcome.NORMAL
        )
        await passes(cared, clock, 60)
        store.interpose = None
        await passes(cared, clock, 120)
        assert await ledgers(world) == set()

    run(test)


@pytest.mark.parametrize("kept", [0, 1, 1000])
def test_live_names_beyond_the_bound_are_read_again(kept: int) -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 6)
        names = live_names.LiveNames(kept)
        all_ids = await ledgers(world)
        log = stream._log
        assert await names.named(log, all_ids, 0, 6) == all_ids  # type: ignore[arg-type]
        found = await names.named(log, all_ids, 4, 6)  # type: ignore[arg-type]
        assert found == {each for n in (4, 5) for each in (await log.ledgers([n]))[n].rows}
        assert len(names._last) <= kept

    run(test)
