"""The keeper ends what dead writers leave, and never touches what somebody may still name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.errors import ConflictError, FencedError, NoSuchLedgerError, NotFoundError
from spark_ledger.keeper.decisions import Verdict
from spark_ledger.keeper.nodes import ELECTED_PATH, read_elected, read_state
from spark_ledger.limits.keeper import RECOVERIES_AT_ONCE
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.metadata.owners import OWNERS_PATH
from spark_ledger.metadata.unsettled import OPEN_PATH, id_path
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.client.world import World, run, run_virtually
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


def test_open_ledger_of_a_dead_writer_is_recovered_after_the_grace() -> None:
    async def test(world: World) -> None:
        client, living = await world.client(), await world.client()
        writer, other = await client.create_ledger(), await living.create_ledger()
        for number in range(3):
            await writer.append(b"%d" % number)
            await other.append(b"%d" % number)
        clock = Clock()
        cared = await keeper(world, clock)
        assert await cared.elect()
        await passes(cared, clock, 1000)
        assert len((await unsettled(world))[0]) == 2, "both live"
        await client.close()
        await passes(cared, clock, 30)
        assert len((await unsettled(world))[0]) == 2, "it may come back"
        await passes(cared, clock, 10)
        assert await unsettled(world) == ([other.ledger_id], [])
        reader = await living.open_ledger(writer.ledger_id)
        assert reader.is_closed and reader.last_add_confirmed == 2
        assert await other.append(b"on") == 3

    run(test)


def test_owner_that_comes_back_within_the_grace_keeps_its_ledger() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        for _ in range(5):
            store = client.store
            assert isinstance(store, MemoryMetadataStore)
            store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
            store.expire()
            await passes(cared, clock, 30)
            store.interpose = None
            async with asyncio.timeout(5):
                while not await store.children(OWNERS_PATH):
                    await asyncio.sleep(0.01)
            await passes(cared, clock, 10)
        await writer.append(b"still mine")

    run(test)


def test_list_of_owners_that_is_not_whole_declares_nobody_dead() -> None:
    async def test(world: World) -> None:
        writer = await (await world.client()).create_ledger()
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        store = cared._store
        whole = store.children

        async def half(path: str) -> list[str]:
            return [] if path == OWNERS_PATH else await whole(path)

        store.children = half  # type: ignore[method-assign]
        await passes(cared, clock, 1000)
        await writer.append(b"still mine")

    run(test)


def test_unnamed_ledger_is_deleted_after_its_grace_and_a_named_one_never() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        named = await task(world, 1, 2)
        lost = await task(world, 3, closes=False)
        await stream.commit_segments(named)
        assert (await unsettled(world))[1] == [lost[0].ledger_id]
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 100)
        assert await unsettled(world) == ([], [lost[0].ledger_id]), "recovered, and kept"
        await passes(cared, clock, 10)
        assert await unsettled(world) == ([], [])
        with pytest.raises(NoSuchLedgerError):
            await client.ledger_metadata(lost[0].ledger_id)
        await passes(cared, clock, 1000)
        assert await read(stream) == [1, 2]

    run(test)


def test_driver_that_commits_too_late_fails_and_one_in_time_holds_the_ledger() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        in_time, late = await task(world, 1), await task(world, 2)
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 90)
        await stream.commit_segments(in_time, sink_id="q", transaction_id=0)
        await passes(cared, clock, 200)
        with pytest.raises(NoSuchLedgerError, match="nothing was committed"):
            await stream.commit_segments([*in_time, *late], sink_id="q", transaction_id=1)
        assert (await stream.head()).next_commit == 1
        again = await task(world, 2)
        await stream.commit_segments(again, sink_id="q", transaction_id=1)
        assert await read(stream) == [1, 2]

    run(test)


def test_ledger_that_was_named_once_stays_named_for_other_drivers() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        segments = await task(world, 1)
        await stream.commit_segments(segments)
        other = await StreamCatalog(await world.client()).open("s")
        await other.commit_segments(segments)
        await stream.commit_segments(segments)
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 500)
        assert await read(stream) == [1, 1, 1]

    run(test)


def test_commit_through_a_server_that_lags_leaves_nothing_unnamed() -> None:
    """Its server has not seen the ledger yet. Were the unnamed node left, its rows would go."""

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        segments = await task(world, 1)
        store = client.store
        fresh, lagging = store.get, 3

        async def stale(path: str) -> object:
            nonlocal lagging
            if path.startswith("unsettled/") and lagging:
                lagging -= 1
                raise NotFoundError("not seen yet")
            return await fresh(path)

        store.get = stale  # type: ignore[method-assign, assignment]
        await stream.commit_segments(segments)
        assert not lagging
        assert await unsettled(world) == ([], [])

    run(test)


def test_ledgers_of_a_stream_that_is_gone_are_deleted_at_once() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client)
        lost = await task(world, 1, closes=False)
        await StreamCatalog(client).delete("s")
        await new_stream(client)
        kept = await task(world, 2)
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 20)
        assert await unsettled(world) == ([], [kept[0].ledger_id])
        with pytest.raises(NoSuchLedgerError):
            await client.ledger_metadata(lost[0].ledger_id)

    run(test)


def test_deletion_of_a_stream_that_was_cut_off_is_finished() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await stream.append(rows(1, 2))
        catalog = StreamCatalog(client)

        async def cut_off(*_: object) -> None:
            raise ConflictError("killed here")

        catalog._delete_nodes = cut_off  # type: ignore[method-assign, assignment]
        with pytest.raises(ConflictError):
            await catalog.delete("s")
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 60)
        assert await client.store.children("streams") == ["s"], "somebody may be at work on it"
        await passes(cared, clock, 60)
        assert await client.store.children("streams") == []

    run(test)


def test_ledger_with_a_password_is_left_to_who_knows_it(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(password=b"secret")
        await client.close()
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 60)
        assert cared.found.locked == 1
        assert caplog.text.count("has a password: recover it") == 1, "it is tried and told once"
        assert (await unsettled(world))[0] == [writer.ledger_id]
        other = await world.client()
        await other.open_ledger(writer.ledger_id, recover=True, password=b"secret")
        await passes(cared, clock, 10)
        assert cared.found.locked == 0 and await unsettled(world) == ([], [])

    run(test)


def test_ledger_that_cannot_be_recovered_is_tried_again_less_and_less() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        await client.close()
        names = list(world.bookies)
        for name in names:
            world.kill(name)
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 100)
        assert cared.found.failing == 1
        assert cared._settler._failed[writer.ledger_id].pause_s == 40.0
        for name in names:
            world.revive(name)
        await passes(cared, clock, 100)
        assert cared.found.failing == 0 and await unsettled(world) == ([], [])

    run(test)


def test_dry_run_says_what_is_due_and_does_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client)
        lost = (await task(world, 1))[0].ledger_id
        writer = await client.create_ledger()
        await client.close()
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 20)
        await cared._save()
        before = await unsettled(world)
        dry = await keeper(world, clock, dry_run=True, owner_grace_s=0.0, unnamed_grace_s=10.0)
        plan = await dry.look()
        assert plan == [(Verdict.RECOVER, writer.ledger_id), (Verdict.DELETE, lost)]
        assert await unsettled(world) == before

    run(test)


def test_index_entries_of_what_is_over_are_taken_off() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await client.delete_ledger(writer.ledger_id)
        await new_stream(client)
        (segment,) = await task(world, 1)
        await client.delete_ledger(segment.ledger_id)
        assert await unsettled(world) == ([writer.ledger_id], [segment.ledger_id])
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 10)
        assert await unsettled(world) == ([], [])

    run(test)


def test_second_keeper_waits_and_goes_on_where_the_first_one_was() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client)
        lost = await task(world, 1)
        clock = Clock()
        first, second = await keeper(world, clock), await keeper(world, clock)
        assert await first.elect() and not await second.elect()
        await passes(first, clock, 90)
        await first._save()
        state = await read_state(client.store)
        assert state is not None and state.value.found.unnamed_of_the_dead == 1
        assert list(state.value.gone_s.values()) == [80.0]
        await first._client.close()
        assert await read_elected(client.store) is None
        assert await second.elect()
        clock.now += 1e6
        await passes(second, clock, 20)
        assert (await unsettled(world))[1] == [lost[0].ledger_id], "90 s were seen, and not 1e6"
        await passes(second, clock, 20)
        assert (await unsettled(world))[1] == []

    run(test)


def test_keeper_that_was_paused_deletes_nothing_once_another_is_elected() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await new_stream(client)
        lost = await task(world, 1)
        clock = Clock()
        first, second = await keeper(world, clock), await keeper(world, clock)
        await first.elect()
        await passes(first, clock, 100)
        await client.store.delete(ELECTED_PATH)
        assert await second.elect()
        await passes(first, clock, 50)
        assert not await first._election.is_won()
        assert (await unsettled(world))[1] == [lost[0].ledger_id]

    run(test)


def test_keeper_that_stops_after_another_was_elected_leaves_it_elected() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        clock = Clock()
        first, second = await keeper(world, clock), await keeper(world, clock)
        await first.elect()
        await client.store.delete(ELECTED_PATH)  # its session was lost, and it has not heard yet
        assert await second.elect()
        await first._election.resign()
        assert await second._election.is_won()
        await second._election.resign()
        assert await read_elected(client.store) is None

    run(test)


def test_candidate_looks_again_once_for_each_change() -> None:
    async def test(world: World) -> None:
        clock = Clock()
        first, second = await keeper(world, clock), await keeper(world, clock)
        assert await first.elect()
        store, tries = second._store, 0
        assert isinstance(store, MemoryMetadataStore)

        def count(name: str, path: str) -> Fault:
            nonlocal tries
            tries += (name, path) == ("create", ELECTED_PATH)
            assert tries < 100, "it tries again and again without a pause"
            return Fault(Outcome.NORMAL)

        store.interpose = count
        waiting = asyncio.create_task(second._election.win())
        await asyncio.sleep(1)
        for version in range(3):
            await first._store.put(ELECTED_PATH, b"{}", version)
            await asyncio.sleep(1)
        assert tries == 4 and not waiting.done()
        await first._election.resign()
        assert await waiting

    run_virtually(test)


def test_many_ledgers_of_the_dead_are_recovered_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        dead = await world.client()
        for _ in range(3 * RECOVERIES_AT_ONCE):
            await (await dead.create_ledger()).append(b"x")
        await dead.close()
        clock, running, most = Clock(), 0, 0
        cared = await keeper(world, clock)
        assert await cared.elect()
        recover = cared._client.open_ledger

        async def counted(*ledger: int, **named: Any) -> object:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1
            return await recover(*ledger, **named)

        monkeypatch.setattr(cared._client, "open_ledger", counted)
        await passes(cared, clock, 40)
        assert most == RECOVERIES_AT_ONCE and running == 0
        assert await unsettled(world) == ([], [])

    run_virtually(test)


def test_recoveries_begin_no_faster_than_the_keeper_is_told() -> None:
    async def test(world: World) -> None:
        dead = await world.client()
        for _ in range(6):
            await (await dead.create_ledger()).append(b"x")
        await dead.close()
        clock, loop = Clock(), asyncio.get_running_loop()
        cared = await keeper(world, clock, recoveries_per_s=0.5)
        assert await cared.elect()
        await passes(cared, clock, 20)
        began = loop.time()
        await passes(cared, clock, 20)
        assert loop.time() - began >= 6 / 0.5
        assert await unsettled(world) == ([], [])

    run_virtually(test)


def test_writer_that_was_taken_for_dead_is_fenced_and_loses_nothing() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"0")
        store = client.store
        assert isinstance(store, MemoryMetadataStore)
        store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        store.expire()
        clock = Clock()
        cared = await keeper(world, clock)
        await cared.elect()
        await passes(cared, clock, 50)
        store.interpose = None
        with pytest.raises(FencedError):
            await writer.append(b"1")
        reader = await client.open_ledger(writer.ledger_id)
        assert reader.is_closed and reader.last_add_confirmed == 0

    run(test)


def test_empty_pages_are_taken_away_but_the_newest() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        store = client.store
        for page in ("00/0000", "00/0007", "00/0009"):
            await store.create(f"{OPEN_PATH}/{page}", b"")
        await store.create(id_path(OPEN_PATH, 70_001), b"")  # type: ignore[arg-type]
        cared = await keeper(world, Clock(), dry_run=True)
        await cared.look()
        assert len(await store.children(f"{OPEN_PATH}/00")) == 3
        cared = await keeper(world, Clock())
        await cared.elect()
        await cared.run_pass()
        assert await store.children(f"{OPEN_PATH}/00") == ["0007", "0009"]
        await cared.run_pass()
        assert await store.children(f"{OPEN_PATH}/00") == ["0009"]

    run(test)
