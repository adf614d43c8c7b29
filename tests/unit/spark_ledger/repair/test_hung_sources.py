"""A bookie whose disk hangs while it stays registered: it costs copies a time-out now and then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.repair import hung, merging
from spark_ledger.repair.copying import Copier
from spark_ledger.repair.hung import HungBookies
from spark_ledger.repair.nodes import mark
from spark_ledger.transport.base import ListedEntries, ReadChunk
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import closed, wipe
from tests.unit.spark_ledger.repair.test_copying import OK, Copying, Target
from tests.unit.spark_ledger.repair.world import crew, lacking, lose, marked
from tests.unit.virtual_time import run_in_virtual_time

SHORT_S = 5.0
"""For how long a bookie is taken for hung in these tests."""


class Hanging:
    """A bookie that does not answer reads, or does not say what it holds."""

    def __init__(
        self, client: LedgerClient, bookie_id: BookieId, patch: pytest.MonkeyPatch
    ) -> None:
        self.bookie_id = bookie_id
        self.hangs = {"read", "list"}
        self.asked: Counter[str] = Counter()
        self._transport = client.context.transport
        self._read, self._list = self._transport.read, self._transport.list_entries
        patch.setattr(self._transport, "read", self.read)
        patch.setattr(self._transport, "list_entries", self.list_entries)
        patch.setattr(hung, "CHECK_HUNG_S", SHORT_S)

    async def read(
        self, bookie_id: BookieId, ledger_id: LedgerId, first: EntryId, last: EntryId, **how: Any
    ) -> AsyncGenerator[ReadChunk, None]:
        if await self._lets_wait("read", bookie_id, how["timeout_s"]):
            yield ReadChunk(BookieStatus.TIMEOUT, None, first, "no answer")
            return
        async with aclosing(self._read(bookie_id, ledger_id, first, last, **how)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def list_entries(self, bookie_id: BookieId, *asked: Any, **how: Any) -> ListedEntries:
        if await self._lets_wait("list", bookie_id, how["timeout_s"]):
            return ListedEntries(BookieStatus.TIMEOUT, [])
        return await self._list(bookie_id, *asked, **how)

    async def _lets_wait(self, what: str, bookie_id: BookieId, timeout_s: float) -> bool:
        if bookie_id != self.bookie_id:
            return False
        self.asked[what] += 1
        if what in self.hangs:
            await asyncio.sleep(timeout_s)
        return what in self.hangs


async def copying_beside(world: World, patch: pytest.MonkeyPatch) -> tuple[Copying, Hanging]:
    """A copy whose first source hangs."""
    made = await Copying(world).prepare()
    context = made.client.context
    patch.setattr(context, "config", replace(context.config, read_timeout_s=1.0))
    return made, Hanging(made.client, made.others[0], patch)


def next_ledger(made: Copying) -> None:
    """Another one of the same worker, with the same entries and bookies."""
    former, context = made.copier, made.client.context
    made.copier = Copier(context, made.ledger_id, former._access, former._throttles, made.counts)


@pytest.mark.parametrize("knows_password", [True, False])
def test_source_that_hung_is_asked_first_no_more_by_any_ledger_of_the_worker_for_a_while(
    monkeypatch: pytest.MonkeyPatch, *, knows_password: bool
) -> None:
    async def test(world: World) -> None:
        made, hanging = await copying_beside(world, monkeypatch)
        monkeypatch.setattr(merging, "READ_CHUNK_BYTES_TARGET", 1)
        if not knows_password:
            made.copier._access = made.copier._access._replace(digest=None)
        for ledgers in (1, 2, 3):
            await made.to(Target([OK] * 20))
            assert made.counts["entries"] == 20 * ledgers
            # Without the password each ledger asks it once, to compare what another one brought.
            assert hanging.asked["read"] == (1 if knows_password else 1 + ledgers)
            next_ledger(made)
        hanging.hangs.clear()
        hanging.asked.clear()
        await asyncio.sleep(SHORT_S)
        await made.to(Target([OK] * 20))
        assert hanging.asked["read"] >= 20, "it is a source like others again"

    run_virtually(test, bookies=4)


def test_lost_bookie_that_answers_is_asked_before_one_that_hung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        made, hanging = await copying_beside(world, monkeypatch)
        world.bookies[made.others[1]].ledgers.pop(made.ledger_id)
        for _ in range(3):
            await made.to(Target([OK] * 20))
            next_ledger(made)
        assert hanging.asked["read"] == 1 and made.counts["entries"] == 60

    run_virtually(test, bookies=4)


def test_sources_that_are_busy_for_a_moment_are_waited_for_before_one_that_hung_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Repair of many ledgers is what makes them busy."""

    async def test(world: World) -> None:
        made, hanging = await copying_beside(world, monkeypatch)
        transport, refusals = made.client.context.transport, 0
        read = transport.read

        async def busy_first(
            bookie_id: BookieId, ledger_id: LedgerId, first: EntryId, last: EntryId, **how: Any
        ) -> AsyncGenerator[ReadChunk, None]:
            nonlocal refusals
            if bookie_id != hanging.bookie_id and refusals > 0:
                refusals -= 1
                yield ReadChunk(BookieStatus.TOO_MANY_REQUESTS, None, first, "busy")
                return
            async with aclosing(read(bookie_id, ledger_id, first, last, **how)) as chunks:
                async for chunk in chunks:
                    yield chunk

        monkeypatch.setattr(transport, "read", busy_first)
        for _ in range(3):
            await made.to(Target([OK] * 20))
            next_ledger(made)
            refusals = 2  # the other member, and the lost one
        assert hanging.asked["read"] == 1 and made.counts["entries"] == 60

    run_virtually(test, bookies=4)


