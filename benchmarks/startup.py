"""What a user waits for before any data move: the import, and the planning of a stream."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

import spark_ledger
from benchmarks.paths import ROOT
from benchmarks.rows import OURS, Row, median, rounded
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.base import Create, MetadataStore, Operation
from spark_ledger.stream.blocking import Stream
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_rules import Apply, Proposal, decide
from spark_ledger.stream.commit.sealer import COMMITS_KEPT_AS_NODES
from spark_ledger.stream.format import codec
from spark_ledger.stream.manifest.tree import COMMITS_PER_LEAF
from spark_ledger.stream.model import UNPLACED, Segment
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.stream.plan.partitions import PlanLimits, plan_partitions
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn, EntryId, LedgerId

COMMITS = 10_000
COMMITS_PER_TRIGGER = 50
_TRIGGERS = 5
_STREAM = "bench"
_CREATES_AT_ONCE = 500
_IMPORTS = 5
_IMPORT = (
    "import time; start = time.perf_counter(); import spark_ledger; "
    "print(time.perf_counter() - start)"
)


def import_row() -> Row:
    """Rows of ``import spark_ledger`` in a fresh interpreter: the median of several."""
    seconds = [
        float(
            subprocess.run(
                [sys.executable, "-c", _IMPORT], cwd=ROOT, capture_output=True, check=True
            ).stdout
        )
        for _ in range(_IMPORTS)
    ]
    return Row(bench="raw", system=OURS, op="import", elapsed_ms=rounded(1e3 * median(seconds)))


def plan_rows(commits: int = COMMITS) -> Iterator[Row]:
    """Rows of planning a stream with many small commits: all of them in a process that starts, then
    only the new ones, as each trigger of a query does.

    The commits are written to a real ZooKeeper in the stream's own format, with the manifests that
    committers make, but without entries: planning reads none.
    """
    with LocalCluster(bookies=3) as cluster:
        asyncio.run(_make_stream(cluster.uri, commits))
        with spark_ledger.connect(cluster.uri) as client:
            started = time.perf_counter()
            with client.stream(_STREAM) as stream:
                end = _plan(stream, Dlsn(0), commits)
                yield _row("plan", commits, [time.perf_counter() - started])
                seconds = []
                for _ in range(_TRIGGERS):
                    asyncio.run(_append_commits(cluster.uri, COMMITS_PER_TRIGGER))
                    started = time.perf_counter()
                    end = _plan(stream, end, COMMITS_PER_TRIGGER)
                    seconds.append(time.perf_counter() - started)
                yield _row("trigger", COMMITS_PER_TRIGGER, seconds)


def _row(op: str, commits: int, seconds: list[float]) -> Row:
    elapsed_ms = rounded(1e3 * median(seconds))
    return Row(bench="raw", system=OURS, op=op, commits=commits, elapsed_ms=elapsed_ms)


def _plan(stream: Stream, start: Dlsn, commits: int) -> Dlsn:
    """Plan from a position to the end. Returns the end."""
    end = stream.head().end
    found = stream.commits_between(start.segment, end.segment)
    plans = plan_partitions(ranges_between(found, start, end), PlanLimits())
    assert len(found) == commits and plans, "every commit is planned"
    return end


async def _make_stream(uri: str, commits: int) -> None:
    async with await LedgerClient.connect(uri) as client:
        await StreamCatalog(client).create(_STREAM, pa.schema([("number", pa.int64())]))
    await _append_commits(uri, commits)


async def _append_commits(uri: str, commits: int) -> None:
    """Write commits, and seal those that committers would have sealed."""
    async with await LedgerClient.connect(uri) as client:
        nodes = StreamNodes(client.store, _STREAM)
        head = await nodes.head()
        after, data = head.value, {}
        for number in range(after.next_commit, after.next_commit + commits):
            applied = decide(after, None, _proposal(number), now_ms=number, stream_name=_STREAM)
            assert isinstance(applied, Apply)
            after = applied.head
            data[number] = codec.encode_commit(applied.commit)
        creates: list[Operation] = []
        for number, node in data.items():
            if number % COMMITS_PER_BUCKET == 0:
                creates.append(Create(nodes.bucket_path(number), b""))
            creates.append(Create(nodes.commit_path(number), node))
        await _in_transactions(client.store, creates)
        await client.store.put(nodes.head_path, codec.encode_head(after), head.version)
        stream = await StreamCatalog(client).open(_STREAM)
        manifests = stream._log.manifests
        while (await manifests.read_root()).sealed < _sealed_of(after.next_commit):
            await stream._committer.sealer.seal(after.next_commit)


def _sealed_of(commits: int) -> int:
    """How many of so many commits are sealed at least, once the last of them was looked at."""
    return (commits - COMMITS_KEPT_AS_NODES) // COMMITS_PER_LEAF * COMMITS_PER_LEAF


def _proposal(number: int) -> Proposal:
    """A small micro-batch: two entries of one ledger."""
    segment = Segment(
        number=UNPLACED,
        ledger_id=LedgerId(number // COMMITS_PER_BUCKET),
        first_entry=EntryId(2 * (number % COMMITS_PER_BUCKET)),
        last_entry=EntryId(2 * (number % COMMITS_PER_BUCKET) + 1),
        rows=2_000,
        size_bytes=64_000,
        schema_version=0,
        entry_rows=(1_000, 1_000),
    )
    return Proposal((segment,), sink_id="bench", transaction_id=number)


async def _in_transactions(store: MetadataStore, creates: list[Operation]) -> None:
    for start in range(0, len(creates), _CREATES_AT_ONCE):
        await store.transaction(creates[start : start + _CREATES_AT_ONCE])
