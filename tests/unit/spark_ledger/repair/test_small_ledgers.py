"""What a worker asks for one small ledger: nothing twice, and not one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.errors import NoSuchLedgerError
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore
from spark_ledger.repair.nodes import FAILED_PATH, mark
from spark_ledger.repair.status import look
from spark_ledger.transport.base import ListedEntries
from spark_ledger.types import BookieId, Fragment, LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import closed, wipe
from tests.unit.spark_ledger.repair.test_locks import lost_one
from tests.unit.spark_ledger.repair.world import crew, lacking, marked


def test_ledger_costs_no_sync_and_no_write_that_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        await lost_one(world)
        cared = await crew(world)
        store = cared.worker._client.store
        assert isinstance(store, MemoryMetadataStore)
        asked: list[tuple[str, str]] = []

        def interpose(name: str, path: str) -> Fault:
            asked.append((name, path))
            return Fault()

        store.interpose = interpose
        real, synced = store.get_latest, list[str]()

        async def get_latest(path: str) -> Versioned[bytes]:
            synced.append(path)
            return await real(path)

        monkeypatch.setattr(store, "get_latest", get_latest)
        await cared.worker.run_pass()
        assert not any(path.startswith(("ledgers/", "repair/marked/")) for path in synced)
        store.interpose = None
        assert await marked(world) == {}
        writes = [(n, p) for n, p in asked if n in ("create", "put", "delete", "transaction")]
        assert not any(path.startswith(FAILED_PATH) for _, path in writes)

    run_virtually(test, bookies=5)


def test_members_are_asked_side_by_side_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        ledger_id, _ = await lost_one(world)
        cared = await crew(world)
        transport = cared.worker._client.context.transport
        real, at_once, most = transport.list_entries, 0, 0

        async def slow(*given: Any, **options: Any) -> ListedEntries:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(1.0)
            at_once -= 1
            return await real(*given, **options)

        monkeypatch.setattr(transport, "list_entries", slow)
        await cared.worker.run_pass()
        assert most == 2, "those that were not lost"
        assert await lacking(world, cared.worker._client, ledger_id) == []

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("is_missing", [True, False])
def test_metadata_of_a_server_that_lags_behind_the_mark_are_read_again(
    is_missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke between the two, and another server answers."""

    async def test(world: World) -> None:
        ledger_id, other = await lost_one(world)
        cared = await crew(world)
        store, ledgers = cared.worker._client.store, cared.worker._ledgers
        assert isinstance(store, MemoryMetadataStore)
        real = ledgers.read

        async def lagging(asked: LedgerId) -> Versioned[LedgerMetadata]:
            store._connections += 1
            found = await real(asked)
            if is_missing:
                raise NoSuchLedgerError(f"no ledger {asked}")
            (fragment,) = found.value.fragments
            others = Fragment(fragment.first_entry, (*fragment.bookies[1:], BookieId("b9")))
            old = found.value.with_changes(fragments=(others,))
            return Versioned(old, found.version)

        monkeypatch.setattr(ledgers, "read", lagging)
        before = (await cared.worker._client.ledger_metadata(ledger_id)).fragments
        await cared.worker.run_pass()
        after = (await cared.worker._client.ledger_metadata(ledger_id)).fragments
        assert before != after and await marked(world) == {}
        assert await lacking(world, cared.worker._client, ledger_id) == []
        await other.close()

    run_virtually(test, bookies=5)


def test_mark_of_a_server_that_lags_behind_the_lock_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        ledger_id, other = await lost_one(world)
        await mark(other, ledger_id, frozenset(), 2)
        cared = await crew(world)
        store = cared.worker._client.store
        assert isinstance(store, MemoryMetadataStore)
        real = store.get

        async def lagging(path: str) -> Versioned[bytes]:
            found = await real(path)
            if not path.startswith("repair/marked/"):
                return found
            store._connections += 1
            return Versioned(found.value, found.version - 1)

        monkeypatch.setattr(store, "get", lagging)
        await cared.worker.run_pass()
        assert await marked(world) == {}, "its mark was taken off in the newest version"

    run_virtually(test, bookies=5)


def test_entry_that_nobody_brings_keeps_the_mark_of_a_hole() -> None:
    """The members are asked side by side, and the error of one is the ledger's."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await closed(client)
        for name in world.bookies:
            wipe(world, name, writer, 3)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset(), 0)
        await (await crew(world)).worker.run_pass()
        assert set(await marked(world)) == {writer.ledger_id}
        ((_, failed),) = (await look(client.store)).failed
        assert "entry 3 is on no bookie" in failed.reason

    run_virtually(test, bookies=4)
