"""What the check of closed ledgers leaves to the next keeper: what it has not seen whole."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.metadata.ledger_ids import raise_counter
from spark_ledger.metadata.unsettled import IDS_PER_PAGE
from spark_ledger.repair import closed as closed_check
from spark_ledger.repair.auditor import Auditor
from spark_ledger.repair.checker import Checked, Checker, CheckerConfig
from spark_ledger.repair.closed import ClosedCheck
from spark_ledger.types import BookieId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import closed, wipe
from tests.unit.spark_ledger.repair.world import marked


async def keeper(world: World) -> ClosedCheck:
    client, config = await world.client(), CheckerConfig(members_per_s=1e6)
    return ClosedCheck(client, Checker(client, config), config)


def test_ledger_of_which_a_member_was_silent_is_checked_by_the_next_keeper() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        first = await closed(client)
        later = await closed(client)
        name = first.metadata.last_fragment.bookies[0]
        world.kill(name)
        assert await (await keeper(world)).run_pass() == 0
        world.revive(name)
        wipe(world, name, first, 0, 1, 2, 3, 4)
        assert await (await keeper(world)).run_pass() == 1
        assert set(await marked(world)) == {first.ledger_id}
        assert later.ledger_id > first.ledger_id

    run_virtually(test, bookies=4)


def test_ledger_in_a_gap_that_came_while_this_keeper_worked_is_checked_by_the_next() -> None:
    """Its client took a block of ids first, and used it last."""

    async def test(world: World) -> None:
        slow = await world.client()
        await closed(slow)
        cared = await keeper(world)
        await cared.run_pass()
        above = await closed(await world.client())
        await cared.run_pass()
        late = await closed(slow)
        assert late.ledger_id < above.ledger_id
        wipe(world, late.metadata.last_fragment.bookies[0], late, 0, 1, 2, 3, 4)
        assert await (await keeper(world)).run_pass() == 1
        assert set(await marked(world)) == {late.ledger_id}

    run_virtually(test, bookies=4)


def test_ledger_that_was_open_when_a_keeper_ended_is_checked_by_the_next() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(ensemble_size=4, write_quorum=3, ack_quorum=2)
        for number in range(10):
            await writer.append(b"%d" % number)
        await closed(client)
        cared, stop = await keeper(world), asyncio.Event()
        assert await cared.run_pass() == 0
        stop.set()
        await cared.run(stop, lambda: True)
        await writer.close()
        wipe(world, BookieId(writer.metadata.last_fragment.bookies[0]), writer)
        assert await (await keeper(world)).run_pass() == 1

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("first_id", [1, 10_000, 20_000])
def test_first_id_of_a_block_that_is_given_out_last_is_checked_by_the_next(first_id: int) -> None:
    """It is the first one of a page, perhaps, and nothing was there below it."""

    async def test(world: World) -> None:
        slow = await world.client()
        await raise_counter(slow.store, first_id)
        late = await slow.context.ledgers.new_ledger_id()
        assert late == first_id
        await closed(await world.client())
        await (await keeper(world)).run_pass()
        slow.context.ledgers.new_ledger_id = lambda: _given(late)  # type: ignore[method-assign]
        writer = await closed(slow)
        wipe(world, writer.metadata.last_fragment.bookies[0], writer, 0, 1, 2, 3, 4)
        assert await (await keeper(world)).run_pass() == 1
        assert set(await marked(world)) == {writer.ledger_id}

    run_virtually(test, bookies=4)


async def _given(ledger_id: LedgerId) -> LedgerId:
    return ledger_id


def test_of_many_gaps_the_newest_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        monkeypatch.setattr(closed_check, "CLOSED_GAPS_MAX", 1)
        clients = [await world.client() for _ in range(3)]
        for client in clients:
            await closed(client)
        await (await keeper(world)).run_pass()
        writers = [await closed(client) for client in clients[:2]]
        for writer in writers:
            wipe(world, writer.metadata.last_fragment.bookies[0], writer, 0, 1, 2, 3, 4)
        assert await (await keeper(world)).run_pass() == 1
        assert set(await marked(world)) == {writers[1].ledger_id}

    run_virtually(test, bookies=4)


def test_ledgers_of_silent_members_that_are_due_again_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One bookie that is away for a week must not let them grow for ever."""

    async def test(world: World) -> None:
        monkeypatch.setattr(closed_check, "CLOSED_SILENT_MAX", 2)
        client, cared = await world.client(), await keeper(world)
        await cared.run_pass()
        for _ in range(4):
            await closed(client)
        world.kill("b0")
        asked: list[int] = []
        check = cared._checker.check

        async def counted(ledger_id: LedgerId, lost: frozenset[BookieId]) -> Checked:
            asked.append(ledger_id)
            return await check(ledger_id, lost)

        monkeypatch.setattr(cared._checker, "check", counted)
        for count in (4, 2, 2):
            await cared.run_pass()
            assert len(asked) == count
            asked.clear()

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("looks_before", [1, 2, 4])
def test_page_that_goes_makes_no_old_ledger_a_new_one(
    monkeypatch: pytest.MonkeyPatch, looks_before: int
) -> None:
    """An older page is listed in its place, with ten thousand ledgers of long ago."""
    monkeypatch.setattr(closed_check, "CLOSED_PAGES", 2)

    async def test(world: World) -> None:
        cared, pages = await keeper(world), list[list[LedgerId]]()
        asked: list[LedgerId] = []
        check = cared._checker.check

        async def counted(ledger_id: LedgerId, lost: frozenset[BookieId]) -> Checked:
            asked.append(ledger_id)
            return await check(ledger_id, lost)

        monkeypatch.setattr(cared._checker, "check", counted)
        for number in range(4):
            client = await world.client()
            await raise_counter(client.store, number * IDS_PER_PAGE)
            pages.append([(await closed(client)).ledger_id for _ in range(2)])
            if number >= 4 - looks_before:
                await cared.run_pass()
        asked.clear()
        for ledger_id in (*pages[2], *pages[3][:1]):
            await client.context.ledgers.delete(ledger_id)
        await Auditor(client).audit([])
        await cared.run_pass()
        assert set(cared._seen[max(cared._seen)]) == {pages[3][1]} and len(cared._seen) == 2
        assert asked == [], "they were there at each look"
        late = await closed(client)
        await cared.run_pass()
        assert asked == [late.ledger_id]

    run_virtually(test, bookies=4)
