"""What a user waits for before any data move: the import, and the planning of a long stream."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pyarrow as pa

import spark_ledger
from benchmarks.paths import ROOT
from benchmarks.rows import OURS, Row, median, rounded
from connector.options import PlanLimits
from connector.planner import plan_partitions, ranges_of
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.base import Create, MetadataStore, Operation
from spark_ledger.stream import codec
from spark_ledger.stream.commits import Apply, Proposal, decide
from spark_ledger.stream.model import UNPLACED, Segment
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.stream.streams import Streams
from spark_ledger.types import EntryId, LedgerId

COMMITS = 10_000
_STREAM = "bench"
_CREATES_AT_ONCE = 500
_IMPORTS = 5
_IMPORT = (
    "import time; start = time.perf_counter(); import spark_ledger; "
    "print(time.perf_counter() - start)"
)


def import_row() -> Row:
    """``import spark_ledger`` in a fresh interpreter: the median of some."""
    seconds = [
        float(
            subprocess.run(
                [sys.executable, "-c", _IMPORT], cwd=ROOT, capture_output=True, check=True
            ).stdout
        )
        for _ in range(_IMPORTS)
    ]
    return Row(bench="raw", system=OURS, op="import", elapsed_ms=rounded(1e3 * median(seconds)))


def plan_row(commits: int = COMMITS) -> Row:
    """The metadata of a stream of many small commits, read and planned from scratch.

    The commits are written to a real ZooKeeper in the stream's own format, without the entries
    that they name: planning reads none.
    """
    with LocalCluster(bookies=0) as cluster:
        asyncio.run(_write_commits(cluster.uri, commits))
        with spark_ledger.connect(cluster.uri) as client:
            started = time.perf_counter()
            with client.stream(_STREAM) as stream:
                head = stream.head()
                found = stream.commits_between(0, head.end.segment)
                ranges = ranges_of(found, head.earliest, head.end)
                plans = plan_partitions(ranges, PlanLimits())
            elapsed_s = time.perf_counter() - started
    assert len(found) == commits and plans, "every commit is planned"
    return Row(
        bench="raw", system=OURS, op="plan", commits=commits, elapsed_ms=rounded(1e3 * elapsed_s)
    )


async def _write_commits(uri: str, commits: int) -> None:
    async with await LedgerClient.connect(uri) as client:
        store = client.store
        await Streams(client).create(_STREAM, pa.schema([("number", pa.int64())]))
        nodes = StreamNodes(store, _STREAM)
        head = await nodes.head()
        after = head.value
        creates: list[Operation] = []
        for number in range(commits):
            if number % COMMITS_PER_BUCKET == 0:
                creates.append(Create(nodes.bucket_path(number), b""))
            applied = decide(after, None, _proposal(number), now_ms=number, stream_name=_STREAM)
            assert isinstance(applied, Apply)
            after = applied.head
            creates.append(Create(nodes.commit_path(number), codec.encode_commit(applied.commit)))
        await _in_transactions(store, creates)
        await store.put(nodes.head_path, codec.encode_head(after), head.version)


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