@pytest.mark.parametrize("is_member", [True, False])
def test_entry_that_nobody_has_but_who_hung_is_copied_from_there(*, is_member: bool) -> None:
    """It comes last, and is never left out."""

    async def test(world: World) -> None:
        made = await Copying(world).prepare()
        holder = made.others[0] if is_member else made.strangers[0]
        copies = [world.bookies[name].ledgers.pop(made.ledger_id) for name in made.others]
        del world.bookies[made.lost].ledgers[made.ledger_id]
        world.bookies[holder].ledgers[made.ledger_id] = copies[0]
        made.copier._throttles.hung.note(holder)
        await made.to(Target([OK] * 20))
        assert made.counts["entries"] == 20

    run_virtually(test, bookies=6)


def test_stranger_that_hung_is_asked_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        made, _ = await copying_beside(world, monkeypatch)
        first, *_, holder = made.strangers
        hanging = Hanging(made.client, first, monkeypatch)
        copies = [world.bookies[name].ledgers.pop(made.ledger_id) for name in made.others]
        del world.bookies[made.lost].ledgers[made.ledger_id]
        world.bookies[holder].ledgers[made.ledger_id] = copies[0]
        for _ in range(3):
            await made.to(Target([OK] * 20))
            next_ledger(made)
        assert hanging.asked["read"] == 1 and made.counts["entries"] == 60

    run_virtually(test, bookies=6)


@pytest.mark.parametrize("hangs", ["read", "list"])
def test_member_that_hung_costs_the_holes_of_others_one_time_out(
    monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """One that says what it holds is asked, also while its reads hang: its marks need not stay."""

    async def test(world: World) -> None:
        client = await world.client()
        writers = [await closed(client, sizes=(3, 3, 2)) for _ in range(8)]
        for writer in writers:
            wipe(world, "b0", writer, 3, 7, 11, 15)
            await mark(client.store, writer.ledger_id, frozenset(), 2)
        cared = await crew(world, at_once=1)
        working = cared.worker._client
        context = working.context
        monkeypatch.setattr(context, "config", replace(context.config, read_timeout_s=1.0))
        hanging = Hanging(working, BookieId("b1"), monkeypatch)
        hanging.hangs = {hangs}
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cared.worker.run_pass()
        assert loop.time() - began < 3.0
        for writer in writers:
            assert await lacking(world, client, writer.ledger_id) == []
        assert len(await marked(world)) == (8 if hangs == "list" else 0)
        assert hanging.asked["list"] == (1 if hangs == "list" else 8)
        hanging.hangs.clear()
        await asyncio.sleep(SHORT_S)
        cared.clock.now += 60.0
        await cared.worker.run_pass()
        assert await marked(world) == {}

    run_virtually(test)


def test_member_that_has_just_sent_all_keeps_no_mark_though_it_did_not_say_what_it_holds() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client, sizes=(3, 3, 2))
        cared = await crew(world)
        lost, source, other = writer.metadata.last_fragment.bookies
        await lose(world, lost)
        await mark(client.store, writer.ledger_id, frozenset([lost]), 2)
        cared.worker._throttles.mute.note(source)
        cared.worker._throttles.hung.note(other)  # so the first one sends all
        await cared.worker.run_pass()
        assert await lacking(world, client, writer.ledger_id) == [] and await marked(world) == {}

    run_virtually(test, bookies=4)


def test_hung_bookies_come_last_and_are_forgotten_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        monkeypatch.setattr(hung, "CHECK_HUNG_S", SHORT_S)
        bookies = HungBookies()
        a, b, c, d = map(BookieId, "abcd")
        bookies.note(b)
        await asyncio.sleep(SHORT_S / 2)
        bookies.note(a)
        assert bookies.last([a, b, c, d]) == [c, d, a, b]
        await asyncio.sleep(SHORT_S / 2)
        assert bookies.last([a, b, c, d]) == [b, c, d, a] and b not in bookies
        bookies.note(c)
        assert list(bookies._until) == [a, c], "it does not grow with names of long ago"

    run_in_virtual_time(test())
