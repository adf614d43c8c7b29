"""What all stores share: subscriptions from any thread, and the sizes of requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.errors import ConfigurationError, ConflictError
from spark_ledger.limits.entries import METADATA_REQUEST_BYTES_MAX
from spark_ledger.metadata.base import (
    Create,
    Delete,
    Put,
    Subscription,
    check_operations,
    check_path,
)
from spark_ledger.metadata.memory import MemoryMetadataStore


def test_notification_during_the_callback_calls_again() -> None:
    """The callback may have read before that change."""

    async def main() -> None:
        calls: list[int] = []

        def callback() -> None:
            calls.append(1)
            if len(calls) < 3:
                subscription.notify()

        subscription = Subscription(callback, lambda gone: None)
        subscription.notify()
        subscription.notify()
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(calls) == 3

    asyncio.run(main())


def test_subscription_cancelled_before_its_call_calls_nobody() -> None:
    async def main() -> None:
        calls: list[int] = []
        gone: list[object] = []
        subscription = Subscription(lambda: calls.append(1), gone.append)
        subscription.notify()
        subscription.cancel()
        subscription.cancel()
        subscription.notify()
        await asyncio.sleep(0.001)
        assert calls == [] and gone == [subscription]

    asyncio.run(main())


def test_notify_of_a_loop_that_ends_just_now_is_quiet() -> None:
    """The thread that reports it goes on to tell the others."""

    async def main() -> None:
        subscription = Subscription(lambda: None, lambda gone: None)

        def closed(_call: object) -> Any:
            raise RuntimeError("Event loop is closed")

        subscription._loop = SimpleNamespace(  # type: ignore[assignment]
            is_closed=lambda: False, call_soon_threadsafe=closed
        )
        subscription.notify()

    asyncio.run(main())


def test_parts_of_a_transaction_are_too_large_together() -> None:
    half = bytes(METADATA_REQUEST_BYTES_MAX // 2)
    check_operations([Create("a", half), Put("b", half, 0), Delete("c")])
    with pytest.raises(ConfigurationError, match="in one request"):
        check_operations([Create("a", half), Put("b", half, 0), Put("c", b"xx", 0)])


@pytest.mark.parametrize("failing", range(4))
def test_transaction_in_memory_is_all_or_nothing(failing: int) -> None:
    async def main() -> None:
        store = MemoryMetadataStore()
        for name in ("a", "b", "c"):
            await store.create(name, b"0")
        parts: list[Any] = [Put("a", b"1", 0), Create("n", b"1"), Delete("b"), Put("c", b"1", 0)]
        parts.insert(failing, Put("a", b"2", 7))
        with pytest.raises(ConflictError):
            await store.transaction(parts)
        assert await store.children("n") == []
        assert [(await store.get(name)).value for name in ("a", "b", "c")] == [b"0"] * 3
        assert {(await store.get(name)).version for name in ("a", "b", "c")} == {0}

    asyncio.run(main())


def test_subscription_that_is_closed_is_called_back_once_more_and_is_over() -> None:
    async def main() -> None:
        calls: list[int] = []
        gone: list[object] = []
        subscription = Subscription(lambda: calls.append(1), gone.append)
        subscription.close()
        subscription.close()
        subscription.notify()
        subscription.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert calls == [1] and gone == [subscription]

    asyncio.run(main())


@pytest.mark.parametrize(
    "path", ["", "/", "a/", "/a", "a//b", ".", "..", "a/.", "a/../b", "a\nb", "a/\x00", "\x7f/b"]
)
def test_bad_path_is_refused_alone_and_anywhere_in_a_transaction(path: str) -> None:
    with pytest.raises(ConfigurationError, match="metadata path"):
        check_path(path)
    for operations in ([Delete(path), Delete("a")], [Delete("a"), Delete(path)]):
        with pytest.raises(ConfigurationError, match="metadata path"):
            check_operations(operations)


def test_path_of_any_printable_names_is_itself() -> None:
    for path in ("a", "a/b/c", "...", "a b/ä:1", "a/..b"):
        assert check_path(path) == path
