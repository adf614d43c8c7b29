"""The live view of the bookies while the store cannot be reached."""

from __future__ import annotations

import asyncio
import random

import pytest

from spark_ledger.errors import MetadataUnavailableError
from spark_ledger.limits.metadata import DIRECTORY_REFRESH_S
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from tests.unit.spark_ledger.metadata.test_directory import bookie
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


def test_view_that_could_not_be_begun_follows_nothing_and_can_be_begun_again() -> None:
    async def main() -> None:
        tree, fault = MemoryTree(), Fault(Outcome.UNAVAILABLE)
        store = tree.open_session(interpose=lambda _name, _path: fault)
        directory = BookieDirectory(BookieRegistry(store))
        with pytest.raises(MetadataUnavailableError):
            await directory.start()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await directory.close()
        assert tree._watches == {}
        fault = Fault()
        other = BookieRegistry(tree.open_session())
        await directory.start()
        await other.register(bookie("a"))
        await asyncio.sleep(1.0)
        assert directory.all() == [bookie("a")]
        await directory.close()
        await other.deregister()

    run_in_virtual_time(main())


@pytest.mark.parametrize("at", [0.0, 1.0])
def test_periodic_looks_of_clients_are_apart(at: float) -> None:
    """All clients of a cluster start at once, behind an outage, and would look at once for ever."""

    class Draw(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return a + at * (b - a)

    async def main() -> None:
        looks: list[float] = []
        loop = asyncio.get_running_loop()

        def interpose(_name: str, path: str) -> Fault:
            if path == "bookies/writable":
                looks.append(loop.time())
            return Fault()

        store = MemoryTree().open_session(interpose=interpose)
        directory = BookieDirectory(BookieRegistry(store), Draw())
        await directory.start()
        await asyncio.sleep(4 * DIRECTORY_REFRESH_S + 1)
        period_s = DIRECTORY_REFRESH_S * (0.8 + 0.4 * at)
        assert looks == pytest.approx([n * period_s for n in range(len(looks))])
        assert len(looks) == 1 + 4 * DIRECTORY_REFRESH_S // period_s
        await directory.close()

    run_in_virtual_time(main())


def test_store_that_cannot_be_reached_is_asked_once_for_each_change() -> None:
    """All clients of the cluster would ask a store that is down, again and again."""

    async def main() -> None:
        tree, down, asked = MemoryTree(), False, 0

        def interpose(_name: str, _path: str) -> Fault:
            nonlocal asked
            asked += 1
            assert asked < 100, "it asks again and again"
            return Fault(Outcome.UNAVAILABLE if down else Outcome.NORMAL)

        directory = BookieDirectory(BookieRegistry(tree.open_session(interpose=interpose)))
        await directory.start()
        down, asked = True, 0
        other = BookieRegistry(tree.open_session())
        await other.register(bookie("a"))
        await asyncio.sleep(DIRECTORY_REFRESH_S / 2)
        assert asked == 1
        await directory.close()
        await other.deregister()

    run_in_virtual_time(main())
