"""Holes are found and filled although no bookie is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import ConflictError, MetadataUnavailableError
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.metadata.json_nodes import encode_node, read_node, write_node
from spark_ledger.metadata.ledger_ids import raise_counter
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.metadata.unsettled import Page, newest_pages
from spark_ledger.repair.checker import Checker, CheckerConfig
from spark_ledger.repair.closed import ClosedCheck
from spark_ledger.repair.nodes import (
    CHECK_PATH,
    CLOSED_PATH,
    STATE_PATH,
    CheckState,
    begin_check,
    mark,
)
from spark_ledger.repair.status import look
from spark_ledger.transport.base import ListedEntries
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.world import contents, crew, lacking, marked

WEEK_S = 7 * 24 * 3600.0


class Checking:
    """A checker, on a clock that a test moves."""

    def __init__(self, client: LedgerClient) -> None:
        self.now = 1e9
        self.checker = Checker(client, CheckerConfig(members_per_s=1e6), clock=lambda: self.now)

    async def check(self) -> bool:
        """The first call only writes down when the cluster began."""
        await self.checker.run_pass()
        self.now += WEEK_S
        return await self.checker.run_pass()


async def closed(
    client: LedgerClient, *, count: int = 20, sizes: tuple[int, int, int] = (4, 3, 2)
) -> LedgerWriter:
    ensemble_size, write_quorum, ack_quorum = sizes
    writer = await client.create_ledger(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
    )
    for number in range(count):
        await writer.append(b"%d" % number)
    await writer.close()
    return writer


def wipe(world: World, name: str, writer: LedgerWriter, *entry_ids: int) -> None:
    ledgers = world.bookies[BookieId(name)].ledgers
    if not entry_ids:
        del ledgers[LedgerId(writer.ledger_id)]
    for entry_id in entry_ids:
        ledgers[LedgerId(writer.ledger_id)].entries.pop(entry_id, None)


@pytest.mark.parametrize("entry_ids", [(), (0,), (7,), (19,), (3, 4, 5, 6)])
def test_entries_that_a_bookie_lacks_are_found_and_filled(entry_ids: tuple[int, ...]) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer, _whole = await closed(client), await closed(client)
        name = next(
            bookie_id
            for bookie_id, bookie in sorted(world.bookies.items())
            if set(entry_ids) & set(bookie.ledgers[LedgerId(writer.ledger_id)].entries)
            or not entry_ids
        )
        wipe(world, name, writer, *entry_ids)
        assert await lacking(world, client, writer.ledger_id)
        checking = Checking(client)
        assert await checking.check()
        assert await marked(world) == {writer.ledger_id: 2}, "the other one is whole"
        found = (await look(client.store)).check
        assert (found.ledgers, found.with_holes, found.begun_ms) == (2, 1, 0)
        await (await crew(world)).worker.run_pass()
        assert await lacking(world, client, writer.ledger_id) == []
        assert await marked(world) == {}
        assert len(await contents(client, writer.ledger_id)) == 20

    run_virtually(test, bookies=4)


def test_check_is_made_once_in_an_interval() -> None:
    async def test(world: World) -> None:
        checking = Checking(await world.client())
        assert not await checking.checker.run_pass(), "it has just begun"
        assert await checking.check()
        checking.now += WEEK_S - 1
        assert not await checking.checker.run_pass()
        checking.now += 2
        assert await checking.checker.run_pass()

    run_virtually(test)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_clock_that_was_years_ahead_puts_no_check_off_for_longer_than_an_interval(
    at_the_end: bool,
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        await closed(client)
        checking = Checking(client)
        if at_the_end:
            assert not await checking.checker.run_pass()
        right, checking.now = checking.now, checking.now + 200 * WEEK_S
        assert await checking.checker.run_pass() is at_the_end
        checking.now = right + 60.0
        assert not await checking.checker.run_pass()
        checking.now += WEEK_S
        assert await checking.checker.run_pass()

    run_virtually(test, bookies=5)


def test_next_keeper_goes_on_where_the_last_one_stopped() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        first, second = await closed(client, count=3), await closed(client, count=3)
        for writer in (first, second):
            wipe(world, "b0", writer)
        state = CheckState(begun_ms=5, after=first.ledger_id, ledgers=1)
        await client.store.create(CHECK_PATH, encode_node(state))
        assert await Checking(client).checker.run_pass()
        assert set(await marked(world)) == {second.ledger_id}
        assert (await look(client.store)).check.ledgers == 2

    run_virtually(test, bookies=4)


def test_open_fragments_and_silent_bookies_are_not_marked() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=4)
        await writer.append(b"0")  # each bookie has it
        wipe(world, "b0", writer)
        await closed(client)
        world.kill("b1")
        assert await Checking(client).check()
        assert await marked(world) == {}

    run_virtually(test, bookies=4)


def test_bookie_that_hangs_is_not_waited_for_at_each_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writers = [await closed(client) for _ in range(8)]
        wipe(world, "b0", writers[-1])
        checking, asked = Checking(client), 0
        checking.checker._timeout_s = 1.0
        monkeypatch.setattr("spark_ledger.repair.checker.CHECK_HUNG_S", 5.0)
        ask = client.context.transport.list_entries

        async def list_entries(bookie_id: BookieId, *more: Any, **named: Any) -> ListedEntries:
            nonlocal asked
            if bookie_id != "b1":
                return await ask(bookie_id, *more, **named)
            asked += 1
            await asyncio.sleep(named["timeout_s"])
            return ListedEntries(BookieStatus.TIMEOUT, [])

        monkeypatch.setattr(client.context.transport, "list_entries", list_entries)
        assert await checking.check()
        assert asked == 1 and set(await marked(world)) == {writers[-1].ledger_id}
        assert (await checking.checker.check(writers[0].ledger_id)).silent
        await asyncio.sleep(5.0)
        assert (await checking.checker.check(writers[0].ledger_id)).silent
        assert asked == 2, "it may answer by then"

    run_virtually(test, bookies=4)


@pytest.mark.parametrize(("last_s", "is_hung"), [(0.1, False), (1.0, True)])
def test_bookie_whose_pages_are_slow_hangs_only_if_one_of_them_takes_the_whole_time(
    monkeypatch: pytest.MonkeyPatch, last_s: float, is_hung: bool
) -> None:
    """It has answered in between: an error in the end is no silence."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        checking, asked = Checking(client), 0
        checking.checker._timeout_s = 1.0
        ask = client.context.transport.list_entries

        async def list_entries(
            bookie_id: BookieId, ledger_id: LedgerId, first: EntryId, **named: Any
        ) -> ListedEntries:
            nonlocal asked
            page = await ask(bookie_id, ledger_id, first, **named)
            if bookie_id != "b1":
                return page
            asked += 1
            following = EntryId(first + 5)
            await asyncio.sleep(0.5 if following < 20 else last_s)
            if following >= 20:
                return ListedEntries(BookieStatus.IO_ERROR, [])
            ranges = [(a, min(b, EntryId(first + 4))) for a, b in page.ranges if a < following]
            return ListedEntries(BookieStatus.OK, ranges, following)

        monkeypatch.setattr(client.context.transport, "list_entries", list_entries)
        for pages in (4, 4 if is_hung else 8):
            assert (await checking.checker.check(writer.ledger_id)).silent
            assert asked == pages

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_check_goes_on_behind_the_ledger_where_the_keeper_before_was_on_any_page(done: int) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writers = [await closed(client) for _ in range(2)]
        await raise_counter(client.store, 25_000)
        later = await world.client()
        writers += [await closed(later) for _ in range(2)]
        ids = [writer.ledger_id for writer in writers]
        assert ids[1] < 10_000 < 25_000 <= ids[2]
        for writer in writers:
            wipe(world, writer.metadata.last_fragment.bookies[0], writer)
        state = CheckState(begun_ms=1, after=[0, *ids][done], ledgers=done, with_holes=7)
        await write_node(client.store, CHECK_PATH, state, None)
        checking = Checking(client)
        assert await checking.checker.run_pass()
        assert set(await marked(world)) == set(ids[done:])
        found = (await look(client.store)).check
        assert (found.begun_ms, found.after, found.ledgers) == (0, 0, 4)
        assert found.with_holes == 7 + 4 - done
        checking.now += WEEK_S
        assert await checking.checker.run_pass()
        found = (await look(client.store)).check
        assert (found.ledgers, found.with_holes) == (4, 4), "the next one counts anew"

    run_virtually(test, bookies=4)


