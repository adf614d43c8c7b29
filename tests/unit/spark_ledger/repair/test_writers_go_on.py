"""Writers whose bookie has lost ZooKeeper, and serves: they add all the time (rule R3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import (
    BookieUnavailableError,
    LedgerError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from spark_ledger.limits.repair import REPAIR_ASKS_AT_ONCE
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.repair.decommission import decommission
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.types import BookieId, EntryId, Fragment
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import (
    Crew,
    contents,
    crew,
    give_cookies,
    lacking,
    lose,
    marked,
)


async def unregister(world: World, name: BookieId) -> None:
    """It takes entries and answers as before, and counts as lost."""
    await world._registries[name].deregister()


async def begun_with(world: World) -> tuple[LedgerClient, LedgerWriter, Crew]:
    """A client, a writer of it that has added some entries, and who repairs."""
    await give_cookies(world)
    client = await world.client()
    return client, await filled(client), await crew(world)


def before_opening(
    monkeypatch: pytest.MonkeyPatch, cared: Crew, act: Callable[[bool], Awaitable[None]]
) -> None:
    """Act as the worker opens a ledger; it is told whether it only asks what is there."""
    opener = cared.worker._client
    real = opener.open_ledger

    async def opened(*given: Any, **options: Any) -> Any:
        await act(not options)
        return await real(*given, **options)

    monkeypatch.setattr(opener, "open_ledger", opened)


def test_writer_that_adds_to_a_bookie_without_zookeeper_is_not_ended() -> None:
    """Its metadata stay the same all the time. Once it adds nothing it has its grace, and no
    more."""

    async def test(world: World) -> None:
        client, writer, cared = await begun_with(world)
        name = writer.metadata.last_fragment.bookies[0]
        await unregister(world, name)
        for _ in range(100):
            await cared.passes(10)
            await writer.append(b"more")
        assert name in writer.metadata.last_fragment.bookies
        assert set(await marked(world)) == {writer.ledger_id}
        await cared.passes(150)
        assert not (await client.ledger_metadata(writer.ledger_id)).is_closed
        await cared.passes(300)
        assert (await client.ledger_metadata(writer.ledger_id)).is_closed
        assert await marked(world) == {}
        assert await lacking(world, client, writer.ledger_id) == []
        assert len(await contents(client, writer.ledger_id)) == 120
        with pytest.raises(LedgerError):
            await writer.append(b"late")

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("adds", [False, True])
def test_bookies_are_asked_again_that_did_not_say_what_was_there_at_first(
    adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time begins with the first answer; then they are asked once more, as it ends."""

    async def test(world: World) -> None:
        client, writer, cared = await begun_with(world)
        asked = 0

        async def silent_at_first(is_question: bool) -> None:
            nonlocal asked
            asked += is_question
            if asked == 1 and is_question:
                raise BookieUnavailableError("for a moment")

        before_opening(monkeypatch, cared, silent_at_first)
        await unregister(world, writer.metadata.last_fragment.bookies[0])
        for _ in range(39):
            await cared.passes(10)
            if adds:
                await writer.append(b"more")
        assert (await client.ledger_metadata(writer.ledger_id)).is_closed is not adds and asked == 3

    run_virtually(test, bookies=5)


