"""Connecting: what was opened on the way is closed, whatever ends the attempt."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.client import ledger_client
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import LedgerClosedError, MetadataUnavailableError
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome


@pytest.mark.parametrize("ends_by", ["cancellation", "timeout", "error"])
@pytest.mark.parametrize("at", range(1, 6))
def test_connect_that_does_not_succeed_closes_the_session(
    at: int, ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata store stands still, or fails, at the n-th operation."""

    async def main() -> None:
        operations = 0

        def interpose(_name: str, _path: str) -> Fault:
            nonlocal operations
            operations += 1
            if operations < at:
                return Fault()
            return Fault(Outcome.UNAVAILABLE if ends_by == "error" else Outcome.NORMAL, 0.05)

        store = MemoryMetadataStore(interpose=interpose)

        async def open_store(_uri: str, **_options: object) -> MemoryMetadataStore:
            return store

        monkeypatch.setattr(ledger_client, "open_store", open_store)
        task = asyncio.create_task(LedgerClient.connect("zk://h/x"))
        while operations < at:
            await asyncio.sleep(0)
        if ends_by == "cancellation":
            task.cancel()
        if ends_by == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await task
        else:
            with pytest.raises((asyncio.CancelledError, MetadataUnavailableError)):
                await task
        store.interpose = None
        with pytest.raises(LedgerClosedError):
            await store.get("x")
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "and nothing goes on behind"

    asyncio.run(main())
