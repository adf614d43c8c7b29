"""How many ledgers a stream has, each counted once, and what an audit takes for named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import committer
from spark_ledger.stream.model import Retention
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.retention.names import LedgerCounts, count_ledgers, names_of
from spark_ledger.stream.stream import Stream
from spark_ledger.types import LedgerId
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.packs.test_packs import optimize, write
from tests.unit.spark_ledger.stream.packs.world import ClosedDeletions
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    Deletions,
    another,
    loose,
    root_of,
    run,
    small_manifests,
)


async def naming(ledgers: FakeLedgers, *commits: Sequence[int]) -> Stream:
    """A stream whose commits have a row in each of these ledgers."""
    stream = await StreamCatalog(ledgers).create("s", SCHEMA)
    for each in commits:
        await stream.commit_segments([loose(ledger_id=ledger_id) for ledger_id in each])
    return stream


@pytest.mark.parametrize(
    ("commits", "earliest", "first_kept", "counts"),
    [
        # The first is named by dropped and by held commits, the second by held and by kept ones.
        ([[1], [1, 2], [2, 3], [3]], 1, 2, LedgerCounts(live=3, held=1, reclaimable=0)),
        ([[1], [2], [3]], 1, 2, LedgerCounts(live=2, held=1, reclaimable=1)),
        ([[1], [2], [3]], 0, 0, LedgerCounts(live=3, held=0, reclaimable=0)),
        # The limits would keep what a truncation has dropped.
        ([[1], [2], [3]], 2, 0, LedgerCounts(live=1, held=0, reclaimable=2)),
        ([[1], [2], [3]], 1, 1, LedgerCounts(live=2, held=0, reclaimable=1)),
        ([[1], [1], [1]], 2, 2, LedgerCounts(live=1, held=0, reclaimable=0)),
        ([[1], [2]], 2, 2, LedgerCounts(live=0, held=0, reclaimable=2)),
    ],
)
def test_ledger_counts_once_for_the_commit_that_needs_it_most(
    commits: list[list[int]], earliest: int, first_kept: int, counts: LedgerCounts
) -> None:
    async def scenario() -> None:
        stream = await naming(FakeLedgers(), *commits)
        if earliest:
            dropped = sum(len(each) for each in commits[:earliest])
            await stream.retention.truncate((dropped,))
        head = await stream._watch.read()
        assert head.earliest_commit == earliest
        assert await count_ledgers(stream._nodes, stream._log, head, first_kept) == counts

    run(scenario())


def test_ledgers_of_lists_and_pages_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=9)
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await naming(ledgers, [7, 7], [8], [7], [8])
        await stream._committer.sealer.close()
        head = await stream.head()
        (list_ledger,) = [s.pointer.ledger_id for s in stream._log._cache.values() if s.pointer]
        (page,) = root_of(ledgers).ledgers()
        assert set(ledgers.ledgers) == {list_ledger, page}
        counts = await count_ledgers(stream._nodes, stream._log, head, 0)
        assert counts == LedgerCounts(live=4, held=0, reclaimable=0)
        await stream.retention.truncate((2,))
        head = await stream._watch.read()
        counts = await count_ledgers(stream._nodes, stream._log, head, 1)
        assert counts == LedgerCounts(live=3, held=0, reclaimable=1), "that of the list"

    run(scenario())


def test_held_ledgers_are_those_that_the_limits_would_drop() -> None:
    async def scenario() -> None:
        stream = await naming(FakeLedgers(), [1], [2], [3])
        await stream.retention.hold("slow", (1,), for_s=60)
        await stream.retention.set_limits(Retention(rows=1))
        await stream.retention.apply(stream.retention._clock_ms())
        assert await stream.retention.ledgers() == LedgerCounts(live=2, held=1, reclaimable=1)

    run(scenario())


def test_page_that_was_made_while_an_audit_reads_commits_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the audit would delete it, and the commits in it with it (rule K9)."""
    small_manifests(monkeypatch, leaf=2, fan_out=9, kept=0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await naming(ledgers, [1])
        reader = await another(ledgers)[1].open("s")
        parts = names_of(reader._nodes, reader._log, await reader.head())
        found = set((await anext(parts)).ledgers)
        for n in range(3):
            await stream.commit_segments([loose(ledger_id=n + 2)])
            await stream._committer.sealer.close()
        pages = root_of(ledgers).ledgers()
        assert len(pages) == 2
        async for part in parts:
            found |= part.ledgers
        assert found == {LedgerId(1), *pages}

    run(scenario())


def test_commits_that_were_given_back_while_an_audit_reads_hide_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_manifests(monkeypatch, leaf=2, fan_out=9)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await naming(ledgers, [1], [2], [3], [4], [5], [6])
        await stream._committer.sealer.close()
        reader = await another(ledgers)[1].open("s")
        before = await reader.head()
        await stream.retention.truncate((4,))
        reclaimer = stream.retention.reclaimer(Deletions(ledgers), LiveNames())
        while not (await reclaimer.step(4)).is_done:
            pass
        found: set[LedgerId] = set()
        async for part in names_of(reader._nodes, reader._log, before):
            found |= part.ledgers
        assert found >= {5, 6, *root_of(ledgers).ledgers()}

    run(scenario())


def test_former_ledgers_that_wait_are_those_of_commits_that_are_not_given_back() -> None:
    async def scenario() -> None:
        ledgers = FakeLedgers()
        await ledgers.store.create("keeper", b"")
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        await write(stream, range(2))
        await write(stream, range(2, 4))
        await optimize(stream)
        counts = [await stream.retention.ledgers()]
        await stream.retention.truncate((4,))
        counts.append(await stream.retention.ledgers())
        reclaimer = stream.retention.reclaimer(ClosedDeletions(ledgers), LiveNames())
        assert (await reclaimer.step(2)).is_done
        counts.append(await stream.retention.ledgers())
        assert [(each.live, each.reclaimable) for each in counts] == [(1, 4), (1, 4), (1, 2)]
        await reclaimer.free_packed()
        assert await stream.retention.ledgers() == LedgerCounts(1, 0, 0)

    run(scenario())
