"""A metadata server that lags does not take back what a reader knows of sealed commits."""

from __future__ import annotations

import pytest

from spark_ledger.stream.catalog import StreamCatalog
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


def test_older_root_does_not_replace_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        path, roots = stream._nodes.manifests_path, list[Versioned[bytes]]()
        for n in range(12):
            await stream.append(table(n))
            await stream._committer.sealer.close()
            roots.append(await ledgers.store.get(path))
        reader = await another(ledgers)[1].open("s")
        newest, get = await reader.sealed_commits(), reader._nodes.store.get
        assert newest >= 10

        for old in roots:

            async def lagging(wanted: str, old: Versioned[bytes] = old) -> Versioned[bytes]:
                return old if wanted == path else await get(wanted)

            monkeypatch.setattr(reader._nodes.store, "get", lagging)
            assert await reader.sealed_commits() == newest
            assert await numbers(reader.read()) == list(range(12))

    run(scenario())
