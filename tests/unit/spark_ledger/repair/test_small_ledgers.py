"""What a worker asks for one small ledger: nothing twice, and not one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_ledger.errors import NoSuchLedgerError
from spark_ledger.metadata.json_nodes import write_node
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore
from spark_ledger.metadata.repair_locks import LOCKS_PATH, lock_path
from spark_ledger.metadata.unsettled import id_path
from spark_ledger.repair.copying import Copier
from spark_ledger.repair.nodes import FAILED_PATH, FailedRepair, mark
from spark_ledger.repair.plan import all_names
from spark_ledger.repair.status import look
from spark_ledger.transport.base import ListedEntries
from spark_ledger.types import (
    BookieId,
    BookieInfo,
    BookieState,
    BookieStatus,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Versioned,
)
from tests.unit.spark_ledger.client.world import World, run_virtually
from tests.unit.spark_ledger.repair.test_checker import closed, wipe
from tests.unit.spark_ledger.repair.test_locks import lost_one, whole_one
from tests.unit.spark_ledger.repair.test_worker import filled
from tests.unit.spark_ledger.repair.world import Crew, crew, lacking, lose, marked


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
        ledger_id, _ = await whole_one(world)
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
        assert most == 3
        assert await lacking(world, cared.worker._client, ledger_id) == []

    run_virtually(test, bookies=5)


class Asked:
    """What a worker asks of bookies and of the store."""

    def __init__(self, cared: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[BookieId] = []
        self.listed: list[BookieId] = []
        self.writes: list[tuple[str, str]] = []
        context = cared.worker._client.context
        read, list_entries = context.transport.read, context.transport.list_entries

        def reads(bookie_id: BookieId, *given: Any, **options: Any) -> Any:
            self.read.append(bookie_id)
            return read(bookie_id, *given, **options)

        def lists(bookie_id: BookieId, *given: Any, **options: Any) -> Any:
            self.listed.append(bookie_id)
            return list_entries(bookie_id, *given, **options)

        def interpose(name: str, path: str) -> Fault:
            if name in ("create", "put", "delete", "transaction"):
                self.writes.append((name, path))
            return Fault()

        monkeypatch.setattr(context.transport, "read", reads)
        monkeypatch.setattr(context.transport, "list_entries", lists)
        assert isinstance(context.store, MemoryMetadataStore)
        context.store.interpose = interpose


def test_member_that_sent_all_that_it_has_to_hold_is_not_asked_what_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        ledger_id, _ = await lost_one(world)
        cared = await crew(world)
        names = all_names(await cared.worker._client.ledger_metadata(ledger_id))
        asked = Asked(cared, monkeypatch)
        await cared.worker.run_pass()
        (source,) = asked.read
        assert set(asked.listed) == {each for each in names if each in world.alive} - {source}
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


@pytest.mark.parametrize("is_striped", [False, True])
def test_member_that_sent_a_part_is_asked_what_it_holds(
    is_striped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a striped ledger it has to hold other entries as well. Two that lack an entry each have
    relieved one another."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await (closed if is_striped else filled)(client)
        await writer.close()
        lost, *others = writer.metadata.last_fragment.bookies
        if not is_striped:
            for each, entry_id in zip(others, (7, 12), strict=True):
                wipe(world, each, writer, entry_id)
        await lose(world, lost)
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([BookieId(lost)]), 2)
        cared = await crew(world)
        asked = Asked(cared, monkeypatch)
        await cared.worker.run_pass()
        assert set(asked.listed) >= set(others)
        assert await marked(world) == {}
        assert await lacking(world, client, writer.ledger_id) == []

    run_virtually(test, bookies=6)


def test_ledger_is_named_anew_and_settled_in_one_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        ledger_id, _ = await lost_one(world)
        cared = await crew(world)
        asked = Asked(cared, monkeypatch)
        await cared.worker.run_pass()
        wanted = [("create", lock_path(ledger_id)), ("transaction", ledger_path(ledger_id))]
        assert [each for each in asked.writes if str(ledger_id) in each[1]] == wanted
        assert await marked(world) == {}
        assert await cared.worker._client.store.children(LOCKS_PATH) == []

    run_virtually(test, bookies=5)


def test_mark_that_is_new_stays_and_the_copy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody marks the ledger while its copy is made: the transaction is refused as a whole."""

    async def test(world: World) -> None:
        ledger_id, other = await lost_one(world)
        cared = await crew(world)
        client = cared.worker._client
        copy, found = Copier.copy, [ledger_id]

        async def copy_while_it_is_marked(*given: Any) -> None:
            await copy(*given)
            while found:
                await mark(other, found.pop(), frozenset(), 2)

        monkeypatch.setattr(Copier, "copy", copy_while_it_is_marked)
        before = all_names(await client.ledger_metadata(ledger_id))
        await cared.worker.run_pass()
        assert set(await marked(world)) == {ledger_id}
        assert all_names(await client.ledger_metadata(ledger_id)) != before
        assert await client.store.children(LOCKS_PATH) == []
        await cared.worker.run_pass()
        assert await marked(world) == {}

    run_virtually(test, bookies=5)


