"""Registrations that fail on the way or meet their own end: what stands afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from spark_ledger.errors import (
    BookieReplacedError,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    LedgerError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from spark_ledger.limits.metadata import METADATA_ATTEMPTS, REGISTRATION_MARGIN_S
from spark_ledger.metadata import bookies
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import CLUSTER_PATH
from spark_ledger.metadata.codec import encode_bookie
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from spark_ledger.metadata.zookeeper.store import ZooKeeperStore
from spark_ledger.types import BookieId, BookieInfo, BookieState
from tests.unit.bookie_server.collection.test_orders_of_a_backup import backup_of
from tests.unit.cut_off import cut_off, cut_off_at_each_wait
from tests.unit.spark_ledger.metadata.fake_zookeeper import FakeServer, Run, run
from tests.unit.virtual_time import run_in_virtual_time

__all__ = ["run"]

B = BookieId("b")
INFO = BookieInfo(B, "127.0.0.1:1")


def test_contact_that_fails_is_made_before_the_next_attempt() -> None:
    """A bookie that is not sure whose start is the last one must not be announced."""

    async def main() -> None:
        made = 0

        async def contact() -> None:
            nonlocal made
            made += 1
            if made == 1:
                raise MetadataUnavailableError("not now")

        registry = BookieRegistry(MemoryTree().open_session(), at_contact=contact)
        with pytest.raises(MetadataUnavailableError):
            await registry.register(INFO)
        assert not registry.registered and await registry.list() == []
        await registry.register(INFO)
        assert (made, registry.registered) == (2, True)
        await registry.register(replace(INFO, state=BookieState.READ_ONLY))
        assert made == 2, "once for each connection"
        await registry.deregister()

    run_in_virtual_time(main())


def test_contact_that_a_reconnect_overtakes_is_made_once_more() -> None:
    """What it has seen is of the connection before."""

    async def main() -> None:
        session, made = MemoryTree().open_session(), list[int]()

        async def contact() -> None:
            made.append(session.connections)
            if len(made) == 1:
                session.expire()

        registry = BookieRegistry(session, at_contact=contact)
        await registry.register(INFO)
        await asyncio.sleep(1.0)
        assert made == [made[0], made[0] + 1]
        assert registry.registered and await registry.list() == [INFO]
        await registry.deregister()

    run_in_virtual_time(main())


def test_contact_is_made_again_after_a_reconnect_though_the_registration_stands() -> None:
    """The store may have been restored meanwhile, and name another start as the last one."""

    async def main() -> None:
        session, made = MemoryTree().open_session(), list[int]()

        async def contact() -> None:
            made.append(session.connections)

        registry = BookieRegistry(session, at_contact=contact)
        await registry.register(INFO)
        for _ in range(2):
            session.reconnect()
            await asyncio.sleep(1.0)
        assert made == [1, 2, 3]
        assert registry.registered and await registry.list() == [INFO]
        await registry.deregister()

    run_in_virtual_time(main())


@pytest.mark.parametrize("name", ["get", "is_own", "create", "delete"])
def test_bookie_that_withdraws_while_it_changes_its_state_is_gone(name: str) -> None:
    """Clients would choose it for new ledgers until its session ends."""

    async def main() -> None:
        tree = MemoryTree()
        slow: set[str] = set()
        asked = asyncio.Event()

        def interpose(operation: str, _path: str) -> Fault:
            if operation in slow:
                slow.clear()
                asked.set()
                return Fault(delay_s=1.0)
            return Fault()

        registry = BookieRegistry(tree.open_session(interpose=interpose))
        await registry.register(INFO)
        slow.add(name)
        changing = asyncio.ensure_future(
            registry.register(replace(INFO, state=BookieState.READ_ONLY))
        )
        await asyncio.wait(
            [changing, asyncio.ensure_future(asked.wait())], return_when="FIRST_COMPLETED"
        )
        await registry.deregister()
        await changing
        await registry.deregister()
        assert await registry.list() == []

    run_in_virtual_time(main())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REQUEST, Outcome.LOST_REPLY, Outcome.UNAVAILABLE])
@pytest.mark.parametrize("times", [1, 3, 20])
def test_lost_session_is_replaced_however_often_that_fails(outcome: Outcome, times: int) -> None:
    """Else the bookie serves on, and nobody finds it until somebody starts it anew."""

    async def main() -> None:
        tree = MemoryTree()
        left = 0

        def interpose(name: str, _path: str) -> Fault:
            nonlocal left
            if name != "create" or not left:
                return Fault()
            left -= 1
            return Fault(outcome)

        session = tree.open_session(interpose=interpose)
        registry = BookieRegistry(session)
        await registry.register(INFO)
        left = times
        session.expire()
        await asyncio.sleep(100.0)
        assert registry.registered and await registry.list() == [INFO]
        await registry.deregister()

    run_in_virtual_time(main())


@pytest.mark.parametrize("kind", [ConfigurationError, UnauthorizedError, CorruptionError])
def test_lost_session_is_replaced_once_an_operator_has_mended_what_keeps_it(
    kind: type[LedgerError],
) -> None:
    """Else all bookies of the cluster have to be started anew: until then nobody can write."""

    async def main() -> None:
        broken = False

        async def contact() -> None:
            if broken:
                raise kind("an operator has to look at this")

        session = MemoryTree().open_session()
        registry = BookieRegistry(session, at_contact=contact)
        await registry.register(INFO)
        broken = True
        session.expire()
        await asyncio.sleep(60.0)
        assert not registry.registered and await registry.list() == []
        broken = False
        await asyncio.sleep(10.0)
        assert registry.registered and await registry.list() == [INFO]
        await registry.deregister()

    run_in_virtual_time(main())


def test_bookie_is_found_again_after_another_store_has_answered(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ZooKeeper that comes back without its data, and then with them."""
    monkeypatch.setattr(bookies, "REGISTRATION_POLL_S", 0.01)

    async def scenario(server: FakeServer, store: ZooKeeperStore) -> None:
        (client,) = server.clients
        await store.create(CLUSTER_PATH, b"this one")
        await store.get(CLUSTER_PATH)
        registry = BookieRegistry(store)
        await registry.register(INFO)
        server.delete(f"/root/{CLUSTER_PATH}")
        client.expire()
        client.connect()
        await asyncio.sleep(0.1)
        assert not registry.registered
        server.create(f"/root/{CLUSTER_PATH}", b"this one")
        client.expire()
        client.connect()
        async with asyncio.timeout(5):
            while not registry.registered:
                await asyncio.sleep(0.01)
        assert await registry.list() == [INFO]
        await registry.deregister()

    run(scenario)


