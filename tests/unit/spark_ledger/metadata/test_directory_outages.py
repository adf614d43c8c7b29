"""The live view of the bookies while the store cannot be reached."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.limits.metadata import DIRECTORY_REFRESH_S
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.directory import BookieDirectory
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from tests.unit.spark_ledger.metadata.test_directory import bookie
from tests.unit.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.leaves_open(
    "BookieRegistry._keep", reason="the process of a bookie goes on"
)


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
