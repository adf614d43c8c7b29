"""Marks that went too early, or were lost: they are made again while the bookie is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.unsettled import id_path
from spark_ledger.repair.nodes import STATE_PATH, AuditState, forget_without_cookie, mark_root
from spark_ledger.repair.plan import all_names
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import closed
from tests.unit.spark_ledger.repair.world import AUDIT, Crew, crew, give_cookies, lose, marked


async def looks(cared: Crew, seconds: float) -> None:
    """Of the auditor alone."""
    for _ in range(round(seconds / 10)):
        cared.clock.now += 10.0
        await cared.auditor.run_pass()


async def short_life(world: World, cared: Crew, name: BookieId) -> None:
    """A lost bookie starts, and ends again, while a worker looks and no auditor does."""
    world.revive(name)
    await world.register(name)
    cared.clock.now += 1.0
    await cared.worker.run_pass()
    await lose(world, name)
    assert await marked(world) == {}


def within_audits(cared: Crew, act: Callable[[Collection[BookieId]], Awaitable[None]]) -> None:
    """Act as the auditor has looked at all ledgers because of these, and has not written that
    down."""
    audit = cared.auditor.audit

    async def slow(lost: Collection[BookieId], known: Collection[BookieId] | None) -> int:
        found = await audit(lost, known)
        await act(lost)
        return found

    cared.auditor.audit = slow  # type: ignore[method-assign, assignment]


async def looks_with_short_life(world: World, cared: Crew, seconds: float, name: BookieId) -> None:
    """Of the auditor alone; within its first audit because of a lost bookie that has its life."""
    lives = [name]

    async def act(lost: Collection[BookieId]) -> None:
        if lives and lives[0] in lost:
            await short_life(world, cared, lives.pop())

    within_audits(cared, act)
    await looks(cared, seconds)
    assert not lives


async def audit_state(client: LedgerClient) -> AuditState:
    """What the auditor has written down."""
    state = await read_node(client.store, AuditState, STATE_PATH)
    assert state is not None
    return state.value


def test_mark_that_was_lost_is_made_again_within_a_day() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client)
        cared = await crew(world)
        cared.auditor._config = replace(AUDIT, audit_interval_s=1000.0)
        await lose(world, writer.metadata.last_fragment.bookies[0])
        await looks(cared, 120)
        assert await marked(world) == {writer.ledger_id: 2}
        await client.store.delete(id_path(mark_root(2), writer.ledger_id))
        await looks(cared, 500)
        assert await marked(world) == {}
        await looks(cared, 600)
        assert await marked(world) == {writer.ledger_id: 2}

    run_virtually(test, bookies=6)


def test_ledger_is_marked_by_all_that_are_lost_also_those_of_before() -> None:
    """Else it would wait behind others that have more copies left."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client)
        cared = await crew(world)
        first, second, *_ = writer.metadata.last_fragment.bookies
        await lose(world, first)
        await looks(cared, 120)
        await lose(world, second)
        await looks(cared, 120)
        assert await client.store.get(id_path(mark_root(1), writer.ledger_id))

    run_virtually(test, bookies=6)


@pytest.mark.parametrize("is_at_it", [False, True])
def test_bookie_that_only_a_worker_saw_is_lost_anew_at_once(is_at_it: bool) -> None:
    """Also while the auditor still looks at all ledgers because of it, for minutes."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await closed(client)
        cared = await crew(world)
        name = BookieId(writer.metadata.last_fragment.bookies[0])
        await lose(world, name)
        if is_at_it:
            await looks_with_short_life(world, cared, 120, name)
        else:
            await looks(cared, 120)
            await short_life(world, cared, name)
            state = await audit_state(client)
            assert state.audited == () and not state.gone_s
            await looks(cared, 10)
        assert await marked(world) == {writer.ledger_id: 2}
        assert (await audit_state(client)).audited == (name,)
        await cared.passes(10)
        assert name not in (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
        assert await marked(world) == {}

    run_virtually(test, bookies=6)


@pytest.mark.parametrize("is_at_it", [False, True])
def test_bookie_without_cookie_that_only_a_worker_saw_is_lost_anew(is_at_it: bool) -> None:
    """A ZooKeeper of before its format does not know it: nothing else says that it was there."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        cared = await crew(world)
        name = BookieId(writer.metadata.last_fragment.bookies[0])
        await looks(cared, 10)
        await lose(world, name)
        if is_at_it:
            await looks_with_short_life(world, cared, 200, name)
        else:
            await looks(cared, 200)
            await short_life(world, cared, name)
            await looks(cared, 120)
        assert await marked(world) == {writer.ledger_id: 2}
        await cared.passes(10)
        assert await marked(world) == {}
        assert name not in (await audit_state(client)).known_here_only

    run_virtually(test, bookies=6)


@pytest.mark.parametrize("is_known", [True, False])
def test_bookie_that_a_worker_saw_come_back_costs_no_audit_of_the_others(is_known: bool) -> None:
    """It is back for good while all ledgers are looked at, for minutes. Nor does what was forgotten
    meanwhile come back (rule R10)."""

    async def test(world: World) -> None:
        if is_known:
            await give_cookies(world)
        client = await world.client()
        writer = await closed(client)
        cared = await crew(world)
        first, second = map(BookieId, writer.metadata.last_fragment.bookies[:2])
        other = BookieId(max(set(world.bookies).difference(all_names(writer.metadata))))
        await looks(cared, 10)
        await lose(world, first)
        await lose(world, second)
        audits = 0

        async def back(_lost: Collection[BookieId]) -> None:
            nonlocal audits
            audits += 1
            if audits == 1:
                world.revive(second)
                await world.register(second)
                cared.clock.now += 1.0
                await cared.worker.run_pass()
                if not is_known:  # taken out meanwhile
                    await lose(world, other)
                    await forget_without_cookie(client.store, other)

        within_audits(cared, back)
        await looks(cared, 120)
        state = await audit_state(client)
        assert audits == 1 and state.audit_time_ms
        assert second not in state.gone_s and other not in state.known_here_only
        assert state.audited == ((first,) if is_known else ())
        await lose(world, second)
        await looks(cared, 130)
        assert audits == 2, "it is newly lost"

    run_virtually(test, bookies=7)
