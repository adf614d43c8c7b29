"""A ledger whose repair fails: which bookies are tried, and which reason is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from spark_ledger.errors import NoSuchEntryError, NotEnoughBookiesError
from spark_ledger.repair.copying import Copier, TargetFailedError
from spark_ledger.repair.nodes import mark
from spark_ledger.repair.plan import LaneCopy
from spark_ledger.repair.status import look
from spark_ledger.types import BookieId
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_worker import filled, names
from tests.unit.spark_ledger.repair.world import crew, give_cookies, lacking, lose

pytestmark = pytest.mark.leaves_open(
    "bookies that count as used", reason="one counts, so that it is tried first or last"
)


def test_bookie_that_refuses_its_copies_is_tried_once_and_then_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that answers, and counts as no suspect."""
    copy, asked = Copier.copy, Counter[BookieId]()

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        members = sorted(await names(client, writer.ledger_id))
        refuses, takes = sorted(set(world.bookies) - set(members))
        cared = await crew(world)
        cared.worker._client.context.use([BookieId(takes)], +1)  # the other one is chosen first

        async def refused(copier: Copier, lanes: Sequence[LaneCopy], target: BookieId) -> None:
            asked[target] += 1
            if target == refuses:
                raise TargetFailedError(f"bookie {target} takes nothing")
            await copy(copier, lanes, target)

        monkeypatch.setattr(Copier, "copy", refused)
        await lose(world, members[0])
        await mark(client.store, writer.ledger_id, frozenset([BookieId(members[0])]), 2)
        await cared.worker.run_pass()
        assert await names(client, writer.ledger_id) == {takes, *members[1:]}
        assert asked[BookieId(refuses)] == 1
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("lost_first", [True, False])
def test_entry_that_nobody_holds_is_the_reason_whatever_else_fails(
    lost_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what an operator has to know; the rest may mend itself."""
    reasons = [NoSuchEntryError("entry 3 is nowhere"), NotEnoughBookiesError("nobody takes it")]
    if not lost_first:
        reasons.reverse()

    async def test(world: World) -> None:
        await give_cookies(world)
        client = await world.client()
        writer = await filled(client)
        gone, stays, *_ = writer.metadata.last_fragment.bookies
        await lose(world, gone)
        await writer.append(b"in a second fragment")
        await writer.close()
        metadata = await client.ledger_metadata(writer.ledger_id)
        second = metadata.fragments[1].first_entry

        async def fails(_copier: Copier, lanes: Sequence[LaneCopy], _target: BookieId) -> None:
            raise reasons[lanes[0].first >= second]

        monkeypatch.setattr(Copier, "copy", fails)
        await lose(world, stays)
        await mark(client.store, writer.ledger_id, frozenset([stays]), 2)
        await (await crew(world)).worker.run_pass()
        ((ledger_id, failed),) = (await look(client.store)).failed
        assert ledger_id == writer.ledger_id and failed.reason == "entry 3 is nowhere"

    run_virtually(test, bookies=7)