def test_bookies_that_answer_late_end_no_writer_that_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the time is over nobody says what is confirmed, so nobody can say that it grew."""

    async def test(world: World) -> None:
        client, writer, cared = await begun_with(world)
        asked = 0

        async def silent_for_long(is_question: bool) -> None:
            nonlocal asked
            asked += 1
            if cared.clock.now < begun + 300.0 and is_question:
                raise BookieUnavailableError("for a while")

        before_opening(monkeypatch, cared, silent_for_long)
        begun = cared.clock.now
        await unregister(world, writer.metadata.last_fragment.bookies[0])
        for _ in range(60):
            await cared.passes(10)
            await writer.append(b"more")
        assert not (await client.ledger_metadata(writer.ledger_id)).is_closed
        assert asked <= 8, "a few times in each grace, and not at each look"

    run_virtually(test, bookies=5)


def test_copies_go_on_beside_open_ledgers_whose_bookies_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer of a dead machine is waited for, in few of the places that a worker has."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client, loop = await world.client(), asyncio.get_running_loop()
        writers = [await filled(client) for _ in range(24)]
        done = await filled(client)
        await done.close()
        cared = await crew(world)
        asking, most = 0, 0

        async def dead(_is_question: bool) -> None:
            nonlocal asking, most
            asking, most = asking + 1, max(most, asking + 1)
            await asyncio.sleep(3.0)
            asking -= 1
            raise BookieUnavailableError("dead")

        before_opening(monkeypatch, cared, dead)
        name = done.metadata.last_fragment.bookies[0]
        every = [each.ledger_id for each in writers if name in all_names(each.metadata)]
        await lose(world, name)
        for _ in range(12):
            cared.clock.now += 10.0
            await cared.auditor.run_pass()
        assert {*every, done.ledger_id} == set(await marked(world)) and len(every) > 8
        work, begun = loop.create_task(cared.worker.run_pass()), loop.time()
        while done.ledger_id in await marked(world):
            await asyncio.sleep(0.1)
        assert loop.time() - begun < 1.0 and 0 < most <= REPAIR_ASKS_AT_ONCE
        work.cancel()

    run_virtually(test, bookies=5)


@pytest.mark.parametrize(
    "error", [MetadataUnavailableError, OutcomeUnknownError, asyncio.CancelledError]
)
def test_questions_that_an_outage_or_the_end_of_a_pass_cuts_off_leave_their_room(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long life of a worker: what is asked later would wait until the grace is over, and only
    then the time would begin."""

    async def test(world: World) -> None:
        client, writer, cared = await begun_with(world)
        ledger = await LedgerStore(client.store).read(writer.ledger_id)
        asked, answers = 0, False

        async def away(_is_question: bool) -> None:
            nonlocal asked
            asked += 1
            if not answers:
                raise error("away")

        before_opening(monkeypatch, cared, away)
        graces = cared.worker._graces
        for _ in range(3 * REPAIR_ASKS_AT_ONCE):
            with pytest.raises(error, match="away"):
                await graces.is_over(ledger, 300.0, ())
        answers = True
        assert not await graces.is_over(ledger, 300.0, ())
        assert asked == 3 * REPAIR_ASKS_AT_ONCE + 1, "it is asked at once"
        cared.clock.now += 301.0
        assert await graces.is_over(ledger, 300.0, ()), "its writer has added nothing since"

    run_virtually(test, bookies=5)


def test_writer_that_has_just_replaced_a_bookie_has_its_grace() -> None:
    """What it adds there is confirmed later."""

    async def test(world: World) -> None:
        client, writer, cared = await begun_with(world)
        first, second, third = writer.metadata.last_fragment.bookies
        await unregister(world, first)
        await cared.passes(250)
        stored = await LedgerStore(client.store).read(writer.ledger_id)
        other = min(set(world.bookies) - {first, second, third})
        more = Fragment(EntryId(20), (first, second, other))
        changed = stored.value.with_changes(fragments=(*stored.value.fragments, more))
        await client.context.ledgers.compare_and_set(changed, stored.version)
        await cared.passes(190)
        assert not (await client.ledger_metadata(writer.ledger_id)).is_closed
        await cared.passes(40)
        assert (await client.ledger_metadata(writer.ledger_id)).is_closed

    run_virtually(test, bookies=5)


def test_bookie_that_is_told_to_leave_is_left_though_it_serves_its_writer() -> None:
    """It cannot see that it leaves, so it takes what comes, and no time would ever end."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client, loop = await world.client(), asyncio.get_running_loop()
        writer = await filled(client)
        name = writer.metadata.last_fragment.bookies[0]
        await unregister(world, name)

        async def adds() -> None:
            with contextlib.suppress(LedgerError):
                while True:
                    await asyncio.sleep(0.5)
                    await writer.append(b"more")

        adding, begun = loop.create_task(adds()), loop.time()
        config = WorkerConfig(open_grace_s=5.0)
        await decommission(await world.client(), name, config, told=lambda _: None)
        assert loop.time() - begun >= 5.0, "it has its time"
        assert name not in all_names(await client.ledger_metadata(writer.ledger_id))
        assert await lacking(world, client, writer.ledger_id) == []
        await adding

    run_virtually(test, bookies=5)
