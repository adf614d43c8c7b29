"""Small changes of the metadata, read, changed and written: with trouble at each operation.

A reply that is lost once, and somebody who writes at the same time, are no errors. What fails can
be done again, with the same result.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

from spark_ledger.errors import MetadataUnavailableError, NotFoundError, OutcomeUnknownError
from spark_ledger.limits.metadata import METADATA_ATTEMPTS
from spark_ledger.metadata.base import Put
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import ensure_cluster
from spark_ledger.metadata.collection import (
    CollectionOrder,
    order_path,
    read_order,
    write_order,
)
from spark_ledger.metadata.cookies import (
    BookieCookie,
    accept_newer_starts,
    cookie_path,
    decode_cookie,
    encode_cookie,
)
from spark_ledger.metadata.deletions import give_sign, read_sign
from spark_ledger.metadata.json_nodes import read_or_renew
from spark_ledger.metadata.ledger_ids import LedgerIds, next_counted, raise_counter
from spark_ledger.metadata.ledgers import LedgerStore
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, MemoryTree, Outcome
from spark_ledger.types import BookieId, LedgerId
from tests.unit.cut_off import cut_off_at_each_wait
from tests.unit.virtual_time import run_in_virtual_time

B = BookieId("b")
COOKIE = BookieCookie("c", "b", "/j", ("/l",), "i")
Change = Callable[[MemoryMetadataStore], Awaitable[Any]]


async def order(store: MemoryMetadataStore) -> None:
    await write_order(store, B, CollectionOrder(token="t"))
    found = await read_order(store, B)
    assert found is not None and found.value.token == "t"


async def accept(store: MemoryMetadataStore) -> None:
    assert await accept_newer_starts(store) == [B]
    assert decode_cookie(B, (await store.get(cookie_path(B))).value).accepts_newer


async def join(store: MemoryMetadataStore) -> None:
    """Of another bookie."""
    registry, data = BookieRegistry(store), encode_cookie(COOKIE)
    await registry.create_cookie(BookieId("b2"), data)
    assert (await store.get(cookie_path(BookieId("b2")))).value == data


async def count(store: MemoryMetadataStore) -> None:
    """Twice: the counter is made, and raised."""
    for least in (10, 20):
        await raise_counter(store, least)
        assert await next_counted(store) >= least
        assert await raise_counter(store, least) == (await next_counted(store),) * 2


async def take(store: MemoryMetadataStore) -> None:
    before = await next_counted(store)
    taken = await LedgerIds(store, random.Random(1)).take()
    assert before <= taken < await next_counted(store)


async def cluster(store: MemoryMetadataStore) -> None:
    assert await ensure_cluster(store) == await ensure_cluster(store)


async def sign(store: MemoryMetadataStore) -> None:
    before = await read_sign(store)
    await give_sign(store)
    assert await read_sign(store) > before


async def delete(store: MemoryMetadataStore) -> None:
    await LedgerStore(store).delete(LedgerId(7))


CHANGES: list[Change] = [order, accept, join, count, take, cluster, sign, delete]
ONCE_TRIED = (sign, join)
"""Nobody tries these again: nothing depends on a sign, and who formats a bookie is told."""


async def prepared() -> MemoryTree:
    tree = MemoryTree()
    store = tree.open_session()
    await store.create(cookie_path(B), encode_cookie(COOKIE))
    return tree


def is_write(name: str) -> bool:
    return name in ("create", "put", "delete")


@pytest.mark.parametrize("outcome", [Outcome.LOST_REQUEST, Outcome.LOST_REPLY, Outcome.UNAVAILABLE])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_that_meets_trouble_once_anywhere_is_made(change: Change, outcome: Outcome) -> None:
    async def meets(at: int) -> bool:
        operations = 0

        def interpose(name: str, _path: str) -> Fault:
            nonlocal operations
            operations += 1
            if operations != at or not (is_write(name) or outcome is Outcome.UNAVAILABLE):
                return Fault()
            return Fault(outcome)

        store = (await prepared()).open_session(interpose=interpose)
        try:
            await change(store)
        except (MetadataUnavailableError, OutcomeUnknownError):
            assert outcome is Outcome.UNAVAILABLE or change in ONCE_TRIED
            assert operations <= at + 1, "it ends at once, or has looked"
            await change(store)
        return operations >= at

    async def main() -> None:
        assert await cut_off_at_each_wait(meets)

    run_in_virtual_time(main())


@pytest.mark.parametrize("change", [order, accept, count, take], ids=lambda change: change.__name__)
@pytest.mark.parametrize("times", [1, METADATA_ATTEMPTS - 1])
def test_change_of_what_somebody_else_changes_meanwhile_is_made(change: Change, times: int) -> None:
    async def main() -> None:
        tree = await prepared()
        await change(tree.open_session())
        await tree.open_session().put(
            cookie_path(B), encode_cookie(COOKIE), 1 if change is accept else 0
        )
        left = times

        def interpose(name: str, path: str) -> Fault:
            nonlocal left
            if name == "put" and left:
                left -= 1
                found = tree.get(path)
                tree.apply([Put(path, found.value, found.version)])
            return Fault()

        store = tree.open_session(interpose=interpose)
        if change is count:
            await raise_counter(store, 100)
            assert await next_counted(store) == 100
        else:
            await change(store)
        assert not left

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    "change",
    [change for change in CHANGES if change not in ONCE_TRIED],
    ids=lambda change: change.__name__,
)
def test_change_without_any_reply_is_unknown_after_so_many_attempts(change: Change) -> None:
    async def main() -> None:
        tree, writes, lost = await prepared(), 0, True

        def interpose(name: str, _path: str) -> Fault:
            nonlocal writes
            writes += is_write(name)
            return Fault(Outcome.LOST_REQUEST if lost and is_write(name) else Outcome.NORMAL)

        store = tree.open_session(interpose=interpose)
        with pytest.raises(OutcomeUnknownError):
            await change(store)
        assert writes == METADATA_ATTEMPTS
        lost = False
        await change(store)

    run_in_virtual_time(main())


def test_server_that_lags_neither_hides_nor_undoes_a_change() -> None:
    """What is changed is read behind a sync, and so is what must be of now."""

    async def main() -> None:
        tree = await prepared()
        for prepare in (order, count):
            await prepare(tree.open_session())
        store = tree.open_session()

        async def lags(path: str) -> NoReturn:
            raise NotFoundError(path)

        store.get = lags  # type: ignore[method-assign]
        await write_order(store, B, CollectionOrder(token="another"))
        found = await read_order(store, B)
        assert found is not None and (found.value.token, found.version) == ("another", 1)
        empty = CollectionOrder(token="empty")
        assert await read_or_renew(store, empty, order_path(B)) == found
        assert await accept_newer_starts(store) == [B]
        assert decode_cookie(B, tree.get(cookie_path(B)).value).accepts_newer
        assert await raise_counter(store, 30) == (20, 30)
        assert await next_counted(store) == 30

    run_in_virtual_time(main())
