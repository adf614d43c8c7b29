"""What an operator gives to commands that let a bookie leave reaches what they do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from spark_ledger.cli import leaving
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.limits import MIB
from spark_ledger.repair import decommission
from spark_ledger.repair.decommission import Left
from spark_ledger.repair.worker import WorkerConfig
from spark_ledger.types import BookieId


def test_bookie_leaves_at_the_rate_that_its_operator_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[WorkerConfig] = []

    async def leave(
        _client: LedgerClient, _bookie: BookieId, config: WorkerConfig, *, told: object
    ) -> Left:
        found.append(config)
        return Left(runs=False)

    @asynccontextmanager
    async def connected() -> AsyncGenerator[None]:
        yield

    async def connect(_uri: str) -> AbstractAsyncContextManager[None]:
        return connected()

    monkeypatch.setattr(LedgerClient, "connect", connect)
    monkeypatch.setattr(decommission, "decommission", leave)
    monkeypatch.setattr(decommission, "drain", leave)
    for act in (leaving.take_out, leaving.empty):
        act("zk://h:1/l", "b1", open_grace_s=5.0, bytes_per_s=3 * MIB, told=lambda _: None)
    wanted = WorkerConfig(bytes_per_s=3 * MIB, open_grace_s=5.0, despite_losses=True)
    assert found == [wanted, wanted]
