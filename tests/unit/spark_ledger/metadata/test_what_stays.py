"""What never goes back, and what is damaged and stands in nobody's way."""

from __future__ import annotations

import asyncio
import random
from typing import NoReturn

import pytest

from spark_ledger.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    NotFoundError,
)
from spark_ledger.limits.metadata import LEDGER_ID_END
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import (
    CLUSTER_PATH,
    ensure_cluster,
    read_cluster_node,
    set_placement,
)
from spark_ledger.metadata.cookies import (
    BookieCookie,
    accept_newer_starts,
    cookie_path,
    decode_cookie,
    encode_cookie,
)
from spark_ledger.metadata.json_nodes import encode_node
from spark_ledger.metadata.ledger_ids import COUNTER_PATH, LedgerIds, next_counted, raise_counter
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import BookieId, PlacementPolicy
from tests.unit.spark_ledger.metadata.late_replies import LateReplies, once


@pytest.mark.parametrize(
    ("at_least", "expected"), [(0, 50), (49, 50), (50, 50), (51, 51), (9_000, 9_000)]
)
def test_counter_of_ids_is_raised_and_never_lowered(at_least: int, expected: int) -> None:
    """An id that is given twice would name the entries of another ledger."""

    async def test() -> None:
        store = MemoryMetadataStore(MemoryTree())
        assert await raise_counter(store, 50) == (1, 50)
        before = (await store.get(COUNTER_PATH)).version
        assert await raise_counter(store, at_least) == (50, expected)
        assert await next_counted(store) == expected
        written = (await store.get(COUNTER_PATH)).version - before
        assert written == (expected > 50)
        assert await LedgerIds(store, random.Random(1)).take() == expected

    asyncio.run(test())


def test_ids_end_where_numbers_of_64_bits_do_and_say_so() -> None:
    """A ledger above them could be made, and its first entry could not be written."""

    async def test() -> None:
        store = MemoryMetadataStore(MemoryTree())
        await raise_counter(store, 50)
        with pytest.raises(ConfigurationError, match=r"^no ledger ids are left: .*ledger-id-count"):
            await raise_counter(store, LEDGER_ID_END + 1)
        assert await next_counted(store) == 50
        await raise_counter(store, LEDGER_ID_END - 1)
        with pytest.raises(ConfigurationError, match="no ledger ids are left"):
            await LedgerIds(store, random.Random(1)).take()
        assert await next_counted(store) == LEDGER_ID_END - 1

    asyncio.run(test())


def test_counter_of_ids_is_raised_over_a_server_that_lags() -> None:
    """It would be read and refused again and again until that one has caught up."""

    async def test() -> None:
        store = MemoryMetadataStore(MemoryTree())
        await raise_counter(store, 50)

        async def lags(path: str) -> NoReturn:
            raise NotFoundError(path)

        store.get = lags  # type: ignore[method-assign]
        async with asyncio.timeout(5):
            assert await raise_counter(store, 70) == (50, 70)

    asyncio.run(test())


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 5_000, b"{}", b'{"cluster_id": 7}'])
def test_cookie_that_cannot_be_read_is_an_error_that_names_the_bookie(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="bookie b7"):
        decode_cookie(BookieId("b7"), data)

    async def test() -> None:
        store = MemoryMetadataStore(MemoryTree())
        await store.create("bookies", b"")
        await store.create("bookies/cookies", b"")
        await store.create(cookie_path(BookieId("b7")), data)
        with pytest.raises(CorruptionError, match="bookie b7"):
            await accept_newer_starts(store)

    asyncio.run(test())


@pytest.mark.parametrize("data", [b"{", b'{"format_version":99}', None])
def test_placement_policy_that_cannot_be_read_stays_as_it_was(data: bytes | None) -> None:
    """A client that went without it would place copies anywhere."""

    async def test() -> None:
        store, before = MemoryMetadataStore(MemoryTree()), PlacementPolicy(min_racks=3)
        registry = BookieRegistry(store)
        assert await registry.placement(before) == before, "there is no cluster yet"
        await ensure_cluster(store)
        wanted = PlacementPolicy(min_racks=2, strict=True)
        await set_placement(store, wanted)
        assert await registry.placement(before) == wanted
        node = await store.get(CLUSTER_PATH)
        if data is None:
            await store.delete(CLUSTER_PATH)
        else:
            await store.put(CLUSTER_PATH, data, node.version)
        assert await registry.placement(before) == before

    asyncio.run(test())


def test_all_bookies_may_start_once_after_a_restore_also_where_some_may_already() -> None:
    async def test() -> None:
        store = MemoryMetadataStore(MemoryTree())
        ids = [BookieId(name) for name in ("b1", "b2", "b3")]
        assert await accept_newer_starts(store) == []
        for each in ids:
            cookie = BookieCookie(
                "c", each, f"/{each}", ("/l",), f"i-{each}", accepts_newer=each == "b2"
            )
            await store.create(cookie_path(each), encode_cookie(cookie))
        children = store.children

        async def lags(path: str) -> list[str]:
            return [*await children(path), "gone"]

        store.children = lags  # type: ignore[method-assign]
        for _ in range(2):
            assert await accept_newer_starts(store) == ids
            for each in ids:
                found = decode_cookie(each, (await store.get(cookie_path(each))).value)
                assert found == BookieCookie(
                    "c", each, f"/{each}", ("/l",), f"i-{each}", accepts_newer=True
                )

    asyncio.run(test())


def test_placement_policy_over_one_that_was_set_meanwhile_is_a_conflict() -> None:
    """Who set the other one would think that it holds."""

    async def test() -> None:
        tree = MemoryTree()
        store, other = LateReplies(tree), tree.open_session()
        await ensure_cluster(other)
        theirs = encode_node(
            (await read_cluster_node(other)).value.with_policy(PlacementPolicy(min_racks=3))
        )
        store.on_way = once("get", CLUSTER_PATH, lambda: tree.apply([Put(CLUSTER_PATH, theirs, 0)]))
        with pytest.raises(ConflictError):
            await set_placement(store, PlacementPolicy(min_racks=2))
        assert (await read_cluster_node(other)).value.policy == PlacementPolicy(min_racks=3)
        await set_placement(store, PlacementPolicy(min_racks=2))
        assert (await read_cluster_node(other)).value.policy == PlacementPolicy(min_racks=2)

    asyncio.run(test())
