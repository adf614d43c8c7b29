"""Pages of manifests in memory: as many as their bytes allow, those that were used last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.limits import KIB
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.manifest import store
from spark_ledger.stream.manifest.store import ManifestStore
from tests.unit.spark_ledger.stream.world import run


class Ledger:
    """A ledger with a page in each entry; it counts what is read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reads: list[int] = []

    async def open_unconfirmed(self, _ledger_id: int) -> Ledger:
        return self

    async def read_batches(self, first: int, _last: int, **_options: Any) -> Any:
        self.reads.append(first)
        yield [SimpleNamespace(payload=bytes(self.size))]


def test_pages_kept_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAGES_KEPT_BYTES_MAX", 10 * KIB)

    async def scenario() -> None:
        ledger = Ledger(2 * KIB)
        ledgers: Any = ledger
        nodes: Any = SimpleNamespace(name="s", store=MemoryMetadataStore())
        pages = ManifestStore(ledgers, nodes, "id")

        async def read(entry: int) -> None:
            pointer: Any = SimpleNamespace(ledger_id=1, entry_id=entry)
            assert len((await pages._read(pointer))[1]) == ledger.size

        for entry in range(5):
            await read(entry)
        await read(0)
        await read(5)
        assert pages.memory_bytes == 10 * KIB
        await read(0)
        await read(1)
        assert ledger.reads == [0, 1, 2, 3, 4, 5, 1]
        ledger.size = 100
        for entry in range(100, 200):
            await read(entry)
        assert pages.memory_bytes == 10 * KIB, "a small page counts as one of a kilobyte"

    run(scenario())
