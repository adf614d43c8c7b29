"""What an audit says at its end, whichever of its replies is lost (rule K9)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import count

import pytest

from spark_ledger.errors import LedgerError, OutcomeUnknownError
from spark_ledger.keeper.nodes import AUDIT_PATH, AuditState, read_audit
from spark_ledger.metadata.base import Create, Operation, Put
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.catalog import StreamCatalog
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.keeper.test_audit import audited, elected, left
from tests.unit.spark_ledger.keeper.world import Clock, new_stream, passes


async def state_of_an_audit(world: World, lost: int) -> tuple[AuditState, bool]:
    """What is written down behind one that deletes two ledgers, if the reply to this write of its
    state is lost; and whether there was one."""
    client = await world.client()
    await new_stream(client)
    await left(world, 1)
    await left(world, 2)
    await StreamCatalog(client).delete("s")
    clock = Clock()
    cared = await elected(world, clock)
    writes, send = count(), cared._store.transaction
    was_lost = False

    async def loses(operations: Sequence[Operation]) -> None:
        nonlocal was_lost
        await send(operations)
        changes = [each for each in operations if isinstance(each, Put | Create)]
        if any(each.path == AUDIT_PATH for each in changes) and next(writes) == lost:
            was_lost = True
            raise OutcomeUnknownError("the reply was lost")

    cared._store.transaction = loses  # type: ignore[method-assign]
    state = None
    while state is None or not state.value.ended_ms:
        with contextlib.suppress(LedgerError):
            await passes(cared, clock, 10)
        state = await read_audit(MemoryMetadataStore(world.tree))
    await passes(cared, clock, 10)  # it may not know yet that it is over
    return await audited(cared), was_lost


@pytest.mark.parametrize("steps", [1, 100], ids=["a step in each pass", "all in one pass"])
def test_audit_counts_what_it_has_deleted_once_whichever_reply_is_lost(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ledger.keeper.audit.AUDIT_STEPS_PER_PASS", steps)
    found: list[tuple[int, int]] = []
    is_one_more = True
    while is_one_more:

        async def test(world: World) -> None:
            nonlocal is_one_more
            state, is_one_more = await state_of_an_audit(world, len(found))
            found.append((state.deleted, state.last.deleted))

        run_virtually(test)
    assert len(found) > 3 and set(found) == {(2, 2)}, found
