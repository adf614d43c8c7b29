"""Repair of a ledger of which a copy goes meanwhile: given back, or lost (rules G9 and R7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.repair.copying import Copier
from spark_ledger.repair.ledger import LedgerRepair
from spark_ledger.repair.nodes import mark
from spark_ledger.repair.plan import LaneCopy
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled, names
from tests.unit.spark_ledger.repair.world import crew, give_cookies, lacking, lose, marked


def test_bookie_that_gives_its_copy_back_meanwhile_is_not_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It changes the metadata before it deletes, so that repair asks it again (rule G9)."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        ledger_id = writer.ledger_id
        first, *_ = sorted(await names(client, ledger_id))
        await lose(world, first)
        await mark(client.store, ledger_id, frozenset([BookieId(first)]), 2)
        copy, gone = Copier.copy, list[BookieId]()

        async def copy_and_give_back(
            copier: Copier, lanes: Sequence[LaneCopy], target: BookieId
        ) -> None:
            await copy(copier, lanes, target)
            if not gone:
                gone.append(target)
                path = ledger_path(ledger_id)
                node = await client.store.get(path)
                await client.store.put(path, node.value, node.version)
                del world.bookies[target].ledgers[ledger_id]

        monkeypatch.setattr(Copier, "copy", copy_and_give_back)
        cared = await crew(world)
        await cared.worker.run_pass()
        assert gone[0] not in await names(client, ledger_id)
        assert await marked(world) == {ledger_id: 2}, "a later turn copies anew"
        await cared.passes(60)
        assert await marked(world) == {}
        assert await lacking(world, client, ledger_id) == []

    run_virtually(test, bookies=5)


def test_hole_that_is_found_while_a_worker_is_at_the_ledger_keeps_the_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker may have asked that member before it lost its entries (rule R7)."""

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        await mark(client.store, writer.ledger_id, frozenset(), 2)
        refill, found = LedgerRepair._refill_others, [writer.ledger_id]

        async def refill_before_a_hole_is_found(*args: Any) -> None:
            await refill(*args)
            while found:
                await mark(client.store, found.pop(), frozenset(), 2)

        monkeypatch.setattr(LedgerRepair, "_refill_others", refill_before_a_hole_is_found)
        cared = await crew(world)
        await cared.worker.run_pass()
        assert await marked(world) == {writer.ledger_id: 2}
        await cared.worker.run_pass()
        assert await marked(world) == {}

    run_virtually(test, bookies=4)
