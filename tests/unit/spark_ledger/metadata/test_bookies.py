"""Registrations, cookies and the cluster node, over the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import CLUSTER_PATH, ensure_cluster, read_cluster
from spark_ledger.metadata.codec import encode_bookie
from spark_ledger.metadata.cookies import cookie_path
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from spark_ledger.types import BookieId, BookieInfo, BookieState

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


def bookie(name: str, address: str = "127.0.0.1:1", state: str = "writable") -> BookieInfo:
    return BookieInfo(BookieId(name), address, BookieState(state))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_register_change_state_and_deregister() -> None:
    async def main() -> None:
        tree = MemoryTree()
        registry, reader = BookieRegistry(tree.open_session()), BookieRegistry(tree.open_session())
        await registry.register(bookie("b"))
        assert await reader.list() == [bookie("b")]
        assert await reader.get(BookieId("b")) == bookie("b")
        await registry.register(bookie("b", state="readonly"))
        assert await reader.list() == [bookie("b", state="readonly")]
        assert tree.children("bookies/writable") == []
        await registry.register(bookie("b", "127.0.0.1:2"))
        assert await reader.list() == [bookie("b", "127.0.0.1:2")]
        assert tree.children("bookies/readonly") == []
        await registry.deregister()
        await registry.deregister()
        assert await reader.list() == []
        assert await reader.get(BookieId("b")) is None

    asyncio.run(main())


def test_register_with_new_state_is_never_missing_from_both_lists() -> None:
    async def main() -> None:
        tree = MemoryTree()
        registry = BookieRegistry(tree.open_session())
        await registry.register(bookie("b"))
        empty: list[str] = []

        def look() -> None:
            if not tree.children("bookies/writable") and not tree.children("bookies/readonly"):
                empty.append("gone")

        tree.open_session().watch("bookies/writable", look)
        tree.open_session().watch("bookies/readonly", look)
        for state in (BookieState.READ_ONLY, BookieState.WRITABLE) * 3:
            await registry.register(bookie("b", state=state))
        await asyncio.sleep(0)
        assert empty == []

    asyncio.run(main())


def test_bookie_that_is_in_both_states_counts_as_read_only() -> None:
    """It is while it changes its state: whoever looks must not give it new entries."""

    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session()
        for state in BookieState:
            path = f"bookies/{state.value}/b"
            await store.create(path, encode_bookie(bookie("b")), ephemeral=True)
        registry = BookieRegistry(tree.open_session())
        wanted = bookie("b", state="readonly")
        assert await registry.list() == [wanted]
        assert await registry.get(BookieId("b")) == wanted
        directory = BookieDirectory(registry)
        await directory.start()
        assert (directory.all(), directory.writable()) == ([wanted], [])
        await directory.close()

    asyncio.run(main())


def test_session_lost_registers_again() -> None:
    async def main() -> None:
        tree = MemoryTree()
        failures = [Outcome.NORMAL, Outcome.UNAVAILABLE, Outcome.LOST_REPLY, Outcome.LOST_REQUEST]

        def interpose(name: str, _path: str) -> Fault:
            return Fault(failures.pop(0) if name == "create" and failures else Outcome.NORMAL)

        store = tree.open_session(interpose=interpose)
        registry = BookieRegistry(store)
        await registry.register(bookie("b"))
        await registry.register(bookie("b"))
        store.expire()
        assert tree.children("bookies/writable") == []
        await eventually(lambda: registry.registered and not failures)
        assert tree.children("bookies/writable") == ["b"]
        await registry.deregister()
        store.expire()
        await asyncio.sleep(0.01)
        assert tree.children("bookies/writable") == []

    asyncio.run(main())


def test_session_lost_during_register_registers_again() -> None:
    async def main() -> None:
        tree = MemoryTree()
        expirations = [1]

        def interpose(name: str, path: str) -> Fault:
            if (
                name == "is_own"
                and path == "bookies/readonly/b"
                and store.tree.children("bookies/writable")
            ):
                if not expirations:
                    return Fault()
                expirations.pop()
                store.expire()  # the node is made, the registration not yet done
            return Fault()

        store = tree.open_session(interpose=interpose)
        registry = BookieRegistry(store)
        await registry.register(bookie("b"))
        await eventually(lambda: registry.registered)
        assert tree.children("bookies/writable") == ["b"]

    asyncio.run(main())


def test_bad_ids_are_refused() -> None:
    async def main() -> None:
        registry = BookieRegistry(MemoryTree().open_session())
        for name in ("", "a/b", "..", "-a", "a b", "x" * 129):
            with pytest.raises(ConfigurationError, match="bookie id"):
                await registry.register(bookie(name))

    asyncio.run(main())


def test_one_bad_registration_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session()
        registry = BookieRegistry(store)
        await registry.register(bookie("good"))
        await store.create("bookies/writable/bad", b"{")
        assert await registry.list() == [bookie("good")]
        assert "bookies/writable/bad" in caplog.text

    asyncio.run(main())


def test_cookies() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        registry = BookieRegistry(store)
        await registry.create_cookie(BookieId("b"), b"mine")
        await registry.create_cookie(BookieId("a"), b"other")
        assert (await store.get(cookie_path(BookieId("b")))).value == b"mine"
        with pytest.raises(ConflictError, match="'b' is taken"):
            await registry.create_cookie(BookieId("b"), b"theirs")
        assert await registry.list_cookies() == ["a", "b"]

    asyncio.run(main())


def test_cookie_of_another_is_a_conflict_also_behind_a_lost_request() -> None:
    """Two bookies would have one name, and each take the other's entries for its own."""

    async def main() -> None:
        tree = MemoryTree()
        await BookieRegistry(tree.open_session()).create_cookie(BookieId("b"), b"theirs")
        losing = tree.open_session(
            interpose=lambda name, _path: Fault(
                Outcome.LOST_REQUEST if name == "create" else Outcome.NORMAL
            )
        )
        with pytest.raises(ConflictError, match="'b' is taken"):
            await BookieRegistry(losing).create_cookie(BookieId("b"), b"mine")

    asyncio.run(main())


