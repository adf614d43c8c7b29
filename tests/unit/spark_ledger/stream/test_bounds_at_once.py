"""How much a stream asks for at once: looks, reads and deletions are bounded however long it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from spark_ledger.errors import ConflictError, DataLossError, NotFoundError, RetryableError
from spark_ledger.metadata.base import Check, Delete, Operation
from spark_ledger.stream import catalog, reader
from spark_ledger.stream import stream as stream_module
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import commit_log, commit_nodes, committer, sealer
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.manifest import store
from spark_ledger.stream.manifest.store import ManifestStore
from spark_ledger.stream.manifest.tree import ManifestRoot
from spark_ledger.stream.stream import Stream
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers
from tests.unit.spark_ledger.stream.world import (
    SCHEMA,
    another,
    loose,
    numbers,
    root_of,
    run,
    small_manifests,
    table,
)


class Meter:
    """How many calls there were, and how many of them at once."""

    def __init__(self) -> None:
        self.now = self.most = self.calls = 0

    @contextmanager
    def _in(self) -> Iterator[None]:
        self.now, self.calls = self.now + 1, self.calls + 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.now -= 1

    def on(self, call: Callable[..., Any], wanted: Callable[..., bool] | None = None) -> Any:
        async def metered(*given: Any, **named: Any) -> Any:
            if wanted is not None and not wanted(*given):
                return await call(*given, **named)
            with self._in():
                for _ in range(3):
                    await asyncio.sleep(0)
                return await call(*given, **named)

        return metered


def deletes(operations: Sequence[Operation]) -> bool:
    """Whether they are a part of the many nodes of a stream, which its identity guards."""
    check, *others = operations
    is_deletion = isinstance(check, Check) and all(isinstance(each, Delete) for each in others)
    return is_deletion and bool(others) and others[-1].path != "streams/s"


async def stream_of(ledgers: FakeLedgers, commits: int) -> Stream:
    stream = await StreamCatalog(ledgers).create("s", SCHEMA)
    for number in range(commits):
        await stream.append(table(number), sink_id=f"s{number % 5}", transaction_id=number)
    return stream


def test_deletion_of_a_long_stream_is_many_small_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZooKeeper takes a megabyte at most, and serves others meanwhile."""
    small_manifests(monkeypatch, fan_out=100)
    monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", 12)
    monkeypatch.setattr(catalog, "_NODES_PER_TRANSACTION", 3)
    monkeypatch.setattr(catalog, "_TRANSACTIONS_AT_ONCE", 2)
    monkeypatch.setattr(catalog, "_PARTS_AT_ONCE", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await (await stream_of(ledgers, 24)).close()
        other, streams = another(ledgers)
        parts, sent = Meter(), Meter()
        sizes: list[int] = []
        transaction = other.store.transaction

        async def counted(operations: Any) -> None:
            if deletes(operations):
                sizes.append(len(operations) - 1)
            await transaction(operations)

        other.store.transaction = sent.on(counted, deletes)  # type: ignore[method-assign]
        monkeypatch.setattr(CommitLog, "ledgers", parts.on(CommitLog.ledgers))
        await streams.delete("s")
        assert ledgers.store.tree.children("streams") == [] and not ledgers.ledgers
        assert max(sizes) == 3 and sum(sizes) >= 12 + 5
        assert (sent.most, parts.most) == (2, 2) and parts.calls > 4

    run(scenario())


def test_deletion_of_a_stream_whose_nodes_keep_changing_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog, "_DELETE_ATTEMPTS", 4)
    monkeypatch.setattr(catalog, "_DELETE_DELAY_S", 0.0)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await (await stream_of(ledgers, 2)).close()
        tries = 0
        transaction = ledgers.store.transaction

        async def changing(operations: Any) -> None:
            nonlocal tries
            if any(isinstance(each, Delete) for each in operations):
                tries += 1
                assert tries < 100, "it goes on for ever"
                raise ConflictError("another has changed it")
            await transaction(operations)

        ledgers.store.transaction = changing  # type: ignore[method-assign]
        with pytest.raises(RetryableError, match="'s': its nodes keep changing"):
            await StreamCatalog(ledgers).delete("s")
        assert tries == 4
        ledgers.store.transaction = transaction  # type: ignore[method-assign]
        await StreamCatalog(ledgers).delete("s")
        assert ledgers.store.tree.children("streams") == []

    run(scenario())


