"""A writer whose ledger went back or away with a restored ZooKeeper acknowledges nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.errors import (
    LedgerError,
    MetadataRestoredError,
    NoSuchLedgerError,
    NotFoundError,
)
from spark_ledger.metadata.codec import encode_ledger
from spark_ledger.metadata.ledgers import LedgerStore, ledger_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore, Outcome
from spark_ledger.types import INCARNATION_BYTES, Versioned
from tests.unit.spark_ledger.client.world import World, run_virtually

SOON_S = 5.0


def store_of(client: LedgerClient) -> MemoryMetadataStore:
    assert isinstance(client.store, MemoryMetadataStore)
    return client.store


async def delete(world: World, writer: LedgerWriter) -> None:
    """What a restored store does with a ledger that came after the backup."""
    await LedgerStore(MemoryMetadataStore(world.tree)).delete(writer.ledger_id)


async def replace(world: World, writer: LedgerWriter) -> None:
    """The same id, given again after a restore."""
    other, path = MemoryMetadataStore(world.tree), ledger_path(writer.ledger_id)
    await other.delete(path)
    metadata = writer.metadata.with_changes(incarnation=bytes(INCARNATION_BYTES))
    await other.create(path, encode_ledger(metadata))


async def ends_with(writer: LedgerWriter, kind: type[LedgerError], match: str) -> None:
    """Soon no append is acknowledged any more."""
    loop = asyncio.get_running_loop()
    until = loop.time() + SOON_S
    with pytest.raises(kind, match=match):
        while loop.time() < until:
            await writer.append(b"more")
            await asyncio.sleep(0.05)
    with pytest.raises(kind, match=match):
        await writer.close()
    assert writer.is_left_open is (kind is NoSuchLedgerError)


@pytest.mark.parametrize("loses_session", [True, False])
@pytest.mark.parametrize(
    ("change", "says", "kind", "match"),
    [
        (delete, "", NoSuchLedgerError, "does not exist"),
        (
            delete,
            "it is older: run `ledger cluster restored`",
            MetadataRestoredError,
            "it is older",
        ),
        (replace, "", MetadataRestoredError, "`ledger cluster restored`"),
    ],
)
def test_writer_whose_ledger_is_not_there_behind_a_new_connection_ends(
    change: Callable[[World, LedgerWriter], Awaitable[None]],
    says: str,
    kind: type[LedgerError],
    match: str,
    loses_session: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer, other = await client.create_ledger(), await client.create_ledger()
        await writer.append(b"before")
        await change(world, writer)
        await writer.append(b"nobody looks without a new connection")
        monkeypatch.setattr(MemoryMetadataStore, "restored", property(lambda _store: says))
        store = store_of(client)
        if loses_session:
            store.expire()
        else:
            store.reconnect()
        await ends_with(writer, kind, match)
        await other.append(b"that of another ledger goes on")
        await other.close()

    run_virtually(test)


def test_writer_whose_ledger_is_there_goes_on_behind_each_connection() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer = await client.create_ledger()
        for number in range(3):
            await writer.append(b"%d" % number)
            store_of(client).reconnect()
            await asyncio.sleep(1.0)
        await delete(world, writer)
        store_of(client).reconnect()
        await ends_with(writer, NoSuchLedgerError, "does not exist")

    run_virtually(test)


def test_writer_is_looked_after_once_the_store_answers_again() -> None:
    """And one that a lagging server does not know yet is looked for again."""

    async def test(world: World) -> None:
        client = await world.client()
        gone, there = await client.create_ledger(), await client.create_ledger()
        await delete(world, gone)
        store = store_of(client)
        fails = [Fault(Outcome.UNAVAILABLE)] * 5

        def interpose(name: str, _path: str) -> Fault:
            return fails.pop() if fails and name == "get" else Fault()

        store.interpose = interpose
        store.reconnect()
        await ends_with(gone, NoSuchLedgerError, "does not exist")
        assert not fails
        await there.append(b"x")
        await there.close()

    run_virtually(test)


def test_ledger_that_can_never_be_read_is_looked_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        client = await world.client()
        writer, asked = await client.create_ledger(), list[str]()
        store, path = store_of(client), ledger_path(writer.ledger_id)
        await MemoryMetadataStore(world.tree).put(path, b"junk", 0)

        def note(_name: str, of: str) -> Fault:
            asked.append(of)
            return Fault()

        store.interpose = note
        store.reconnect()
        await asyncio.sleep(10.0)
        assert asked.count(path) == 1 and "cannot be looked at" in caplog.text
        await writer.append(b"it is written on")

    run_virtually(test)


def test_server_that_lags_ends_no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reconnect it may not know a new ledger yet."""

    async def test(world: World) -> None:
        client = await world.client()
        writer, store = await client.create_ledger(), store_of(client)
        path, get, asked = ledger_path(writer.ledger_id), store.get, 0

        async def get_late(wanted: str) -> Versioned[bytes]:
            nonlocal asked
            if wanted == path:
                asked += 1
                raise NotFoundError(f"metadata get of {wanted!r}: not here yet")
            return await get(wanted)

        monkeypatch.setattr(store, "get", get_late)
        store.reconnect()
        await asyncio.sleep(1.0)
        assert asked
        await writer.append(b"x")
        await writer.close()

    run_virtually(test)


def test_connection_that_was_lost_while_the_ledger_was_made_counts() -> None:
    async def test(world: World) -> None:
        client = await world.client()
        store = store_of(client)
        kept = await client.create_ledger()

        def interpose(name: str, path: str) -> Fault:
            if name == "transaction" and "ledgers" in path:
                store.interpose = None
                asyncio.get_running_loop().call_later(0.5, store.reconnect)
                return Fault(delay_s=1.0)
            return Fault()

        store.interpose = interpose
        asked: list[str] = []
        making = asyncio.ensure_future(client.create_ledger())
        await asyncio.sleep(0.9)

        def note(name: str, path: str) -> Fault:
            asked.append(path)
            return Fault()

        store.interpose = note
        writer = await making
        await asyncio.sleep(1.0)
        assert ledger_path(writer.ledger_id) in asked
        await writer.close()
        await kept.close()

    run_virtually(test)


def test_client_that_is_closed_while_it_looks_leaves_nothing_behind() -> None:
    async def test(world: World) -> None:
        before = asyncio.all_tasks()
        client = await world.client()
        writer = await client.create_ledger()
        store = store_of(client)
        store.interpose = lambda name, _path: Fault(delay_s=60.0 if name == "get" else 0.0)
        store.reconnect()
        await asyncio.sleep(1.0)
        await client.close()
        assert asyncio.all_tasks() == before and writer.is_closed

    run_virtually(test)
