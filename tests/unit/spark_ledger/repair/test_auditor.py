"""What the auditor remembers of bookies that go and come again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.metadata.cookies import cookie_path, leaving_path
from spark_ledger.metadata.json_nodes import read_node
from spark_ledger.metadata.ledgers import LEDGERS_PATH
from spark_ledger.metadata.unsettled import id_path, page_numbers
from spark_ledger.repair.auditor import Auditor
from spark_ledger.repair.nodes import FAILED_PATH, STATE_PATH, AuditState, mark, mark_root
from spark_ledger.types import BookieId, BookieInfo, LedgerId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.keeper.world import Clock
from tests.unit.spark_ledger.repair.test_worker import names
from tests.unit.spark_ledger.repair.world import AUDIT, crew, give_cookies, lacking, lose, marked


@pytest.mark.leaves_open("bookies that count as used", reason="some do, so that they come last")
def test_bookie_that_came_back_is_lost_like_any_other_the_next_time() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared, name = await world.client(), await crew(world), "b0"
        client.context.use([BookieId(f"b{n}") for n in range(1, 6)], +1)  # b0 is chosen first
        for _ in range(3):
            writer = await client.create_ledger()
            await writer.append(b"x")
            await writer.close()
            assert name in writer.metadata.last_fragment.bookies
            await lose(world, name)
            await cared.passes(130)
            ledger = await client.ledger_metadata(writer.ledger_id)
            assert name not in ledger.last_fragment.bookies
            assert await lacking(world, client, writer.ledger_id) == []
            assert await marked(world) == {}
            world.revive(name)
            await world.register(name)
            await client.context.directory.refresh()
            await client.context.suspects.answers(BookieId(name), ask_now=True)
            await cared.passes(10)

    run_virtually(test, bookies=6)


@pytest.mark.parametrize("failing", ["audit", "_count"])
def test_auditor_whose_passes_all_fail_sees_who_is_lost_all_the_same(failing: str) -> None:
    """It looks at the bookies first. What it saw counts, also for the auditor that follows."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        config = replace(AUDIT, lost_bookie_delay_s=5.0, pass_s=0.5)
        auditor = Auditor(client, config)
        tried: list[float] = []

        async def away(*_arguments: object) -> NoReturn:
            tried.append(asyncio.get_running_loop().time())
            raise MetadataUnavailableError("away")

        setattr(auditor, failing, away)
        stop = asyncio.Event()
        running = asyncio.ensure_future(auditor.run(stop, lambda: True))
        await lose(world, "b0")
        await asyncio.sleep(4.0)
        await lose(world, "b1")
        await asyncio.sleep(4.0)
        stop.set()
        await running
        state = await read_node(client.store, AuditState, STATE_PATH)
        assert state is not None and len(tried) >= 4
        assert state.value.gone_s["b0"] >= 5.0 and state.value.gone_s["b1"] >= 3.0
        assert state.value.audited == (() if failing == "audit" else ("b0",))

    run_virtually(test, bookies=5)


def test_all_ledgers_are_looked_at_once_a_day_although_nobody_is_lost() -> None:
    """One may name a bookie that cannot come back: it is not registered, and its cookie is gone."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"x")
        await writer.close()
        name = writer.metadata.last_fragment.bookies[0]
        await lose(world, name)
        cared = await crew(world)
        cared.auditor._config = replace(AUDIT, audit_interval_s=100.0)
        for _ in range(2):
            for _ in range(10):
                await cared.auditor.run_pass()
                cared.clock.now += 10.0
            assert await marked(world) == {}, "all was looked at less than a day ago"
            cared.clock.now += 1.0
            assert await cared.auditor.run_pass() == (frozenset(), "")
            assert await marked(world) == {writer.ledger_id: 2}
            await client.store.delete(id_path(mark_root(2), writer.ledger_id))
            cared.clock.now += 10.0

    run_virtually(test, bookies=5)


def test_pass_that_fails_keeps_what_is_known_of_the_bookies_before() -> None:
    """Workers and decommissions go by it: those that were marked stay lost. One whose cookie is
    gone counts no more."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared = await world.client(), await crew(world)
        await lose(world, "b0")
        await lose(world, "b1")
        await cared.passes(50)
        await client.store.delete("bookies/cookies/b1")
        await cared.passes(70)

        async def away(*_arguments: object) -> NoReturn:
            raise MetadataUnavailableError("away")

        cared.auditor.audit = away  # type: ignore[method-assign, assignment]
        before = await read_node(client.store, AuditState, STATE_PATH)
        assert before is not None and before.value.audited == ("b0",)
        await lose(world, "b2")
        failed = 0
        for _ in range(12):
            cared.clock.now += 10.0
            try:
                await cared.auditor.run_pass()
            except MetadataUnavailableError:
                failed += 1
        after = await read_node(client.store, AuditState, STATE_PATH)
        assert after is not None and failed > 1
        assert after.value.audited == ("b0",)
        assert after.value.audit_time_ms == before.value.audit_time_ms > 0
        assert set(after.value.gone_s) == {"b0", "b2"}

    run_virtually(test, bookies=6)


