"""A long stream that was never sealed is sealed bit by bit: no step begins after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import sealer
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    numbers,
    root_of,
    small_manifests,
    table,
)
from tests.unit.virtual_time import run_in_virtual_time


@pytest.mark.parametrize(("step_s", "leaves"), [(0.3, 4), (0.6, 2), (5.0, 1), (0.0, 9)])
def test_sealing_begins_no_step_once_its_time_is_up(
    step_s: float, leaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that was begun is ended, and the next sealing goes on behind it."""
    small_manifests(monkeypatch, fan_out=100)
    monkeypatch.setattr(sealer, "SEAL_EVERY", 1000)
    monkeypatch.setattr(sealer, "LEAVES_PER_SEAL_MAX", 1)
    monkeypatch.setattr(sealer, "SEAL_BUDGET_S", 1.0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for number in range(19):
            await stream.append(table(number))
        transaction: Any = ledgers.store.transaction

        async def slow(operations: Sequence[Operation]) -> None:
            await asyncio.sleep(step_s)
            await transaction(operations)

        ledgers.store.transaction = slow  # type: ignore[method-assign]
        for round_ in range(1, 4):
            await stream._committer.sealer.seal(19)
            assert root_of(ledgers).sealed == min(2 * leaves * round_, 18)
        assert await numbers(stream.read()) == list(range(19))
        await stream.close()

    run_in_virtual_time(scenario())
