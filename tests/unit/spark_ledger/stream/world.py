"""The world of the stream tests: fake ledgers, metadata in memory, and helpers for rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from spark_ledger.errors import ConflictError, NotFoundError, OutcomeUnknownError
from spark_ledger.metadata.base import Check, Delete, Operation
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import Fault, Interpose, Outcome
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit import sealer
from spark_ledger.stream.commit.commit_log import CommitLog
from spark_ledger.stream.manifest import tree
from spark_ledger.stream.manifest.format import decode_root
from spark_ledger.stream.manifest.tree import ManifestRoot, Page
from spark_ledger.stream.model import UNPLACED, Head, Segment
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.stream.retention.live_names import LiveNames
from spark_ledger.stream.stream import Stream
from spark_ledger.types import EntryId, LedgerId, LedgerMetadata, Versioned
from tests.unit.spark_ledger.stream.fake_ledgers import FakeLedgers

T = TypeVar("T")
COLUMNS: dict[str, pa.DataType] = {"n": pa.int64(), "text": pa.string()}
SCHEMA = pa.schema(COLUMNS)


def run(work: Coroutine[Any, Any, T]) -> T:
    async def with_deadline() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(with_deadline())


def table(first: int, count: int = 1) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]}, schema=SCHEMA
    )


def loose(*entry_rows: int, ledger_id: int = 9, first_entry: int = 0) -> Segment:
    """A finished segment that no commit has placed."""
    counts = entry_rows or (1,)
    return Segment(
        number=UNPLACED,
        ledger_id=LedgerId(ledger_id),
        first_entry=EntryId(first_entry),
        last_entry=EntryId(first_entry + len(counts) - 1),
        rows=sum(counts),
        size_bytes=10 * sum(counts),
        schema_version=0,
        entry_rows=tuple(counts),
    )


async def numbers(batches: Any) -> list[int]:
    """The values of the column ``n`` of an async iterator of batches."""
    return [n async for batch in batches for n in batch.column("n").to_pylist()]


def another(
    ledgers: FakeLedgers, interpose: Interpose | None = None
) -> tuple[FakeLedgers, StreamCatalog]:
    """Another process: its own metadata session, the same ledgers."""
    other = FakeLedgers(ledgers.store.tree.open_session(interpose=interpose))
    other.ledgers, other.writers = ledgers.ledgers, ledgers.writers
    return other, StreamCatalog(other)


class Backup:
    """A backup of the metadata."""

    def __init__(self, ledgers: FakeLedgers) -> None:
        self._tree = ledgers.store.tree
        with self._tree.lock:
            self._take()

    def _take(self) -> None:
        self._nodes = dict(self._tree._nodes)
        self._children = {path: set(names) for path, names in self._tree._children.items()}

    def restore(self, *connected: FakeLedgers) -> None:
        """ZooKeeper comes back with it, and these connect again. It does not show otherwise."""
        with self._tree.lock:
            self._tree._nodes = dict(self._nodes)
            self._tree._children = {path: set(names) for path, names in self._children.items()}
        for each in connected:
            each.store.reconnect()


class Faults:
    """An ``interpose`` that makes the n-th transactions (counted from 1) go wrong as listed."""

    def __init__(self, outcomes: Sequence[Outcome], name: str = "transaction") -> None:
        self.outcomes = list(outcomes)
        self.name = name
        self.calls: list[tuple[str, str]] = []

    def __call__(self, name: str, path: str) -> Fault:
        self.calls.append((name, path))
        if name == self.name and self.outcomes:
            return Fault(self.outcomes.pop(0))
        return Fault()

    def count(self, name: str) -> int:
        return sum(1 for called, _ in self.calls if called == name)


def lagging_heads(monkeypatch: pytest.MonkeyPatch, reads: int, *names: str) -> None:
    """A metadata server that lags: the next so many reads of the head of each of these streams, or
    of any, find it as at the first."""
    read = StreamNodes.head
    known: dict[str, list[Versioned[Head]]] = {}

    async def old(self: StreamNodes, *, latest: bool = False) -> Versioned[Head]:
        if latest:
            return await read(self, latest=True)
        if self.head_path not in known:
            known[self.head_path] = reads * [await read(self)]
        left = known[self.head_path] if not names or self.name in names else None
        return left.pop() if left else await read(self)

    monkeypatch.setattr(StreamNodes, "head", old)


class Deletions:
    """How a keeper deletes ledgers."""

    def __init__(self, ledgers: FakeLedgers) -> None:
        self.ledgers = ledgers

    def guard(self) -> Operation:
        return Check("keeper", -1)

    async def read(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata] | None:
        known = self.ledgers.ledgers.get(ledger_id)
        return None if known is None else Versioned(known.metadata, 0)

    async def delete(self, ledger: Versioned[LedgerMetadata], checks: Sequence[Operation]) -> bool:
        path = ledger_path(ledger.value.ledger_id)
        try:
            await self.ledgers.store.transaction([self.guard(), *checks, Delete(path)])
        except (ConflictError, NotFoundError, OutcomeUnknownError):
            return False
        return True

    async def recover(self, ledger_id: LedgerId) -> None:
        """These ledgers have no copies that a recovery would look at."""


def small_manifests(
    monkeypatch: pytest.MonkeyPatch, *, leaf: int = 2, fan_out: int = 2, kept: int = 1
) -> None:
    """Streams made from now on seal often, into a tree that grows high."""
    monkeypatch.setattr(tree, "COMMITS_PER_LEAF", leaf)
    monkeypatch.setattr(tree, "FAN_OUT", fan_out)
    monkeypatch.setattr(sealer, "COMMITS_KEPT_AS_NODES", kept)
    monkeypatch.setattr(sealer, "SEAL_EVERY", leaf)


def commit_nodes(ledgers: FakeLedgers) -> list[int]:
    """The numbers of the commits that have metadata nodes."""
    nodes = ledgers.store.tree
    buckets = nodes.children("streams/s/commits")
    return [int(n) for bucket in buckets for n in nodes.children(f"streams/s/commits/{bucket}")]


def root_of(ledgers: FakeLedgers) -> ManifestRoot:
    """The root of the manifests of stream ``s``."""
    return decode_root(ledgers.store.tree.get("streams/s/manifests").value, "root")


async def pages_of(stream: Stream) -> list[Page]:
    """Every page that the root of a stream names, also through other pages."""
    return [
        page
        async for page in CommitLog(
            stream._ledgers, stream._nodes, stream.config.stream_id
        ).manifests.walk()
    ]


async def former_of(stream: Stream) -> set[LedgerId]:
    """The ledgers that leaves have left, and that a keeper has not deleted yet."""
    manifests = CommitLog(stream._ledgers, stream._nodes, stream.config.stream_id).manifests
    root = await manifests.read_root(latest=True)
    found: set[LedgerId] = set()
    async for page in manifests.walk():
        if not root.is_dropped(page):
            found.update(await manifests.former(root, page))
    return found


async def free_merged(ledgers: FakeLedgers) -> int:
    """A keeper deletes all that leaves have left; how many ledgers."""
    with contextlib.suppress(ConflictError):
        await ledgers.store.create("keeper", b"")
    stream = await another(ledgers)[1].open("s")
    reclaimer = stream.retention.reclaimer(Deletions(ledgers), LiveNames())
    return await reclaimer.free_merged(root_of(ledgers).merged_upto)
