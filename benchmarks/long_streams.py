"""What a stream of very many commits costs: its metadata, a cold plan, the driver, the next commit.

``python -m benchmarks.long_streams --commits 1000 100000`` starts a local cluster and makes streams
of so many commits of eight tasks each, in their own format and with the manifests that committers
make, but without rows. Then it commits on over a border at which manifests are merged, and opens
and plans each stream from its first row in a process of its own. ``--delete`` deletes it as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import spark_ledger
from benchmarks.paths import ROOT
from connector.options import read_options
from connector.read.offsets import stream_offset
from connector.read.stream_source import StreamSource
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.base import Create, MetadataStore, Operation
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.commit.commit_rules import Apply, Proposal, decide
from spark_ledger.stream.commit.sealer import COMMITS_KEPT_AS_NODES
from spark_ledger.stream.format import codec
from spark_ledger.stream.manifest.tree import COMMITS_PER_LEAF
from spark_ledger.stream.model import UNPLACED, Segment
from spark_ledger.stream.nodes import COMMITS_PER_BUCKET, StreamNodes
from spark_ledger.types import EntryId, LedgerId

STREAM = "bench"
CREATES_AT_ONCE = 500
MADE_AT_ONCE = 5 * COMMITS_PER_BUCKET
PLANS = 5


class Shape(NamedTuple):
    """What a commit has."""

    tasks: int
    entries: int


def proposal(number: int, shape: Shape) -> Proposal:
    """A micro-batch: each task wrote some entries into its own ledger."""
    entries = shape.entries
    first = entries * (number % COMMITS_PER_BUCKET)
    segments = tuple(
        Segment(
            number=UNPLACED,
            ledger_id=LedgerId(10_000_000 + number // COMMITS_PER_BUCKET * shape.tasks + task),
            first_entry=EntryId(first),
            last_entry=EntryId(first + entries - 1),
            rows=1_000 * entries,
            size_bytes=32_000 * entries,
            schema_version=0,
            entry_rows=(1_000,) * entries,
        )
        for task in range(shape.tasks)
    )
    return Proposal(segments, sink_id="bench", transaction_id=number)


async def make_stream(client: LedgerClient, commits: int, shape: Shape) -> None:
    """A stream of so many commits, all sealed that committers would have sealed."""
    streams = StreamCatalog(client)
    await streams.create(STREAM, pa.schema([("number", pa.int64())]))
    made = 0
    while made < commits:
        made += await append_commits(client, min(MADE_AT_ONCE, commits - made), shape)


async def append_commits(client: LedgerClient, commits: int, shape: Shape) -> int:
    """Write commits, and seal those that committers would have sealed. Their number."""
    nodes = StreamNodes(client.store, STREAM)
    head = await nodes.head()
    after, creates = head.value, list[Operation]()
    for number in range(after.next_commit, after.next_commit + commits):
        now_ms = 1_700_000_000_000 + 1000 * number
        applied = decide(after, None, proposal(number, shape), now_ms=now_ms, stream_name=STREAM)
        assert isinstance(applied, Apply)
        after = applied.head
        if number % COMMITS_PER_BUCKET == 0:
            creates.append(Create(nodes.bucket_path(number), b""))
        creates.append(Create(nodes.commit_path(number), codec.encode_commit(applied.commit)))
    for start in range(0, len(creates), CREATES_AT_ONCE):
        await client.store.transaction(creates[start : start + CREATES_AT_ONCE])
    await client.store.put(nodes.head_path, codec.encode_head(after), head.version)
    stream = await StreamCatalog(client).open(STREAM)
    sealed = (after.next_commit - COMMITS_KEPT_AS_NODES) // COMMITS_PER_LEAF * COMMITS_PER_LEAF
    manifests = stream._log.manifests
    while True:
        root = await manifests.read_root()
        if root.sealed >= sealed and root.level_to_merge() is None:
            break
        await stream._committer.sealer.seal(after.next_commit)
    await stream.close()
    return commits


async def stored_bytes(store: MetadataStore, path: str) -> int:
    """What the nodes below a path take: their names and data."""
    try:
        size = len(path) + len((await store.get(path)).value)
    except spark_ledger.errors.NotFoundError:
        return 0
    below = await store.children(path)
    return size + sum([await stored_bytes(store, f"{path}/{name}") for name in below])


async def commit_times(client: LedgerClient, count: int, shape: Shape) -> list[float]:
    """Milliseconds that real commits take, one after another."""
    stream = await StreamCatalog(client).open(STREAM)
    first = (await stream.head()).next_commit
    writers = [await client.create_ledger() for _ in range(shape.tasks)]
    times: list[float] = []
    for number in range(first, first + count):
        pairs = zip(proposal(number, shape).segments, writers, strict=True)
        segments = [replace(segment, ledger_id=writer.ledger_id) for segment, writer in pairs]
        began = time.perf_counter()
        await stream.commit_segments(segments, sink_id="bench", transaction_id=number)
        times.append(1e3 * (time.perf_counter() - began))
    began = time.perf_counter()
    await stream.close()
    print(f"close {1e3 * (time.perf_counter() - began):.1f} ms", file=sys.stderr)
    return times


def peak_mb() -> float:
    """The most memory that this process ever had."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def cold(uri: str) -> dict[str, Any]:
    """Open and plan a stream, in this process for the first time."""
    peak_before = peak_mb()
    found: dict[str, Any] = {}
    walls, cpus, partitions = [], [], 0
    for _ in range(PLANS):
        with spark_ledger.connect(uri) as client:
            began, cpu = time.perf_counter(), time.process_time()
            with client.stream(STREAM) as stream:
                source = StreamSource(
                    read_options({"stream": STREAM, "metadata": uri}, streaming=False), stream
                )
                partitions = len(
                    source.plan(
                        stream_offset(spark_ledger.types.Dlsn(0), stream.config.stream_id),
                        source.final_offset(),
                    )
                )
                walls.append(1e3 * (time.perf_counter() - began))
                cpus.append(1e3 * (time.process_time() - cpu))
    found["first_ms"] = round(walls[0], 1)
    found["wall_ms"] = round(sorted(walls)[PLANS // 2], 1)
    found["cpu_ms"] = round(sorted(cpus)[PLANS // 2], 1)
    found["partitions"] = partitions
    found["driver_mb"] = round(peak_mb() - peak_before, 1)
    return found


def cold_in_a_process(uri: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.long_streams", "--cold", uri],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def measure(
    uri: str, commits: int, shape: Shape, more: int, *, delete: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {"commits": commits}
    async with await LedgerClient.connect(uri) as client:
        began = time.perf_counter()
        await make_stream(client, commits - more // 2, shape)
        found["made_s"] = round(time.perf_counter() - began, 1)
        times = await commit_times(client, more, shape)
        in_order = sorted(times)
        found |= {
            "commit_p50_ms": round(in_order[len(times) // 2], 2),
            "commit_p99_ms": round(in_order[len(times) * 99 // 100], 2),
            "commit_max_ms": round(in_order[-1], 2),
            "commit_mean_ms": round(sum(times) / len(times), 2),
        }
        found["metadata_kb"] = round(await stored_bytes(client.store, f"streams/{STREAM}") / 1e3, 1)
        found |= await asyncio.to_thread(cold_in_a_process, uri)
        began = time.perf_counter()
        await StreamCatalog(client).delete(STREAM)
        if delete:
            found["delete_s"] = round(time.perf_counter() - began, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--entries", type=int, default=1)
    parser.add_argument("--more", type=int, default=600)
    parser.add_argument("--delete", action="store_true")
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold:
        print(json.dumps(cold(options.cold)))
        return
    shape = Shape(options.tasks, options.entries)
    with LocalCluster(bookies=3) as cluster:
        for commits in options.commits:
            work = measure(cluster.uri, commits, shape, options.more, delete=options.delete)
            print(json.dumps(asyncio.run(work)), flush=True)


if __name__ == "__main__":
    main()