def test_audit_of_each_day_is_made_though_no_auditor_lives_for_a_day() -> None:
    """The next one goes on from when the one before looked, and a clock that is put back, or that
    was years ahead, puts it off by an interval at most."""

    async def test(world: World) -> None:
        day, hour = 86_400.0, 3600.0
        wall, audits = 1e9, list[float]()

        async def pass_of_another() -> None:
            auditor = Auditor(await world.client(), AUDIT, clock=Clock(), wall=lambda: wall)
            audit = auditor.audit

            async def noted(*given: Any) -> int:
                audits.append(wall)
                return await audit(*given)

            auditor.audit = noted  # type: ignore[method-assign, assignment]
            await auditor.run_pass()

        for _ in range(51):
            await pass_of_another()
            wall += hour
        assert audits == [1e9 + 25 * hour, 1e9 + 50 * hour], "one more than a day later"
        wall += 1000 * day
        await pass_of_another()
        wall -= 1000 * day
        audits.clear()
        for _ in range(26):
            await pass_of_another()
            wall += hour
        assert audits == [wall - hour]

    run_virtually(test, bookies=3)


@pytest.mark.leaves_open("bookies that count as used", reason="some do, so that they come last")
@pytest.mark.parametrize("auditor_dies", [False, True])
def test_bookie_without_cookie_that_goes_is_lost_like_any_other(auditor_dies: bool) -> None:
    """It was formatted behind the backup from which ZooKeeper was restored, and ran on."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared = await world.client(), await crew(world)
        name = BookieId("b0")
        await client.store.delete(cookie_path(name))
        client.context.use([BookieId(f"b{number}") for number in range(1, 5)], +1)
        writer = await client.create_ledger()
        await writer.append(b"x")
        await writer.close()
        assert name in await names(client, writer.ledger_id)
        await cared.passes(20)
        await lose(world, name)
        if auditor_dies:  # it ran beside that bookie
            cared = await crew(world)
        await cared.passes(AUDIT.lost_bookie_delay_s - 10)
        assert await marked(world) == {} and name in await names(client, writer.ledger_id)
        await cared.passes(40)
        assert await lacking(world, client, writer.ledger_id) == []
        assert name not in await names(client, writer.ledger_id)
        state = await read_node(client.store, AuditState, STATE_PATH)
        assert state is not None and not state.value.gone_s and not state.value.without_cookie

    run_virtually(test, bookies=5)


def test_bookie_without_cookie_that_comes_back_is_not_lost() -> None:
    """Its session had ended, and it registers itself again."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared = await world.client(), await crew(world)
        name = BookieId("b0")
        await client.store.delete(cookie_path(name))
        await cared.passes(20)
        for _ in range(2):
            await world._registries[name].deregister()
            await cared.passes(AUDIT.lost_bookie_delay_s - 20)
            await world._registries[name].register(BookieInfo(name, f"memory:{name}"))
            await cared.passes(20)
        assert not (await cared.auditor.run_pass()).lost
        state = await read_node(client.store, AuditState, STATE_PATH)
        assert state is not None and state.value.audited == () and not state.value.gone_s

    run_virtually(test, bookies=5)


def test_bookie_without_cookie_is_remembered_though_each_audit_fails() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared = await world.client(), await crew(world)

        async def away(*_arguments: object) -> NoReturn:
            raise MetadataUnavailableError("away")

        async def fail(seconds: float) -> None:
            for _ in range(round(seconds / 10)):
                cared.clock.now += 10.0
                with pytest.raises(MetadataUnavailableError):
                    await cared.auditor.run_pass()

        cared.auditor.audit = away  # type: ignore[method-assign, assignment]
        await lose(world, "b1")
        await cared.passes(AUDIT.lost_bookie_delay_s)
        await client.store.delete(cookie_path(BookieId("b0")))
        await fail(20)
        await lose(world, "b0")
        await fail(40)
        state = await read_node(client.store, AuditState, STATE_PATH)
        assert state is not None and state.value.gone_s["b0"] == 30.0

    run_virtually(test, bookies=5)


def test_bookie_that_was_decommissioned_and_stops_is_not_counted_as_gone() -> None:
    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared = await world.client(), await crew(world)
        await client.store.create(leaving_path(BookieId("b0")), b"")
        await client.store.delete(cookie_path(BookieId("b0")))
        await cared.passes(20)
        await lose(world, "b0")
        await cared.passes(20)
        state = await read_node(client.store, AuditState, STATE_PATH)
        assert state is not None and not state.value.gone_s and not state.value.without_cookie

    run_virtually(test, bookies=5)


def test_pages_of_what_was_deleted_and_repaired_go() -> None:
    """Else each look at what is marked asks for all that ever were, and each audit for all ids."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client, cared = await world.client(), await crew(world)
        store, ids = client.store, [LedgerId(number * 10_000 + 1) for number in range(4)]
        for root in (LEDGERS_PATH, mark_root(1), FAILED_PATH):
            for each in ids:
                await store.create(id_path(root, each), b"")
                await store.delete(id_path(root, each))
        await cared.auditor.run_pass()
        assert await page_numbers(store, mark_root(1)) == [3]
        assert await page_numbers(store, FAILED_PATH) == [3]
        await mark(store, ids[1], frozenset(), 1)
        assert await marked(world) == {ids[1]: 1}
        await cared.auditor.audit(())
        assert await page_numbers(store, LEDGERS_PATH) == [3]

    run_virtually(test)
