"""What only the memory store does: expiry on demand and interposed faults."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.errors import (
    LedgerClosedError,
    MetadataUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from spark_ledger.metadata.base import Check, Put
from spark_ledger.metadata.memory import Fault, MemoryTree, Outcome
from spark_ledger.types import Versioned


def test_expire_removes_ephemeral_nodes_and_calls_back() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store, other = tree.open_session(), tree.open_session()
        lost: list[str] = []
        store.on_session_lost(lambda: lost.append("session"))
        store.watch("unrelated", lambda: lost.append("watch"))
        other.on_session_lost(lambda: lost.append("other"))
        await store.create("e", b"", ephemeral=True)
        await store.create("p", b"")
        store.expire()
        await asyncio.sleep(0)
        assert sorted(lost) == ["session", "watch"]
        assert await other.get("p") == Versioned(b"", 0)
        with pytest.raises(NotFoundError):
            await other.get("e")
        await store.create("e", b"new", ephemeral=True)  # the new session works
        await store.close()
        with pytest.raises(NotFoundError):
            await other.get("e")
        with pytest.raises(LedgerClosedError, match="connect again"):
            await store.get("p")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("outcome", "error", "happened"),
    [
        (Outcome.UNAVAILABLE, MetadataUnavailableError, False),
        (Outcome.LOST_REQUEST, OutcomeUnknownError, False),
        (Outcome.LOST_REPLY, OutcomeUnknownError, True),
    ],
)
def test_interposed_faults(outcome: Outcome, error: type[Exception], happened: bool) -> None:
    async def main() -> None:
        tree = MemoryTree()
        asked: list[tuple[str, str]] = []

        def interpose(name: str, path: str) -> Fault:
            asked.append((name, path))
            return Fault(outcome if name == "put" else Outcome.NORMAL)

        store = tree.open_session(interpose=interpose)
        await store.create("a", b"0")
        with pytest.raises(error, match="'a'"):
            await store.put("a", b"1", 0)
        assert await store.get("a") == (Versioned(b"1", 1) if happened else Versioned(b"0", 0))
        assert asked == [("create", "a"), ("put", "a"), ("get", "a")]

    asyncio.run(main())


def test_a_delayed_operation_happens_late() -> None:
    async def main() -> None:
        tree = MemoryTree()
        slow = tree.open_session(interpose=lambda _name, _path: Fault(delay_s=0.05))
        quick = tree.open_session()
        task = asyncio.create_task(slow.create("a", b"slow"))
        await quick.create("a", b"quick")
        with pytest.raises(Exception, match="exists already"):
            await task

    asyncio.run(main())


def test_a_failed_transaction_wakes_no_watch() -> None:
    async def main() -> None:
        store = MemoryTree().open_session()
        await store.create("a", b"")
        calls: list[int] = []
        store.watch("a", lambda: calls.append(1))
        with pytest.raises(NotFoundError):
            await store.transaction([Put("a", b"1", 0), Check("none", 0)])
        await asyncio.sleep(0)
        assert calls == []

    asyncio.run(main())


def test_watch_changed_twice_before_its_callback_calls_once() -> None:
    async def main() -> None:
        tree = MemoryTree()
        store = tree.open_session()
        calls: list[int] = []
        store.watch("a", lambda: calls.append(1))
        await asyncio.gather(*(store.create(f"a/{n}", b"") for n in range(10)))
        await asyncio.sleep(0)
        assert len(calls) == 1

    asyncio.run(main())
