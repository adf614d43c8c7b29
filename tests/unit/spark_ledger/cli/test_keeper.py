"""ledger keeper run: it ends well when it is told to, and says so when it cannot go on."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import UnauthorizedError
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.transport.memory import MemoryTransport
from tests.unit.spark_ledger.cli.conftest import Run

COMMAND = ("keeper", "run", "--metadata", "zk://h:2181/ledgers")


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(_uri: str) -> LedgerClient:
        return await LedgerClient.over(MemoryMetadataStore(), MemoryTransport({}))

    monkeypatch.setattr(LedgerClient, "connect", connect)


def test_keeper_that_cannot_go_on_ends_with_its_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_keeper: Keeper, _stop: asyncio.Event) -> None:
        raise UnauthorizedError("the credentials do not allow it")

    monkeypatch.setattr(Keeper, "run", refused)
    ended = run(*COMMAND)
    assert ended.status == 1
    assert "the credentials do not allow it" in ended.err


def test_keeper_that_is_told_to_end_ends_well(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits(_keeper: Keeper, stop: asyncio.Event) -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        assert stop.is_set()

    monkeypatch.setattr(Keeper, "run", waits)
    assert run(*COMMAND).status == 0
