"""A counter of ledger ids that went back is raised by the bookies that know better."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from bookie_server import registration
from bookie_server.bookie import Bookie
from bookie_server.exit_codes import EXIT_OK
from bookie_server.held_ids import pass_over_held_ids
from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.limits.metadata import LEDGER_ID_BLOCK_MAX, RESTORED_IDS_SKIPPED
from spark_ledger.metadata.codec import CounterNode
from spark_ledger.metadata.json_nodes import decode_node
from spark_ledger.metadata.ledger_ids import COUNTER_PATH, next_counted, raise_counter
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from tests.unit.bookie_server.test_server import NODE, Cluster, until


def cluster_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_below: int) -> Cluster:
    monkeypatch.setattr(Bookie, "next_ledger_id", lambda _bookie: held_below)
    return Cluster(tmp_path, monkeypatch)


def test_running_clients_hold_fewer_ids_than_are_passed_over() -> None:
    assert RESTORED_IDS_SKIPPED >= 100 * LEDGER_ID_BLOCK_MAX


@pytest.mark.parametrize(("before", "held_below"), [(5, 5), (5, 1), (0, 1)])
def test_counter_that_is_not_behind_stays_as_it_is(before: int, held_below: int) -> None:
    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        if before:
            await raise_counter(store, before)
        await pass_over_held_ids(store, lambda: held_below)
        assert await next_counted(store) == max(before, 1)

    asyncio.run(main())


@pytest.mark.parametrize("lost", [1, 2, 100])
def test_counter_that_lost_ids_is_raised_above_them(lost: int) -> None:
    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        await raise_counter(store, 5)
        await pass_over_held_ids(store, lambda: 5 + lost)
        assert await next_counted(store) >= 5 + lost + RESTORED_IDS_SKIPPED

    asyncio.run(main())


def test_counter_that_cannot_be_reached_is_not_passed_over_in_silence() -> None:
    async def main() -> None:
        away = MemoryMetadataStore(
            MemoryTree(), interpose=lambda _name, _path: Fault(Outcome.UNAVAILABLE)
        )
        with pytest.raises(MetadataUnavailableError):
            await pass_over_held_ids(away, lambda: 5)

    asyncio.run(main())


def test_damaged_counter_or_index_keeps_no_bookie_from_serving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> int:
        raise OSError("index")

    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        await pass_over_held_ids(store, fail)
        await store.create(COUNTER_PATH, b"nonsense")
        await pass_over_held_ids(store, lambda: 5)
        await store.delete(COUNTER_PATH)
        await pass_over_held_ids(store, lambda: 2**63)
        assert await next_counted(store) == 1

    asyncio.run(main())
    assert caplog.text.count("nobody can tell whether ledger ids are given again") == 3


def test_bookie_that_starts_after_a_restore_has_no_id_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(tmp_path, monkeypatch, held_below=8)

    async def main() -> None:
        await raise_counter(cluster.tree.open_session(), 5)
        bookie = cluster.server()
        running = asyncio.create_task(bookie.run())
        await until(lambda: cluster.tree.children("bookies/writable") != [])
        assert await next_counted(cluster.tree.open_session()) == 8 + RESTORED_IDS_SKIPPED
        bookie._stop.set()
        assert await running == EXIT_OK

    asyncio.run(main())


def test_bookie_that_was_running_passes_ids_over_before_it_is_registered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who chooses it for a new ledger after the restore has an id that it does not hold."""
    cluster = cluster_of(tmp_path, monkeypatch, held_below=8)

    sessions: list[MemoryMetadataStore] = []
    open_session = cluster.tree.open_session

    def keep(**named: Any) -> MemoryMetadataStore:
        sessions.append(open_session(**named))
        return sessions[-1]

    monkeypatch.setattr(cluster.tree, "open_session", keep)

    async def main() -> None:
        other = open_session()
        await raise_counter(other, 100)
        bookie = cluster.server()
        running = asyncio.create_task(bookie.run())
        await until(lambda: cluster.tree.children("bookies/writable") != [])
        assert await next_counted(other) == 100, "nothing was restored"
        await other.delete(COUNTER_PATH)  # as it was in the backup: not there yet
        seen: list[int] = []

        def interpose(name: str, path: str) -> Fault:
            if (name, path) == ("create", NODE):
                node = cluster.tree.get(COUNTER_PATH)
                seen.append(decode_node(CounterNode, COUNTER_PATH, node.value).next_id)
            return Fault()

        cluster.interpose = interpose
        for session in sessions:
            session.expire()
        await until(lambda: bool(seen))
        assert seen[0] == 8 + RESTORED_IDS_SKIPPED
        await until(lambda: cluster.tree.children("bookies/writable") != [])
        bookie._stop.set()
        assert await running == EXIT_OK

    asyncio.run(main())


def test_bookie_looks_at_the_ids_after_each_reconnect_within_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that is in the backup outlives the restore, and numbers of changes may go on."""
    cluster = cluster_of(tmp_path, monkeypatch, held_below=8)
    monkeypatch.setattr(registration, "BOOKIE_REFRESH_INTERVAL_S", 1000.0)
    sessions: list[MemoryMetadataStore] = []
    open_session = cluster.tree.open_session

    def keep(**named: Any) -> MemoryMetadataStore:
        sessions.append(open_session(**named))
        return sessions[-1]

    monkeypatch.setattr(cluster.tree, "open_session", keep)

    async def main() -> None:
        other = open_session()
        await raise_counter(other, 100)
        bookie = cluster.server()
        running = asyncio.create_task(bookie.run())
        await until(lambda: cluster.tree.children("bookies/writable") != [])
        await other.delete(COUNTER_PATH)
        for session in sessions:
            session.reconnect()
        async with asyncio.timeout(30):
            while await next_counted(other) != 8 + RESTORED_IDS_SKIPPED:
                await asyncio.sleep(0.01)
        bookie._stop.set()
        assert await running == EXIT_OK

    asyncio.run(main())


def test_disk_is_asked_before_the_counter_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A ledger that is made meanwhile would look like one of the future of a backup."""

    async def main() -> None:
        tree = MemoryTree()
        loop_thread = threading.get_ident()

        def next_ledger_id() -> int:
            assert threading.get_ident() != loop_thread, "a disk may hang"
            asyncio.run(raise_counter(tree.open_session(), 8))  # this bookie gets its first entry
            return 8

        store = tree.open_session()
        await pass_over_held_ids(store, next_ledger_id)
        assert await next_counted(store) == 8

    asyncio.run(main())
    assert "restored" not in caplog.text
