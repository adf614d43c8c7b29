"""The keeper deletes the former ledgers of packed commits, and packs of dropped ones (rule T25)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from spark_ledger.errors import RetryableError
from spark_ledger.keeper.deletions import LedgerDeletions
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.ledgers import OpenLedger
from spark_ledger.stream.packs.model import Pack
from spark_ledger.stream.packs.optimizer import Optimizer
from spark_ledger.stream.packs.store import read_packs
from spark_ledger.stream.retention.live_names import LiveNames
from tests.unit.spark_ledger.client.world import World, run
from tests.unit.spark_ledger.keeper.test_streams import closed_commits, elected, ledgers
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes, read, unsettled


def test_former_ledgers_go_at_the_next_sweep_and_the_pack_with_its_commits() -> None:
    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 5)
        reader = await StreamCatalog(await world.client()).open("s")
        assert await read(reader) == [0, 1, 2, 3, 4]
        clock = Clock()
        cared = await elected(world, clock)
        (packed,) = await stream.optimizer.run_all(entries_min=1)
        assert packed.pack is not None
        await passes(cared, clock, 180)
        assert await ledgers(world) == {packed.pack.ledger_id}
        fresh = await StreamCatalog(await world.client()).open("s")
        assert await read(reader) == await read(fresh) == [0, 1, 2, 3, 4]
        await closed_commits(world, stream, 1)
        await stream.retention.truncate((5,))
        await passes(cared, clock, 240)
        assert packed.pack.ledger_id not in await ledgers(world)
        assert await read(fresh) == [5] and len(await ledgers(world)) == 1

    run(test)


def test_ledger_that_an_audit_is_about_to_delete_becomes_no_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The audit has seen that nothing names it, and the list says that it deletes it (rule K9)."""
    write, delete, audits = Optimizer._write, LedgerDeletions.delete, list[asyncio.Task[int]]()

    async def late(deletions: LedgerDeletions, *words: Any) -> bool:
        await asyncio.sleep(0.3)
        return await delete(deletions, *words)

    async def test(world: World) -> None:
        stream = await new_stream(await world.client())
        await closed_commits(world, stream, 5)
        cared = await elected(world, Clock())
        audited = await StreamCatalog(cared._client).open("s")
        deletions = LedgerDeletions(cared._client, lambda: cared._election.check, 1e6)

        async def listed(optimizer: Optimizer, *words: Any) -> tuple[Pack, OpenLedger]:
            pack, ledger = await write(optimizer, *words)
            reclaimer = audited.retention.reclaimer(deletions, LiveNames())
            audits.append(asyncio.create_task(reclaimer.delete_unlisted([pack.ledger_id], 0)))
            while pack.ledger_id not in (await audited.refresh()).dropping:
                await asyncio.sleep(0.01)
            return pack, ledger

        monkeypatch.setattr(LedgerDeletions, "delete", late)
        monkeypatch.setattr(Optimizer, "_write", listed)
        with suppress(RetryableError):
            await stream.optimizer.run_all(entries_min=1)
        assert await audits[0] == 1
        packs = (await read_packs(stream._nodes)).value.packs
        assert {pack.ledger_id for pack in packs} <= await ledgers(world)
        fresh = await StreamCatalog(await world.client()).open("s")
        assert await read(fresh) == [0, 1, 2, 3, 4]

    run(test)


def test_copies_that_a_broken_connection_has_cost_are_gone_while_their_maker_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A keeper waits for the end of the maker, which may be a keeper itself, for months."""
    name = Optimizer._name

    async def test(world: World) -> None:
        client = await world.client()
        stream = await new_stream(client)
        await closed_commits(world, stream, 5)
        breaks = 3

        async def broken(*words: Any) -> bool:
            nonlocal breaks
            breaks -= 1
            if breaks >= 0:
                client.store.reconnect()  # type: ignore[attr-defined]
            return await name(*words)

        monkeypatch.setattr(Optimizer, "_name", broken)
        (packed,) = await stream.optimizer.run_all(entries_min=1)
        assert breaks == -1 and packed.pack is not None
        assert await unsettled(world) == ([], [])
        former = {
            segment.ledger_id for each in await stream.commits(0, 5) for segment in each.segments
        }
        assert await ledgers(world) == {*former, packed.pack.ledger_id}
        assert await read(stream) == list(range(5))

    run(test)