# -- ledgers that were closed ----------------------------------------------------------------------


class Closing(Checking):
    """The check of what was closed, on the connection of a keeper."""

    def __init__(self, client: LedgerClient) -> None:
        super().__init__(client)
        self.closed = ClosedCheck(client, self.checker, CheckerConfig(members_per_s=1e6))


def test_ledger_that_was_closed_before_a_look_that_failed_is_checked_by_the_next() -> None:
    """Whatever the look failed at: else its holes would stay for a week."""

    async def test(world: World) -> None:
        client = await world.client()
        checking = Closing(await world.client())
        assert await checking.closed.run_pass() == 0
        store = checking.closed._store
        assert isinstance(store, MemoryMetadataStore)
        for at in (STATE_PATH, CLOSED_PATH):
            wipe(world, "b0", await closed(client))

            def interpose(_name: str, path: str, at: str = at) -> Fault:
                return Fault(Outcome.UNAVAILABLE if path == at else Outcome.NORMAL)

            store.interpose = interpose
            with pytest.raises(MetadataUnavailableError):
                await checking.closed.run_pass()
            store.interpose = None
            assert await checking.closed.run_pass() + len(await marked(world)) >= 1
            await (await crew(world)).worker.run_pass()
            assert await marked(world) == {}

    run_virtually(test, bookies=4)