def test_ledger_with_a_member_that_does_not_answer_is_named_and_stays_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        ledger_id, _ = await lost_one(world)
        cared = await crew(world)
        client = cared.worker._client
        before = all_names(await client.ledger_metadata(ledger_id))
        asked = Asked(cared, monkeypatch)

        async def silent(*given: Any, **options: Any) -> ListedEntries:
            return ListedEntries(BookieStatus.UNAVAILABLE, [])

        monkeypatch.setattr(client.context.transport, "list_entries", silent)
        await cared.worker.run_pass()
        assert asked.writes.count(("transaction", ledger_path(ledger_id))) == 1, "without the mark"
        assert set(await marked(world)) == {ledger_id}
        assert all_names(await client.ledger_metadata(ledger_id)) != before

    run_virtually(test, bookies=5)


def test_reason_that_another_worker_left_goes_with_the_ledger_or_the_next_pass() -> None:
    async def test(world: World) -> None:
        ledger_id, other = await lost_one(world)
        path, node = id_path(FAILED_PATH, ledger_id), FailedRepair(reason="silent", tries=1)
        await write_node(other, path, node, None)
        cared = await crew(world)
        await cared.worker.run_pass()
        assert await marked(world) == {} and not await other.children(path.rpartition("/")[0])
        await write_node(other, path, node, None)  # while this worker was at it
        await cared.worker.run_pass()
        assert not await other.children(path.rpartition("/")[0])

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


@pytest.mark.parametrize("breaks_with", ["create", "get"])
def test_mark_of_a_server_that_lags_behind_the_lock_is_read_again(
    breaks_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke as the lock was taken, or once it was."""

    async def test(world: World) -> None:
        ledger_id, other = await lost_one(world)
        await mark(other, ledger_id, frozenset(), 2)
        cared = await crew(world)
        store = cared.worker._client.store
        assert isinstance(store, MemoryMetadataStore)
        real = store.get

        def interpose(name: str, path: str) -> Fault:
            if name == breaks_with and path.startswith((LOCKS_PATH, "repair/marked/")):
                store._connections += 1
            return Fault()

        async def lagging(path: str) -> Versioned[bytes]:
            found = await real(path)
            lags = path.startswith("repair/marked/")
            return Versioned(found.value, found.version - 1) if lags else found

        store.interpose = interpose
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


def test_member_that_sent_all_but_what_another_bookie_had_gets_that_too() -> None:
    """The copy begins again behind it, and what a member sends then is not all of its lane."""

    async def test(world: World) -> None:
        client = await world.client()
        writer = await filled(client)
        await writer.close()
        lost, *others = writer.metadata.last_fragment.bookies
        stranger = BookieId(min(set(world.bookies) - {lost, *others}))
        info = BookieInfo(stranger, f"memory:{stranger}", state=BookieState.READ_ONLY)
        await world._registries[stranger].register(info)  # the copies go to another one
        whole = world.bookies[BookieId(lost)].ledgers[LedgerId(writer.ledger_id)]
        for name in others:
            wipe(world, name, writer, 8)
        await lose(world, lost)
        for entry_id in set(whole.entries) - {8}:
            del whole.entries[entry_id]
        world.bookies[stranger].ledgers[LedgerId(writer.ledger_id)] = whole
        await mark(client.store, LedgerId(writer.ledger_id), frozenset([BookieId(lost)]), 2)
        await (await crew(world)).worker.run_pass()
        assert await lacking(world, client, writer.ledger_id) == []
        assert await marked(world) == {}

    run_virtually(test, bookies=5)
