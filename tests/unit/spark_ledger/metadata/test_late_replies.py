"""Who follows something reads it again if it changed while it was read.

The news of a change may come before the reply of a read that does not show it yet. Whoever forgets
the news once the reply is there has missed the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from spark_ledger.metadata import bookies, directory
from spark_ledger.metadata.base import Create
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.codec import encode_bookie
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.memory import MemoryTree
from spark_ledger.types import BookieId, BookieInfo
from tests.unit.spark_ledger.metadata.late_replies import LateReplies, once
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


def bookie(name: str) -> BookieInfo:
    return BookieInfo(BookieId(name), "127.0.0.1:1")


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("read", ["children bookies/writable", "children bookies/readonly"])
def test_bookie_that_comes_while_the_list_is_read_is_seen(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has come already, so the follower reads when the next one comes."""
    monkeypatch.setattr(directory, "DIRECTORY_REFRESH_S", 1000.0)

    async def main() -> None:
        tree = MemoryTree()
        await BookieRegistry(tree.open_session()).register(bookie("a"))
        store = LateReplies(tree)
        seen = BookieDirectory(BookieRegistry(store))
        await seen.start()
        next_one, last = (
            Create(f"bookies/writable/{name}", encode_bookie(bookie(name))) for name in "bc"
        )
        name, path = read.split()
        store.on_way = once(name, path, lambda: tree.apply([last]))
        tree.apply([next_one])
        await eventually(lambda: [info.bookie_id for info in seen.all()] == ["a", "b", "c"])
        await seen.close()

    asyncio.run(main())


@pytest.mark.parametrize("path", ["bookies/writable", "bookies/readonly"])
def test_bookie_that_comes_while_the_list_is_read_first_is_seen(path: str) -> None:
    async def main() -> None:
        tree = MemoryTree()
        await BookieRegistry(tree.open_session()).register(bookie("a"))
        await tree.open_session().create("bookies/readonly", b"")
        store = LateReplies(tree)
        came = Create(f"{path}/b", encode_bookie(bookie("b")))
        store.on_way = once("children", path, lambda: tree.apply([came]))
        seen = BookieDirectory(BookieRegistry(store))
        await seen.start()
        await asyncio.sleep(1.0)
        assert [info.bookie_id for info in seen.all()] == ["a", "b"]
        await seen.close()

    run_in_virtual_time(main())


def test_session_that_is_lost_while_the_bookie_registers_again_is_made_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bookies, "REGISTER_RETRY_DELAY_S", 0.001)

    async def main() -> None:
        tree = MemoryTree()
        store = LateReplies(tree)
        registry = BookieRegistry(store)
        await registry.register(bookie("a"))
        made_again = 0

        def lose_it_again(name: str, path: str) -> None:
            """The node was made again, and the other state is looked at: there the session goes."""
            nonlocal made_again
            is_back = tree.children("bookies/writable") == ["a"]
            if is_back and (name, path) == ("missing is_own", "bookies/readonly/a"):
                made_again += 1
                if made_again == 1:
                    store.expire()

        store.on_way = lose_it_again
        store.expire()
        await eventually(lambda: registry.registered)
        await eventually(lambda: tree.children("bookies/writable") == ["a"])
        await registry.deregister()

    asyncio.run(main())


def test_place_that_becomes_free_while_it_is_looked_at_is_seen_at_once() -> None:
    async def main() -> None:
        tree = MemoryTree()
        dead, store = tree.open_session(), LateReplies(tree)
        path = "bookies/writable/a"
        await dead.create(path, encode_bookie(bookie("a")), ephemeral=True)
        store.on_way = once("is_own", path, lambda: tree.end_session(dead._session))
        began = asyncio.get_running_loop().time()
        await BookieRegistry(store).wait_until_vacant(BookieId("a"))
        assert asyncio.get_running_loop().time() == began

    run_in_virtual_time(main())
