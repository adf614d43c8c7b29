"""A metadata server that lags does not take back what a reader knows of sealed commits."""

from __future__ import annotations

import contextlib

import pytest

from spark_ledger.errors import ConflictError, CorruptionError, NotFoundError
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.ledgers import LedgerRange
from spark_ledger.stream.manifest.tree import ManifestRoot, empty_root
from spark_ledger.types import Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    numbers,
    run,
    small_manifests,
    table,
)


async def write_and_seal(ledgers: FakeLedgers) -> None:
    """A stream of twelve commits, most of them sealed, in several levels of pages."""
    stream = await StreamCatalog(ledgers).create("s", SCHEMA)
    for n in range(12):
        await stream.append(table(n))
        await stream._committer.sealer.close()


@pytest.mark.parametrize("reconnects", [False, True])
def test_older_root_does_not_replace_a_newer_one(
    reconnects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor behind a new connection, which may be to the server that lags."""
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        path, roots = stream._nodes.manifests_path, list[Versioned[bytes]]()
        for n in range(12):
            await stream.append(table(n))
            await stream._committer.sealer.close()
            roots.append(await ledgers.store.get(path))
        client, catalog = another(ledgers)
        reader = await catalog.open("s")
        newest, get = await reader.sealed_commits(), reader._nodes.store.get
        assert newest >= 10

        for old in roots:

            async def lagging(wanted: str, old: Versioned[bytes] = old) -> Versioned[bytes]:
                return old if wanted == path else await get(wanted)

            monkeypatch.setattr(reader._nodes.store, "get", lagging)
            if reconnects:
                client.store.reconnect()
            assert await reader.sealed_commits() == newest
            assert await numbers(reader.read()) == list(range(12))

    run(scenario())


def test_commits_that_a_restored_root_has_not_sealed_are_looked_for_where_they_were_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store comes back between the look at the root and that at its pages (rule T5)."""
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await write_and_seal(ledgers)
        log = (await another(ledgers)[1].open("s"))._log
        newest = await log.manifests.read_root()
        nodes = await log._stored_nodes.get_all(range(newest.sealed))
        for number, node in nodes.items():
            with contextlib.suppress(ConflictError):  # one of them is there still
                await ledgers.store.create(log._nodes.commit_path(number), node)
        roots = iter([newest])

        async def goes_back(**_options: bool) -> ManifestRoot:
            return next(roots, empty_root(newest.stream_id))

        monkeypatch.setattr(log.manifests, "root", goes_back)
        monkeypatch.setattr(log.manifests, "read_root", goes_back)
        assert await log._stored_nodes.get_all(range(newest.sealed)) == nodes
        roots = iter([newest])
        for number in nodes:
            await ledgers.store.delete(log._nodes.commit_path(number))
        with pytest.raises((NotFoundError, CorruptionError)):
            await log._stored_nodes.get_all(range(newest.sealed))

    run(scenario())


def test_pages_of_a_store_that_went_back_are_read_anew_at_each_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that name others as well: they would lead to leaves of lost commits (rule T5)."""
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await write_and_seal(ledgers)
        client, catalog = another(ledgers)
        manifests, opened = (await catalog.open("s"))._log.manifests, list[int]()
        open_unconfirmed = client.open_unconfirmed

        async def counted(ledger_id: int) -> LedgerRange:
            opened.append(ledger_id)
            return await open_unconfirmed(ledger_id)

        monkeypatch.setattr(client, "open_unconfirmed", counted)

        async def looked() -> list[int]:
            opened.clear()
            root = await manifests.root()
            path = await manifests.path(root, 0)
            await manifests.nodes_of(root, path[-1])
            assert len(path) > 2
            return list(opened)

        first = await looked()
        assert len(first) > 2 and await looked() == []
        manifests.forget_all()
        assert not manifests.memory_bytes
        assert await looked() == first
        client.store.reconnect()  # ids of ledgers may have been given again
        assert await looked() == first and await looked() == []

        async def breaks(ledger_id: int) -> LedgerRange:
            client.store.reconnect()
            await manifests.root()
            return await counted(ledger_id)

        monkeypatch.setattr(client, "open_unconfirmed", breaks)
        manifests.forget_all()
        assert await looked() == first
        monkeypatch.setattr(client, "open_unconfirmed", counted)
        assert await looked() == first, "what was read across a break is not kept"

    run(scenario())
