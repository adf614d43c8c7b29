"""Connecting, and closing: what was opened on the way is closed, and nothing goes on behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.client import ledger_client
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import (
    ConfigurationError,
    LedgerClosedError,
    LedgerError,
    MetadataUnavailableError,
)
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.transport import claimed
from tests.unit.spark_ledger.client.test_callers_that_leave import hold
from tests.unit.spark_ledger.client.world import World, run_virtually


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


def test_connect_gives_the_store_the_times_that_were_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        asked: list[object] = []

        async def open_store(uri: str, **options: object) -> MemoryMetadataStore:
            asked.extend([uri, options])
            return MemoryMetadataStore()

        monkeypatch.setattr(ledger_client, "open_store", open_store)
        options = {"session_timeout_s": 7.0, "metadata_timeout_s": 3.0, "add_timeout_s": 4.0}
        client = await LedgerClient.connect("zk://h/x", **options)
        assert asked == [
            "zk://h/x",
            {"session_timeout_s": 7.0, "connect_timeout_s": 3.0, "operation_timeout_s": 3.0},
        ]
        assert client.context.config.add_timeout_s == 4.0
        await client.close()

    asyncio.run(main())


def test_connect_where_there_can_be_no_transport_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a forked child. It went on following the bookies, and logged that it could not."""

    async def main() -> None:
        store = MemoryMetadataStore()

        async def open_store(_uri: str, **_options: object) -> MemoryMetadataStore:
            return store

        monkeypatch.setattr(ledger_client, "open_store", open_store)
        monkeypatch.setattr(claimed, "_used_in_process", 1)
        with pytest.raises(ConfigurationError, match="does not survive a fork"):
            await LedgerClient.connect("zk://h/x")
        with pytest.raises(LedgerClosedError):
            await store.get("x")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def silent(*_args: object, **_options: object) -> Any:
    await asyncio.sleep(1000.0)


def test_closed_client_leaves_nothing_behind() -> None:
    """Not its view of the bookies, nor questions to silent ones, nor ledgers left to be closed."""

    async def test(world: World) -> None:
        before, kept = asyncio.all_tasks(), len(world.tree.children("owners"))
        client = await world.client()
        left = await client.create_ledger()
        await left.append(b"x")
        client.close_later(left.ledger_id)
        writer = await client.create_ledger()
        hold(world)
        append = writer.append_nowait(b"in flight")
        client.context.transport.describe = silent  # type: ignore[method-assign]
        for name in world.bookies:
            client.context.suspect(name)
        creating = asyncio.ensure_future(client.create_ledger())
        await asyncio.sleep(0.1)
        assert not creating.done(), "it asks bookies that were suspected whether they are back"
        closed, ended_before = client.context.transport.close, list[bool]()

        async def close() -> None:
            ended_before.append(append.done())
            await closed()

        client.context.transport.close = close  # type: ignore[method-assign]
        await client.close()
        assert ended_before == [True], "no writer looks for replacements of all its bookies"
        ended = await asyncio.wait_for(
            asyncio.gather(append, creating, return_exceptions=True), 0.01
        )
        assert all(isinstance(error, LedgerError) for error in ended)
        assert asyncio.all_tasks() == before
        assert len(world.tree.children("owners")) == kept, "the keeper is told at once"
        await client.close()

    run_virtually(test)


@pytest.mark.parametrize("ends_by", ["cancellation", "error"])
def test_close_that_does_not_succeed_ends_the_session_all_the_same(
    ends_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the keeper takes what was left open for the ledgers of a living process."""

    async def test(world: World) -> None:
        kept = len(world.tree.children("owners"))
        client = await world.client()
        writer = await client.create_ledger()
        await writer.append(b"x")
        assert len(world.tree.children("owners")) == kept + 1

        async def fails() -> None:
            raise OSError("out of memory")

        ends = silent if ends_by == "cancellation" else fails
        monkeypatch.setattr(client.context.transport, "close", ends)
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError if ends_by == "cancellation" else OSError):
            await closing
        assert len(world.tree.children("owners")) == kept
        monkeypatch.undo()

    run_virtually(test)
