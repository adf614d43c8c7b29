"""What caches of commits and pages say they take is what they hold, however that came there."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ledger.limits import KIB
from spark_ledger.metadata.memory import MemoryMetadataStore
from spark_ledger.stream.commit import commit_log
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.manifest import store
from spark_ledger.stream.manifest.store import ManifestStore
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.commit.test_commit_log import build
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import run


class Pages:
    """Ledgers whose entries are pages of the size that their number says, in hundreds of bytes."""

    async def open_unconfirmed(self, _ledger_id: int) -> Pages:
        return self

    async def read_batches(self, first: int, last: int, **_options: Any) -> Any:
        for entry in range(first, last + 1):
            await asyncio.sleep(0)
            yield [SimpleNamespace(payload=bytes(100 * entry))]


def test_pages_that_several_read_at_once_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAGES_KEPT_BYTES_MAX", 20 * KIB)
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)

    async def scenario() -> None:
        ledgers: Any = Pages()
        nodes: Any = SimpleNamespace(name="s", store=MemoryMetadataStore())
        pages = ManifestStore(ledgers, nodes, "id")

        async def read(ledger: int, entry: int) -> None:
            pointer: Any = SimpleNamespace(ledger_id=ledger, entry_id=entry)
            assert len((await pages._read(pointer))[1]) == 100 * entry

        for _ in range(60):
            entries = draw.choices(range(40), k=3)
            await asyncio.gather(*(read(draw.randrange(2), n) for n in 2 * entries))
            if draw.random() < 0.2:
                pages.forget([LedgerId(draw.randrange(2))])
            held = sum(max(len(each), KIB) for each in pages._pages.values())
            assert pages.memory_bytes == held <= 20 * KIB, f"seed {seed}"
        assert len(pages._pages) > 2, f"seed {seed}"

    run(scenario())


def test_commits_of_several_sizes_count_as_long_as_they_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the cache would grow, or end up with one commit, after a day of large and small ones."""

    async def scenario() -> None:
        ledgers = FakeLedgers()
        _, commits = await build(ledgers, [(1 + 9 * (n % 3 == 0), 1) for n in range(30)])
        sizes = [each.memory_bytes for each in commits]
        most = 2 * max(sizes)
        assert max(sizes) > 2 * min(sizes)
        monkeypatch.setattr(commit_log, "COMMITS_KEPT_BYTES_MAX", most)
        log = CommitLog(ledgers, StreamNodes(ledgers.store, "s"), "id")
        for number, commit in enumerate(commits):
            log.remember(commit)
            kept, total = [], 0
            for size in reversed(sizes[: number + 1]):
                if total + size > most:
                    break
                kept.append(size)
                total += size
            assert list(log._cache) == list(range(number + 1 - len(kept), number + 1))
            assert log.memory_bytes == total

    run(scenario())
