"""Ledgers that nobody will name are removed, and nobody waits for long if that gets no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from spark_ledger.errors import ConflictError
from spark_ledger.limits.stream import LIST_REMOVAL_S
from spark_ledger.metadata.base import Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer, sealer
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import SCHEMA, loose, root_of, small_manifests, table
from tests.unit.virtual_time import run_in_virtual_time


class NoAnswer(FakeLedgers):
    """Ledgers whose deletion is asked for, and never answered."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def delete_ledger(self, ledger_id: int, checks: Sequence[Operation] = ()) -> None:
        self.asked.append(ledger_id)
        await asyncio.Event().wait()


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_commit_that_is_refused_does_not_wait_for_the_removal_of_its_list(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)
    caplog.set_level("INFO")

    async def scenario() -> None:
        ledgers = NoAnswer()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await stream.commit_segments([loose()], sink_id="q", transaction_id=9)
        began_s = now_s()
        with pytest.raises(ConflictError, match="already committed transaction 9"):
            async with asyncio.timeout(10 * LIST_REMOVAL_S):
                await stream.commit_segments([loose()] * 9, sink_id="q", transaction_id=8)
        assert now_s() - began_s < 1.1 * LIST_REMOVAL_S
        (left,) = ledgers.asked
        assert f"ledgers {left}, which nothing names, are left to a keeper: no" in caplog.text

    run_in_virtual_time(scenario())


def test_sealing_that_is_refused_does_not_wait_for_the_removal_of_its_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=4)
    monkeypatch.setattr(sealer, "SEAL_EVERY", 1000)

    async def scenario() -> None:
        ledgers = NoAnswer()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for number in range(5):
            await stream.append(table(number))
        transaction: Any = ledgers.store.transaction
        refused: list[int] = []

        async def raced(operations: Sequence[Operation]) -> None:
            if not refused and any(each.path.endswith("/manifests") for each in operations):
                refused.append(len(operations))
                raise ConflictError("another was first")
            await transaction(operations)

        ledgers.store.transaction = raced  # type: ignore[method-assign]
        began_s = now_s()
        async with asyncio.timeout(10 * LIST_REMOVAL_S):
            await stream._committer.sealer.seal(5)
        assert now_s() - began_s < 1.1 * LIST_REMOVAL_S
        assert len(refused) == len(ledgers.asked) == 1 and root_of(ledgers).sealed == 0
        await stream._committer.sealer.seal(5)
        assert root_of(ledgers).sealed == 4
        await stream.close()

    run_in_virtual_time(scenario())
