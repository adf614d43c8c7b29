"""What an audit of a very long stream takes: ``python -m benchmarks.audits --commits 1000000``.

A stream of so many commits of eight tasks each (``benchmarks.long_streams``), and ledgers of a
former version that nothing names, in metadata and bookies in memory: so it tells processor time,
memory and metadata operations, and no waits. One keeper audits it, and another takes over in the
middle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.calls import World
from benchmarks.long_streams import STREAM, Shape, append_commits, make_stream, peak_mb
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.keeper.config import KeeperConfig
from spark_ledger.keeper.keeper import Keeper
from spark_ledger.keeper.nodes import ask_for_audit, read_audit, read_audit_names
from spark_ledger.limits.keeper import AUDIT_STEPS_PER_PASS, KEEPER_PASS_S
from spark_ledger.metadata.base import Create
from spark_ledger.metadata.codec import encode_ledger
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.metadata.memory import Fault, MemoryMetadataStore
from spark_ledger.stream.ledgers import PURPOSE_SEGMENTS, ledger_tags
from spark_ledger.stream.nodes import StreamNodes
from spark_ledger.types import (
    BookieId,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    Quorums,
)

UNNAMED_FROM = 20_000_000
CREATES_AT_ONCE = 500
_CONFIG = KeeperConfig(audit_s=0.0, deletes_per_s=1e6)


async def _leave_ledgers(client: LedgerClient, count: int) -> None:
    """Closed ledgers of the stream that no index lists and nothing names."""
    config = (await StreamNodes(client.store, STREAM).config()).value
    tags = ledger_tags(STREAM, config.stream_id, PURPOSE_SEGMENTS)
    bookies = tuple(BookieId(f"bookie-{index}") for index in range(3))
    for start in range(UNNAMED_FROM, UNNAMED_FROM + count, 10_000):
        await client.store.create(f"{ledger_path(LedgerId(start)).rpartition('/')[0]}/x", b"")
    for start in range(UNNAMED_FROM, UNNAMED_FROM + count, CREATES_AT_ONCE):
        operations = []
        for each in range(start, min(start + CREATES_AT_ONCE, UNNAMED_FROM + count)):
            ledger = LedgerMetadata(
                LedgerId(each),
                Quorums(3, 3, 2),
                (Fragment(EntryId(0), bookies),),
                state=LedgerState.CLOSED,
                last_entry_id=EntryId(0),
                length=100,
                custom_metadata=tags,
            )
            operations.append(Create(ledger_path(LedgerId(each)), encode_ledger(ledger)))
        await client.store.transaction(operations)


class _Passes:
    """Passes of keepers, and what they took."""

    def __init__(self) -> None:
        self.count = self.operations = 0
        self.cpu_s = self.longest_s = self.more_memory_mb = 0.0

    def keeper(self, client: LedgerClient) -> Keeper:
        """One whose operations are counted."""
        assert isinstance(client.store, MemoryMetadataStore), "all of it is in memory"
        client.store.interpose = self._count
        return Keeper(client, _CONFIG)

    def _count(self, _name: str, _path: str) -> Fault:
        self.operations += 1
        return Fault()

    async def one(self, keeper: Keeper) -> None:
        began, memory_mb = time.process_time(), peak_mb()
        await keeper.run_pass()
        took = time.process_time() - began
        self.more_memory_mb += peak_mb() - memory_mb
        self.count += 1
        self.cpu_s += took
        self.longest_s = max(self.longest_s, took)


async def _has_ended(client: LedgerClient) -> bool:
    state = await read_audit(client.store)
    return state is not None and state.value.ended_ms > 0


async def _measure(directory: Path, commits: int, unnamed: int, shape: Shape) -> dict[str, Any]:
    world = World(directory)
    client = await world.start()
    await make_stream(client, commits, shape)
    await _leave_ledgers(client, unnamed)
    await ask_for_audit(client.store)
    passes, taken_over_at = _Passes(), 0
    keeper = passes.keeper(client)
    assert await keeper.elect()
    while taken_over_at < commits / 2 and not await _has_ended(client):
        await passes.one(keeper)
        saved = await read_audit_names(client.store)
        if saved is not None:
            taken_over_at = sum(each.behind for each in saved.value.streams)
    await keeper._election.resign()
    await append_commits(client, 100, shape)
    keeper = passes.keeper(client)
    assert await keeper.elect()
    while not await _has_ended(client):
        await passes.one(keeper)
    state = await read_audit(client.store)
    assert state is not None, "it has ended"
    await world.stop()
    return {
        "commits": commits,
        "passes": passes.count,
        "minutes_with_pauses": round(passes.count * KEEPER_PASS_S / 60, 1),
        "cpu_s": round(passes.cpu_s, 2),
        "longest_pass_cpu_s": round(passes.longest_s, 2),
        "operations": passes.operations,
        "steps_per_pass": AUDIT_STEPS_PER_PASS,
        "more_memory_mb": round(passes.more_memory_mb, 1),
        "taken_over_at": taken_over_at,
        "found": state.value.last.ledgers,
    }


def main() -> None:
    """Print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--unnamed", type=int, default=10_000, help="ledgers that nothing names")
    options = parser.parse_args()
    for commits in options.commits:
        with tempfile.TemporaryDirectory() as directory:
            shape = Shape(options.tasks, 1)
            work = _measure(Path(directory), commits, options.unnamed, shape)
            print(json.dumps(asyncio.run(work)), flush=True)


if __name__ == "__main__":
    main()
