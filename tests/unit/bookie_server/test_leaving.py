"""A bookie that leaves takes nothing from writers, and what recoveries and repairs copy."""

from __future__ import annotations

import asyncio

from bookie_server.leaving import LeavingWatch
from spark_ledger.metadata.cookies import leaving_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.types import BookieId, BookieStatus, Versioned
from tests.unit.bookie_server.storage.support import Machine, formatted
from tests.unit.virtual_time import run_in_virtual_time

ME = BookieId("b0")


def test_bookie_that_leaves_refuses_writers_and_takes_what_a_recovery_copies() -> None:
    machine = Machine(formatted())
    assert machine.add(7, [0]) is BookieStatus.OK
    machine.bookie.leaving = "it is decommissioned"
    assert machine.add(7, [1]) is BookieStatus.READ_ONLY
    assert machine.add(7, [1], recovery=True) is BookieStatus.OK
    machine.bookie.leaving = ""
    assert machine.add(7, [2]) is BookieStatus.OK


def test_bookie_hears_that_it_leaves_and_that_it_stays() -> None:
    async def test() -> None:
        tree = MemoryTree()
        operator, store = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
        heard: list[bool] = []
        store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        watch = LeavingWatch(store, ME, lambda reason: heard.append(bool(reason)))
        await asyncio.sleep(100)
        assert heard == []
        await operator.create(leaving_path(ME), b"")
        store.interpose = None
        await asyncio.sleep(100)
        assert heard == [True], "an outage is waited out"
        store.interpose = lambda *_: Fault(Outcome.UNAVAILABLE)
        await asyncio.sleep(40)
        assert heard == [True], "and whoever leaves goes on leaving in one"
        store.interpose = None
        await operator.delete(leaving_path(ME))
        await asyncio.sleep(1)
        assert heard == [True, False]
        await watch.stop()

    run_in_virtual_time(test())


def test_bookie_that_is_told_to_leave_while_it_looks_hears_it_at_once() -> None:
    async def test() -> None:
        tree = MemoryTree()
        operator, store = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
        heard: list[bool] = []
        look = store.get

        async def slow(path: str) -> Versioned[bytes]:
            try:
                return await look(path)
            finally:
                await asyncio.sleep(1)  # the answer is on its way

        store.get = slow  # type: ignore[method-assign]
        watch = LeavingWatch(store, ME, lambda reason: heard.append(bool(reason)))
        await asyncio.sleep(0.5)
        await operator.create(leaving_path(ME), b"")
        await asyncio.sleep(2)
        assert heard == [True]
        await watch.stop()

    run_in_virtual_time(test())


def test_watch_that_was_stopped_leaves_nothing_on_the_connection() -> None:
    async def test() -> None:
        tree = MemoryTree()
        operator, store = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
        heard: list[str] = []
        watch = LeavingWatch(store, ME, heard.append)
        await asyncio.sleep(1)
        await watch.stop()
        assert store._watches == []
        await operator.create(leaving_path(ME), b"")
        await asyncio.sleep(100)
        assert heard == []

    run_in_virtual_time(test())
