"""Owner: one node per connection, made before the first ledger, and again after a lost session and
behind a ZooKeeper that was restored from a backup."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from spark_ledger.errors import MetadataUnavailableError, NotFoundError, OutcomeUnknownError
from spark_ledger.limits.metadata import OWNER_RETRY_DELAY_S
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.metadata.owners import OWNERS_PATH, Owner, is_alive, owner_path, read_owner
from tests.unit.spark_ledger.metadata.test_ledgers import script
from tests.unit.virtual_time import run_in_virtual_time


async def until_alive(store: MemoryMetadataStore, name: str) -> None:
    async with asyncio.timeout(5):
        while not await is_alive(store, name):
            await asyncio.sleep(0.01)


def test_owner_is_announced_once_and_goes_with_its_session() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        owner = Owner(store)
        assert await other.children(OWNERS_PATH) == []
        name = await owner.announce()
        assert await owner.announce() == name
        assert await other.children(OWNERS_PATH) == [name]
        node = await read_owner(other, name)
        assert node is not None and node.owner == name and node.pid > 0
        await owner.close()
        await store.close()
        assert not await is_alive(other, name)
        assert await read_owner(other, name) is None

    asyncio.run(main())


def test_owner_after_a_lost_session_is_there_again_under_its_name() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        owner = Owner(store)
        name = await owner.announce()
        for _ in range(3):
            store.expire()
            assert not await is_alive(other, name)
            await until_alive(other, name)
        store.expire()
        store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        await asyncio.sleep(0.05)
        store.interpose = None
        await until_alive(other, name)
        await owner.close()
        store.expire()
        await asyncio.sleep(0.05)
        assert not await is_alive(other, name), "who is closed announces nothing"

    asyncio.run(main())


@pytest.mark.parametrize("is_first", [False, True])
def test_owner_whose_session_is_lost_while_it_is_made_is_made_once_more(is_first: bool) -> None:
    """The node was made, and went with its session before the reply was there: of the first node
    nobody was told, and the ledgers of that connection named an owner that was none."""

    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        owner = Owner(store)
        create, expirations, creations = store.create, 2, 0

        async def create_and_expire(*args: Any, **kwargs: Any) -> None:
            nonlocal expirations, creations
            creations += 1
            await create(*args, **kwargs)
            if expirations:
                expirations -= 1
                store.expire()
                await asyncio.sleep(0.01)  # the notice is here before the reply

        if is_first:
            store.create = create_and_expire  # type: ignore[method-assign]
            assert await is_alive(other, await owner.announce())
        else:
            name = await owner.announce()
            store.create = create_and_expire  # type: ignore[method-assign]
            store.expire()
            await until_alive(other, name)
        assert expirations == 0
        made = creations
        await asyncio.sleep(0.02)
        assert creations == made, "then it is there, and nobody asks any more"
        await owner.close()

    asyncio.run(main())


def test_owner_whose_old_node_is_still_there_waits_until_it_is_its_own() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other, old = tree.open_session(), tree.open_session(), tree.open_session()
        owner = Owner(store)
        name = await owner.announce()
        await old.children(OWNERS_PATH)
        store.expire()
        await old.create(owner_path(name), b"{}", ephemeral=True)  # of a session before this one
        await asyncio.sleep(0.05)
        await old.close()
        await until_alive(other, name)
        assert await store.is_own(owner_path(name))
        await owner.close()

    asyncio.run(main())


def test_owner_that_is_new_waits_for_the_node_of_a_session_before() -> None:
    """That session made it, and was lost before the reply was there."""

    async def main() -> None:
        tree = MemoryTree()
        store, old = tree.open_session(), tree.open_session()
        owner = Owner(store)
        path = owner_path(owner._node.owner)
        await old.create(path, b"{}", ephemeral=True)
        announcing = asyncio.ensure_future(owner.announce())
        await asyncio.sleep(3 * OWNER_RETRY_DELAY_S)
        assert not announcing.done()
        await old.close()
        await announcing
        assert await store.is_own(path)
        await owner.close()

    run_in_virtual_time(main())


def test_owner_with_a_lost_reply_is_announced_all_the_same() -> None:
    async def main() -> None:
        tree = MemoryTree()
        lost = script("create", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
        name = await Owner(tree.open_session(interpose=lost)).announce()
        assert await is_alive(tree.open_session(), name)

    asyncio.run(main())


def test_owner_without_a_store_is_no_owner() -> None:
    async def main() -> None:
        owner = Owner(MemoryTree().open_session(interpose=lambda *_: Fault(Outcome.UNAVAILABLE)))
        with pytest.raises(MetadataUnavailableError):
            await owner.announce()
        lost = Owner(MemoryTree().open_session(interpose=lambda *_: Fault(Outcome.LOST_REQUEST)))
        with pytest.raises(OutcomeUnknownError):
            await lost.announce()

    asyncio.run(main())


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.LOST_REQUEST])
def test_owner_that_could_not_be_announced_is_announced_by_the_next_call(outcome: Outcome) -> None:
    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session(interpose=lambda *_: Fault(outcome))
        owner = Owner(store)
        with pytest.raises((MetadataUnavailableError, OutcomeUnknownError)):
            await owner.announce()
        store.interpose = None
        assert await is_alive(tree.open_session(), await owner.announce())

    asyncio.run(main())


def test_owner_whose_old_node_goes_while_it_is_looked_at_is_made() -> None:
    """It was there when the new one was to be made, and gone when its owner was asked for."""

    async def main() -> None:
        tree = MemoryTree()
        store, other, old = tree.open_session(), tree.open_session(), tree.open_session()
        owner = Owner(store)
        path, is_own = owner_path(owner._node.owner), store.is_own

        async def gone(asked: str) -> bool:
            tree.end_session(old._session)
            return await is_own(asked)

        await old.create(path, b"{}", ephemeral=True)
        store.is_own = gone  # type: ignore[method-assign, assignment]
        assert await is_alive(other, await owner.announce())
        await owner.close()

    asyncio.run(main())


def test_owner_of_a_closed_store_is_made_no_more() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        owner = Owner(store)
        await owner.announce()
        await owner.close()
        await store.close()
        owner._on_session_lost()  # it was on its way
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_owner_that_waits_for_its_old_node_to_go_is_closed_all_the_same() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, old = tree.open_session(), tree.open_session()
        owner = Owner(store)
        name = await owner.announce()
        tree.end_session(store._session)
        await old.create(owner_path(name), b"{}", ephemeral=True)
        store.expire()
        while len(asyncio.all_tasks()) == 1:
            await asyncio.sleep(0)
        await owner.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_owner_of_which_a_server_that_lags_knows_nothing_is_alive() -> None:
    """Its ledgers were recovered under a writer that had just begun."""

    async def main() -> None:
        tree = MemoryTree()
        name = await Owner(tree.open_session()).announce()
        store = tree.open_session()

        async def lags(path: str) -> NoReturn:
            raise NotFoundError(path)

        store.get = lags  # type: ignore[method-assign]
        assert await is_alive(store, name)

    asyncio.run(main())


def test_owner_that_lost_several_sessions_is_closed_whole() -> None:
    """Each of them asked for its node once more, and only the last one was ended."""

    async def main() -> None:
        store = MemoryTree().open_session()
        owner = Owner(store)
        await owner.announce()
        store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        for _ in range(3):
            store.expire()
            await asyncio.sleep(0.01)
        await owner.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_owner_that_cannot_be_made_again_is_tried_behind_a_pause() -> None:
    async def main() -> None:
        tree, attempts = MemoryTree(), 0

        def interpose(_name: str, _path: str) -> Fault:
            nonlocal attempts
            attempts += 1
            assert attempts < 1_000, "it tries again and again"
            return Fault(Outcome.UNAVAILABLE)

        store = tree.open_session()
        owner = Owner(store)
        name = await owner.announce()
        store.interpose = interpose
        store.expire()
        await asyncio.sleep(10 * OWNER_RETRY_DELAY_S)
        assert 10 <= attempts <= 11
        store.interpose = None
        await asyncio.sleep(2 * OWNER_RETRY_DELAY_S)
        assert await is_alive(tree.open_session(), name)
        await owner.close()

    run_in_virtual_time(main())


def writes_of(store: MemoryMetadataStore) -> list[str]:
    """What is asked of the store from now on, but for reads."""
    writes: list[str] = []

    def interpose(name: str, _path: str) -> Fault:
        if name in ("create", "delete", "put"):
            writes.append(name)
        return Fault()

    store.interpose = interpose
    return writes


def test_owner_whose_node_is_not_in_a_restored_backup_is_there_again_behind_the_reconnect() -> None:
    """The session is in the backup and goes on, so it is not lost, and the node was made since."""

    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        owner = Owner(store)
        name = await owner.announce()
        for _ in range(2):
            await other.delete(owner_path(name))  # as the restore does
            store.reconnect()
            await until_alive(other, name)
        assert await store.is_own(owner_path(name))
        await owner.close()
        await other.delete(owner_path(name))
        store.reconnect()
        await asyncio.sleep(0.05)
        assert not await is_alive(other, name), "who is closed announces nothing"

    asyncio.run(main())


def test_owner_whose_node_is_missing_while_the_store_is_away_is_made_once_it_answers() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        owner = Owner(store)
        name = await owner.announce()
        await other.delete(owner_path(name))
        store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        store.reconnect()
        await asyncio.sleep(5 * OWNER_RETRY_DELAY_S)
        store.interpose = None
        await asyncio.sleep(2 * OWNER_RETRY_DELAY_S)
        assert await is_alive(other, name)
        await owner.close()

    run_in_virtual_time(main())


def test_owner_whose_node_is_there_writes_nothing_behind_a_reconnect() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        owner = Owner(store)
        await owner.announce()
        writes = writes_of(store)
        for _ in range(3):
            store.reconnect()
            await asyncio.sleep(0.01)
        assert writes == []
        store.expire()
        await asyncio.sleep(0.05)
        assert writes == ["create"], "after a lost session it is made once"
        await owner.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_owner_whose_connection_breaks_while_it_is_made_looks_whether_it_is_there() -> None:
    """The reply was there already when the store went back to a backup without the node."""

    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        owner, create = Owner(store), store.create
        restores = 1

        async def create_and_restore(path: str, *args: Any, **kwargs: Any) -> None:
            nonlocal restores
            await create(path, *args, **kwargs)
            if restores:
                restores -= 1
                await other.delete(path)
                store.reconnect()

        store.create = create_and_restore  # type: ignore[method-assign]
        assert await is_alive(other, await owner.announce())
        await owner.close()

    asyncio.run(main())


def test_owner_whose_node_goes_while_it_is_looked_for_is_looked_for_again() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        owner, is_own = Owner(store), store.is_own
        name = await owner.announce()
        looks = 0

        async def goes(path: str) -> bool:
            nonlocal looks
            found = await is_own(path)
            looks += 1
            if looks == 1:
                await other.delete(path)
                await asyncio.sleep(0.01)  # the notice is here before the answer
            return found

        store.is_own = goes  # type: ignore[method-assign]
        store.reconnect()
        await until_alive(other, name)
        await asyncio.sleep(0.02)
        looked = looks
        await asyncio.sleep(0.02)
        assert looks == looked, "then it is there, and nobody looks any more"
        await owner.close()

    asyncio.run(main())