def test_hole_in_a_ledger_is_found_soon_after_it_was_closed() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        old = await closed(client)
        wipe(world, "b0", old)
        checking = Closing(await world.client())
        assert await checking.closed.run_pass() == 1, "of a new cluster all are looked at"
        await (await crew(world)).worker.run_pass()
        writer = await client.create_ledger()
        for number in range(20):
            await writer.append(b"%d" % number)
        wipe(world, writer.metadata.fragments[0].bookies[0], writer, 3)
        short = await closed(client)
        wipe(world, "b2", short)
        assert await checking.closed.run_pass() == 1
        assert await marked(world) == {short.ledger_id: 2}, "the other one is open"
        await writer.close()
        assert await checking.closed.run_pass() == 1
        assert await checking.closed.run_pass() == 0, "once"
        assert await marked(world) == {short.ledger_id: 2, writer.ledger_id: 2}
        await (await crew(world)).worker.run_pass()
        assert await marked(world) == {}
        for ledger_id in (writer.ledger_id, short.ledger_id):
            assert await lacking(world, client, ledger_id) == []

    run_virtually(test, bookies=4)


def test_next_keeper_checks_what_was_closed_between_the_two() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        first = Closing(await world.client())
        await first.closed.run_pass()
        writer = await client.create_ledger()
        await writer.append(b"a")
        assert await first.closed.run_pass() == 0
        await writer.close()
        wipe(world, writer.metadata.fragments[0].bookies[0], writer)
        await closed(client)
        assert await Closing(await world.client()).closed.run_pass() == 1
        assert await marked(world) == {writer.ledger_id: 2}

    run_virtually(test, bookies=4)


def test_next_keeper_checks_all_that_was_closed_between_the_two_however_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound is for the first one of all, which finds the ledgers of years."""
    monkeypatch.setattr("spark_ledger.repair.closed.CLOSED_AT_FIRST_MAX", 1)

    async def test(world: World) -> None:
        client = await world.client()
        old = [await closed(client) for _ in range(3)]
        first = Closing(await world.client())
        for writer in old:
            wipe(world, writer.metadata.fragments[0].bookies[0], writer)
        assert await first.closed.run_pass() == 1
        new = [await closed(client) for _ in range(3)]
        for writer in new:
            wipe(world, writer.metadata.fragments[0].bookies[0], writer)
        assert await Closing(await world.client()).closed.run_pass() == 3
        assert set(await marked(world)) == {writer.ledger_id for writer in (old[2], *new)}

    run_virtually(test, bookies=4)


def test_bookie_that_does_not_answer_is_asked_again_what_it_has_of_a_closed_ledger() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        checking = Closing(await world.client())
        await checking.closed.run_pass()
        writer = await closed(client)
        wipe(world, "b1", writer)
        world.kill("b1")
        assert await checking.closed.run_pass() == 0
        world.revive("b1")
        assert await checking.closed.run_pass() == 1

    run_virtually(test, bookies=4)


def test_mark_of_a_hole_stays_until_the_member_has_answered() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        wipe(world, "b1", writer)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 2)
        world.kill("b1")
        cared = await crew(world)
        await cared.worker.run_pass()
        assert await marked(world) == {writer.ledger_id: 2}
        ((_, failed),) = (await look(client.store)).failed
        assert "b1 may lack entries" in failed.reason
        world.revive("b1")
        cared.clock.now += 3600.0
        await cared.worker.run_pass()
        assert await marked(world) == {}
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=4)


def test_ledger_that_is_made_between_the_two_lists_is_checked_once_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        checking = Closing(await world.client())
        await checking.closed.run_pass()
        made: list[LedgerWriter] = []

        async def slow(store: MetadataStore, root: str, count: int) -> list[Page]:
            made.append(await client.create_ledger())
            await made[0].append(b"a")
            return await newest_pages(store, root, count)

        with monkeypatch.context() as patch:
            patch.setattr("spark_ledger.repair.closed.newest_pages", slow)
            await checking.closed.run_pass()
        await made[0].close()
        wipe(world, made[0].metadata.fragments[0].bookies[0], made[0])
        assert await checking.closed.run_pass() == 1

    run_virtually(test, bookies=4)


def test_check_of_a_restore_that_begins_behind_the_write_of_a_page_is_not_gone_over() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        for _ in range(3):
            await closed(client)
        under_way = CheckState(begun_ms=1, ended_ms=1)
        await write_node(client.store, CHECK_PATH, under_way, None)
        checking, begun = await world.client(), list[int]()
        real = checking.store.put

        async def put(path: str, data: bytes, version: int) -> int:
            written = await real(path, data, version)
            if path == CHECK_PATH and not begun:
                begun.append(written)
                await begin_check(client.store, 5)
            return written

        checking.store.put = put  # type: ignore[method-assign]
        with pytest.raises(ConflictError):
            await Checker(checking, CheckerConfig(members_per_s=1e6)).run_pass()
        known = await read_node(client.store, CheckState, CHECK_PATH)
        assert known is not None and known.value.restored and known.value.begun_ms == 5

    run_virtually(test, bookies=4)