def test_ensure_cluster_at_once_makes_one_cluster() -> None:
    async def main() -> None:
        tree = MemoryTree()
        with pytest.raises(NotFoundError, match="no cluster"):
            await read_cluster(tree.open_session())
        ids = await asyncio.gather(*(ensure_cluster(tree.open_session()) for _ in range(5)))
        assert len(set(ids)) == 1
        assert await read_cluster(tree.open_session()) == ids[0]

    asyncio.run(main())


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LOST_REQUEST])
def test_ensure_cluster_after_lost_replies_makes_one_cluster(outcome: Outcome) -> None:
    async def main() -> None:
        failures = [outcome]

        def interpose(name: str, _path: str) -> Fault:
            return Fault(failures.pop() if name == "create" and failures else Outcome.NORMAL)

        store = MemoryTree().open_session(interpose=interpose)
        assert await ensure_cluster(store) == await ensure_cluster(store)

    asyncio.run(main())


def test_ensure_cluster_without_any_reply_is_unknown() -> None:
    async def main() -> None:
        for losses in (2, 3):
            failures = [Outcome.LOST_REQUEST] * losses

            def interpose(name: str, _path: str, left: list[Outcome] = failures) -> Fault:
                return Fault(left.pop() if name == "create" and left else Outcome.NORMAL)

            tree = MemoryTree()
            store = tree.open_session(interpose=interpose)
            if losses == 2:
                assert await ensure_cluster(store) == await read_cluster(tree.open_session())
            else:
                with pytest.raises(OutcomeUnknownError):
                    await ensure_cluster(store)
                with pytest.raises(NotFoundError):
                    await read_cluster(store)

    asyncio.run(main())


def test_a_later_cluster_format_is_refused() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        await store.create(CLUSTER_PATH, b'{"format_version":3,"cluster_id":"x","shards":3}')
        with pytest.raises(ConfigurationError, match="upgrade"):
            await ensure_cluster(store)

    asyncio.run(main())