def test_commits_are_looked_up_some_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in nodes of their own, and those with long lists of segments: each has its bound."""
    monkeypatch.setattr(committer, "SEGMENT_LIST_NODE_BYTES_MAX", 100)
    monkeypatch.setattr(commit_nodes, "GETS_IN_FLIGHT_MAX", 3)
    monkeypatch.setattr(commit_log, "_LISTS_AT_ONCE_MAX", 4)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for _ in range(12):
            await stream.commit_segments([loose()] * 5)
        await stream.close()
        other, streams = another(ledgers)
        fresh = await streams.open("s")
        gets, lists = Meter(), Meter()
        is_commit = lambda path: "/commits/" in path  # noqa: E731
        other.store.get = gets.on(other.store.get, is_commit)  # type: ignore[method-assign]
        monkeypatch.setattr(CommitLog, "_segment_list", lists.on(CommitLog._segment_list))
        found = await fresh.commits(0, 12)
        assert [len(each.segments) for each in found] == [5] * 12
        assert (gets.most, gets.calls) == (3, 12)
        assert (lists.most, lists.calls) == (4, 12)

    run(scenario())


def test_pages_and_runs_are_read_some_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    small_manifests(monkeypatch, fan_out=100)
    monkeypatch.setattr(store, "PAGE_READS_MAX", 2)
    monkeypatch.setattr(reader, "RUNS_AT_ONCE_MAX", 3)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        stream = await StreamCatalog(ledgers).create("s", SCHEMA)
        for number in range(13):
            writer = stream.writer()
            await writer.write(table(number))
            await stream.commit_segments(await writer.finish())
            await writer.close()
        await stream.close()
        rows = {part.ledger_id for n in range(13) for part in (await stream.commit(n)).segments}
        other, streams = another(ledgers)
        fresh = await streams.open("s")
        pages, runs = Meter(), Meter()
        is_page = lambda ledger_id: ledger_id not in rows  # noqa: E731
        other.open_unconfirmed = pages.on(  # type: ignore[method-assign]
            runs.on(other.open_unconfirmed, lambda ledger_id: ledger_id in rows), is_page
        )
        assert len(await fresh.commits(0, 13)) == 13
        assert pages.most == 2 and pages.calls > 4
        assert await numbers(fresh.read()) == list(range(13))
        assert (runs.most, runs.calls) == (3, 13)

    run(scenario())


def test_leaves_that_are_merged_are_read_some_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits are made meanwhile, on the same loop."""
    small_manifests(monkeypatch, leaf=1, fan_out=6)
    monkeypatch.setattr(sealer, "_READS_AT_ONCE", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await (await stream_of(ledgers, 6)).close()
        fresh = await another(ledgers)[1].open("s")
        leaves = Meter()
        monkeypatch.setattr(ManifestStore, "leaf_bytes", leaves.on(ManifestStore.leaf_bytes))
        for number in (6, 7):
            await fresh.append(table(number))
        await fresh.close()
        assert len(root_of(ledgers).levels) == 2
        assert (leaves.most, leaves.calls) == (2, 6)

    run(scenario())


def test_long_look_ups_grow_step_by_step_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short read ends soon, and a long one has a bounded number of commits in memory."""
    for module, least, most in (
        (stream_module, "_COMMITS_PER_STEP_MIN", "_COMMITS_PER_STEP_MAX"),
        (commit_log, "_WINDOW_FIRST", "_WINDOW_MAX"),
    ):
        monkeypatch.setattr(module, least, 2)
        monkeypatch.setattr(module, most, 8)
    steps: list[int] = []
    look = CommitLog.range

    async def counted(self: CommitLog, first: int, end: int) -> Any:
        steps.append(end - first)
        return await look(self, first, end)

    async def scenario() -> None:
        stream = await stream_of(FakeLedgers(), 40)
        monkeypatch.setattr(CommitLog, "range", counted)
        assert await numbers(stream.read()) == list(range(40))
        assert steps == [2, 4, 8, 8, 8, 8, 2]
        steps.clear()
        assert len(await stream.commits_between(0, 40, max_rows=1000)) == 40
        assert steps == [2, 4, 8, 8, 8, 8, 1], "behind the first"
        steps.clear()
        assert len(await stream.commits_between(0, 40, max_rows=3)) == 3
        assert steps == [2]

    run(scenario())


def test_pages_of_pointers_are_kept_decoded_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many streams with millions of commits each: a search ends below one."""
    small_manifests(monkeypatch, leaf=1, fan_out=2)
    monkeypatch.setattr(store, "_POINTERS_KEPT_MAX", 2)

    async def scenario() -> None:
        ledgers = FakeLedgers()
        await (await stream_of(ledgers, 17)).close()
        log = (await another(ledgers)[1].open("s"))._log
        for number in (0, 4, 8, 12, 2, 6):
            assert (await log.get(number)).number == number
            assert len(log.manifests._pointers) <= 2
            path = await log.manifests.path(await log.manifests.root(), number)
            above = path[-2].pointer
            assert (above.ledger_id, above.entry_id) in log.manifests._pointers, "the newest"

    run(scenario())


def test_look_up_whose_pages_move_each_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_SEARCHES_MAX", 3)

    async def scenario() -> None:
        stream = await stream_of(FakeLedgers(), 1)
        manifests = stream._log.manifests
        looks: list[object] = []

        async def look(root: ManifestRoot) -> None:
            looks.append(root)
            assert len(looks) < 100, "it goes on for ever"
            newer = root._replace(first=root.first + 100)
            version = manifests.versioned
            assert version is not None
            manifests.wrote(newer, version.version + 1)
            raise NotFoundError("the page is gone")

        with pytest.raises(DataLossError, match=r"'s': the manifests .* they keep moving"):
            await manifests.search(look)
        assert len(looks) == 3 and len(set(looks)) == 3, "each with a newer root"

    run(scenario())
