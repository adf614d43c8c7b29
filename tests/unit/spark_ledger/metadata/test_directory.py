"""The live view of the bookies, over the memory store, also when the store cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from spark_ledger.types import BookieId, BookieInfo, BookieState


def bookie(name: str, address: str = "127.0.0.1:1", state: str = "writable") -> BookieInfo:
    return BookieInfo(BookieId(name), address, BookieState(state))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_directory_without_changes_reads_nothing() -> None:
    async def main() -> None:
        tree = MemoryTree()
        asked: list[str] = []

        def interpose(name: str, _path: str) -> Fault:
            asked.append(name)
            return Fault()

        directory = BookieDirectory(BookieRegistry(tree.open_session(interpose=interpose)))
        await directory.start()
        await BookieRegistry(tree.open_session()).register(bookie("b"))
        await eventually(lambda: directory.all() == [bookie("b")])
        await asyncio.sleep(0.02)
        before = len(asked)
        await asyncio.sleep(0.05)
        assert len(asked) == before
        await directory.close()

    asyncio.run(main())


def test_directory_follows_and_keeps_the_last_address() -> None:
    async def main() -> None:
        tree = MemoryTree()
        first, second = BookieRegistry(tree.open_session()), BookieRegistry(tree.open_session())
        await first.register(bookie("a", "127.0.0.1:1"))
        directory = BookieDirectory(BookieRegistry(tree.open_session()))
        await directory.start()
        assert directory.writable() == [bookie("a", "127.0.0.1:1")]
        assert directory.address(BookieId("b")) is None
        await second.register(bookie("b", "127.0.0.1:2"))
        await eventually(lambda: len(directory.writable()) == 2)
        await second.register(bookie("b", "127.0.0.1:2", "readonly"))
        await eventually(lambda: len(directory.writable()) == 1)
        assert [info.bookie_id for info in directory.all()] == ["a", "b"]
        await first.deregister()
        await eventually(lambda: len(directory.all()) == 1)
        assert directory.get(BookieId("a")) is None
        assert directory.address(BookieId("a")) == "127.0.0.1:1"
        await directory.close()

    asyncio.run(main())


def test_directory_outlives_an_unreachable_store() -> None:
    async def main() -> None:
        tree = MemoryTree()
        down = [False]
        store = tree.open_session(
            interpose=lambda _n, _p: Fault(Outcome.UNAVAILABLE if down[0] else Outcome.NORMAL)
        )
        directory = BookieDirectory(BookieRegistry(store))
        await directory.start()
        down[0] = True
        writer = BookieRegistry(tree.open_session())
        await writer.register(bookie("a"))
        await asyncio.sleep(0.02)
        assert directory.all() == []
        down[0] = False
        store.expire()  # back: every watch reports
        await eventually(lambda: directory.all() == [bookie("a")])
        await directory.close()

    asyncio.run(main())


def test_refresh_that_waited_for_a_failed_read_fails_without_another() -> None:
    async def main() -> None:
        tree, down, reads = MemoryTree(), [False], []

        def interpose(name: str, path: str) -> Fault:
            reads.append(path)
            return Fault(Outcome.UNAVAILABLE if down[0] else Outcome.NORMAL, delay_s=0.01)

        directory = BookieDirectory(BookieRegistry(tree.open_session(interpose=interpose)))
        await directory.start()
        reads.clear()
        down[0] = True
        found = await asyncio.gather(
            *(directory.refresh() for _ in range(3)), return_exceptions=True
        )
        assert [type(error) for error in found] == [MetadataUnavailableError] * 3
        assert "cannot be read" in str(found[2])
        assert len(reads) == 1
        with pytest.raises(MetadataUnavailableError):
            await directory.refresh()
        assert len(reads) == 2, "a later call tries for itself"
        down[0] = False
        await asyncio.gather(*(directory.refresh() for _ in range(2)))
        assert len(reads) == 2 + 2 * len(BookieState)
        await directory.close()

    asyncio.run(main())