def test_cookie_that_is_made_again_with_the_same_bytes_is_the_same() -> None:
    async def main() -> None:
        registry = BookieRegistry(MemoryTree().open_session())
        await registry.create_cookie(B, b"of this one")
        await registry.create_cookie(B, b"of this one")
        with pytest.raises(ConflictError, match="is taken in this cluster"):
            await registry.create_cookie(B, b"of another")

    run_in_virtual_time(main())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REQUEST, Outcome.LOST_REPLY, Outcome.UNAVAILABLE])
def test_registration_that_meets_trouble_anywhere_is_what_was_said_last(outcome: Outcome) -> None:
    """A reply that is lost once is no error, and after an outage the same step works again."""
    steps = [
        INFO,
        replace(INFO, free_bytes=1),
        replace(INFO, state=BookieState.READ_ONLY),
        replace(INFO, free_bytes=2),
        None,
    ]

    async def meets(at: int) -> bool:
        operations, refused = 0, False

        def interpose(name: str, _path: str) -> Fault:
            nonlocal operations, refused
            operations += 1
            refused = refused or operations == at
            is_write = name in ("create", "put", "delete")
            if operations != at or not (is_write or outcome is Outcome.UNAVAILABLE):
                return Fault()
            return Fault(outcome)

        tree = MemoryTree()
        registry = BookieRegistry(tree.open_session(interpose=interpose))
        others = BookieRegistry(tree.open_session())
        for info in steps:
            for attempt in (1, 2):
                try:
                    await (registry.deregister() if info is None else registry.register(info))
                    break
                except MetadataUnavailableError:
                    assert attempt == 1 and outcome is Outcome.UNAVAILABLE
            assert await others.list() == ([] if info is None else [info])
            assert registry.registered is (info is not None)
        return refused

    async def main() -> None:
        await cut_off_at_each_wait(meets)

    run_in_virtual_time(main())


@pytest.mark.parametrize("late", [2, METADATA_ATTEMPTS, METADATA_ATTEMPTS + 1])
def test_registration_that_is_changed_under_its_change_is_what_was_said_last(late: int) -> None:
    """By earlier writes of the same bookie, that came late."""

    async def main() -> None:
        tree, left = MemoryTree(), late

        def interpose(name: str, path: str) -> Fault:
            nonlocal left
            if name == "put" and left:
                left -= 1
                found = tree.get(path)
                tree.apply([Put(path, b"late", found.version)])
            return Fault()

        registry = BookieRegistry(tree.open_session(interpose=interpose))
        await registry.register(INFO)
        changed = replace(INFO, free_bytes=1)
        await registry.register(changed)
        assert not left and await registry.list() == [changed]
        await registry.deregister()

    run_in_virtual_time(main())


