"""Who is lost, what an auditor writes down of it, and when too many are gone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from spark_ledger.metadata.cookies import leaving_path
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.repair.auditor import Auditor
from spark_ledger.repair.lost import losses
from spark_ledger.repair.nodes import COUNTS_PATH, STATE_PATH, AuditState, RepairCounts, mark
from spark_ledger.types import BookieId, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled, names
from tests.unit.spark_ledger.repair.world import (
    Crew,
    crew,
    give_cookies,
    lacking,
    lose,
    marked,
)

DELAY_S = 100.0


def ids(letters: str) -> frozenset[BookieId]:
    return frozenset(map(BookieId, letters))


@pytest.mark.parametrize(
    ("gone", "leaving", "settled", "lost", "is_stopped"),
    [
        ({}, "", "", "", False),
        ({"a": 99.9}, "", "", "", False),
        ({"a": 100.0}, "", "", "a", False),
        ({"a": 200.0, "b": 5.0}, "", "", "a", False),
        ({"a": 200.0, "b": 200.0, "c": 1.0}, "", "", "ab", False),  # half of six is not too many
        ({"a": 200.0, "b": 200.0, "c": 200.0, "d": 1.0}, "", "", "", True),
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, "f", "", "f", True),  # an operator's word counts
        ({}, "abcd", "", "abcd", False),  # and is no loss, however many leave
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}, "abcd", "", "abcd", False),
        ({"a": 200.0, "b": 200.0, "c": 200.0, "d": 200.0}, "", "abc", "d", False),
        ({"a": 200.0, "b": 200.0, "c": 200.0, "d": 200.0}, "", "ab", "cd", False),  # two of four
        ({"a": 200.0, "b": 200.0, "c": 200.0, "d": 200.0, "e": 1.0}, "", "ab", "", True),
        (dict.fromkeys("abcdef", 200.0), "", "abcdef", "", False),  # nothing names them any more
        ({"x": 200.0}, "", "", "", False),  # the cluster never had it
    ],
)
def test_lost_is_who_is_gone_for_the_delay_or_leaves_while_not_more_than_half_are_gone(
    gone: dict[str, float], leaving: str, settled: str, lost: str, is_stopped: bool
) -> None:
    found = losses(
        ids("abcdef"),
        {BookieId(name): seconds for name, seconds in gone.items()},
        ids(leaving),
        ids(settled),
        delay_s=DELAY_S,
        share_max=0.5,
    )
    assert found.lost == ids(lost)
    assert bool(found.stopped) is is_stopped


def test_reason_to_stop_counts_and_names_those_that_are_gone() -> None:
    gone = {BookieId(name): 1.0 for name in "cab"}
    found = losses(ids("abcd"), gone, ids(""), ids(""), delay_s=DELAY_S, share_max=0.5)
    assert "3 of 4 bookies are gone at once (a, b, c), more than 50%" in found.stopped


async def state_of(world: World) -> AuditState:
    found = await read_node((await world.client()).store, AuditState, STATE_PATH)
    assert found is not None
    return found.value


async def looks(cared: Crew, seconds: float) -> None:
    """Of the auditor alone, every ten seconds."""
    for _ in range(round(seconds / 10)):
        cared.clock.now += 10.0
        await cared.auditor.run_pass()


def test_all_ledgers_are_looked_at_once_for_each_bookie_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not again at each pass, whoever was lost before."""
    audit, audits = Auditor.audit, Counter[frozenset[BookieId]]()

    async def counted(auditor: Auditor, lost: frozenset[BookieId], *more: Any) -> int:
        audits[lost] += 1
        return await audit(auditor, lost, *more)

    monkeypatch.setattr(Auditor, "audit", counted)

    async def test(world: World) -> None:
        await give_cookies(world)
        cared = await crew(world)
        first, second, third = map(BookieId, ("b0", "b1", "b2"))
        await lose(world, first)
        await looks(cared, 150)
        assert (await state_of(world)).lost == {first}
        await lose(world, second)
        await looks(cared, 150)
        assert (await state_of(world)).lost == {first, second}
        store = (await world.client()).store
        await store.create(leaving_path(third), b"")
        await looks(cared, 50)
        state = await state_of(world)
        assert state.lost == {first, second, third} and state.audit_time_ms > 0
        assert set(state.gone_s) == {first, second}
        assert list(audits.values()) == [1, 1, 1]
        counts = await read_node(store, RepairCounts, COUNTS_PATH)
        assert counts is not None and counts.value.lost == 3
        when = state.audit_time_ms
        await looks(cared, 50)
        assert (await state_of(world)).audit_time_ms == when, "it stands until the next one"
        await store.delete(leaving_path(third))
        await looks(cared, 10)
        assert (await state_of(world)).lost == {first, second}

    run_virtually(test, bookies=7)


def test_marks_are_counted_by_what_is_left() -> None:
    async def test(world: World) -> None:
        client, cared = await world.client(), await crew(world)
        for ledger_id, copies in enumerate((0, 1, 1, 2, 2, 2, 3, 9, 9, 9), 1):
            await mark(client.store, LedgerId(ledger_id), frozenset(), copies)
        await looks(cared, 10)
        found = await read_node(client.store, RepairCounts, COUNTS_PATH)
        assert found is not None
        assert (found.value.marked, found.value.marked_at_one, found.value.lost) == (10, 3, 0)
        for ledger_id in (1, 2):
            await client.store.delete(f"repair/marked/{ledger_id - 1}/00/0000/L{ledger_id:04d}")
        await looks(cared, 10)
        found = await read_node(client.store, RepairCounts, COUNTS_PATH)
        assert found is not None and (found.value.marked, found.value.marked_at_one) == (8, 1)

    run_virtually(test)


def test_bookie_that_is_registered_belongs_to_the_cluster_before_its_cookie_is_seen() -> None:
    """Else all of its ledgers would name one that cannot come back."""

    async def test(world: World) -> None:
        client, cared = await world.client(), await crew(world)
        writer = await filled(client)
        await writer.close()
        before = await client.ledger_metadata(writer.ledger_id)
        await client.store.create(leaving_path(BookieId("b9")), b"")  # has all looked at
        await looks(cared, 20)
        assert await marked(world) == {}
        await cared.worker.run_pass()
        assert await client.ledger_metadata(writer.ledger_id) == before

    run_virtually(test, bookies=4)


def test_repair_that_stopped_says_why_and_goes_on_once_some_are_back() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared = await world.client(), await crew(world)
        writer = await filled(client)
        await writer.close()
        first, *others = sorted(await names(client, writer.ledger_id))
        away = [name for name in sorted(world.bookies) if name not in (first, *others)][:2]
        await mark(client.store, writer.ledger_id, frozenset([BookieId(first)]), 2)
        for name in (first, *away, others[0]):
            await lose(world, name)
        await cared.passes(30)
        state = await state_of(world)
        assert "4 of 7" in state.stopped and await marked(world) == {writer.ledger_id: 2}
        assert first in await names(client, writer.ledger_id), "nothing is copied until then"
        for name in (*away, others[0]):
            world.revive(name)
            await world.register(name)
        await client.context.directory.refresh(all_again=True)
        await cared.passes(130)
        assert (await state_of(world)).stopped == ""
        assert first not in await names(client, writer.ledger_id)
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=7)
