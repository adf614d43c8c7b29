"""What a client knows of named ledgers: those named last, and none after another connection."""

from __future__ import annotations

import asyncio

import pytest

from spark_ledger.metadata import naming
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import LedgerId


def ids(*numbers: int) -> list[LedgerId]:
    return [LedgerId(number) for number in numbers]


def test_named_ledgers_kept_are_those_named_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "NAMED_LEDGERS_KEPT", 3)

    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        known = naming.Naming(store)
        known.named(ids(1, 2))
        known.named(ids(3, 4, 5))
        assert known.unsettled(ids(5, 4, 3, 2, 1)) == ids(1, 2)
        store.reconnect()
        assert known.unsettled(ids(5, 4)) == ids(4, 5), "the ids may be others' ledgers now"

    asyncio.run(main())