@pytest.mark.parametrize("name", ["create", "delete"])
def test_registration_without_any_reply_is_unknown_after_so_many_attempts(name: str) -> None:
    async def main() -> None:
        tree = MemoryTree()
        session = tree.open_session()
        registry, attempts = BookieRegistry(session), 0

        def interpose(operation: str, _path: str) -> Fault:
            nonlocal attempts
            attempts += operation == name
            return Fault(Outcome.LOST_REQUEST if operation == name else Outcome.NORMAL)

        if name == "delete":
            await registry.register(INFO)
        session.interpose = interpose
        with pytest.raises(OutcomeUnknownError):
            await (registry.register(INFO) if name == "create" else registry.deregister())
        assert attempts == METADATA_ATTEMPTS
        session.interpose = None
        await registry.register(INFO)
        assert registry.registered and await registry.list() == [INFO]
        await registry.deregister()
        assert await registry.list() == []

    run_in_virtual_time(main())


def test_registration_of_a_closed_store_is_looked_after_no_more() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        registry = BookieRegistry(store)
        await registry.register(INFO)
        before = asyncio.all_tasks()
        for watch in registry._watches:
            watch.cancel()
        await store.close()
        registry._look_again.set()
        await asyncio.sleep(1.0)
        assert len(before) - len(asyncio.all_tasks()) == 1, "its task has ended"

    run_in_virtual_time(main())


@pytest.mark.parametrize("how", ["left", "taken", "unavailable"])
def test_wait_for_a_place_that_does_not_succeed_watches_no_more(how: str) -> None:
    async def one(wait: int) -> bool:
        tree = MemoryTree()
        other = BookieRegistry(tree.open_session())
        await other.register(INFO)
        operations = 0

        def interpose(_name: str, _path: str) -> Fault:
            nonlocal operations
            operations += 1
            fails = how == "unavailable" and operations == wait
            return Fault(Outcome.UNAVAILABLE if fails else Outcome.NORMAL)

        registry = BookieRegistry(tree.open_session(interpose=interpose), session_timeout_s=5.0)
        waiting = registry.wait_until_vacant(B)
        if how == "left":
            was_cut = False
            with suppress(BookieReplacedError):
                was_cut = await cut_off(waiting, wait)
        else:
            with pytest.raises((BookieReplacedError, MetadataUnavailableError)):
                await waiting
            was_cut = how == "unavailable" and operations >= wait
        await other.deregister()
        assert tree._watches == {}
        return was_cut

    async def main() -> None:
        await cut_off_at_each_wait(one)

    run_in_virtual_time(main())


@pytest.mark.parametrize("ends", [True, False])
def test_session_of_the_process_before_that_a_restore_brings_back_is_waited_for(
    *, ends: bool
) -> None:
    """The backup was made while this process waited for it to end. This one's session is in the
    backup, and goes on; its node is not."""

    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        before, store = tree.open_session(), tree.open_session()
        registry = BookieRegistry(store, on_replaced=told.append, session_timeout_s=6.0)
        await before.create("bookies/writable/b", encode_bookie(INFO), ephemeral=True)
        backup = backup_of(tree)
        tree.end_session(before._session)
        await registry.register(INFO)
        for _ in range(2):
            backup()
            store.reconnect()
            await asyncio.sleep(5.5)
            assert not told and not registry.registered
            if not ends:
                break
            tree.end_session(before._session)
            await asyncio.sleep(REGISTRATION_MARGIN_S + 1)
            assert registry.registered and await store.is_own("bookies/writable/b")
        await asyncio.sleep(60)
        assert bool(told) is not ends
        await registry.deregister()

    run_in_virtual_time(main())


def test_process_that_comes_on_the_connection_of_now_is_no_earlier_one() -> None:
    """The reconnect before it found the place as it was."""

    async def main() -> None:
        tree, told = MemoryTree(), list[str]()
        store = tree.open_session()
        registry = BookieRegistry(store, on_replaced=told.append)
        await registry.register(INFO)
        store.reconnect()
        await asyncio.sleep(1)
        tree.end_session(store._session)
        await tree.open_session().create("bookies/writable/b", encode_bookie(INFO), ephemeral=True)
        await asyncio.sleep(1)
        assert len(told) == 1
        await registry.deregister()

    run_in_virtual_time(main())
