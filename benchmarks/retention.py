"""How much disk a bookie takes over what is alive, and what appends pay for that.

``python -m benchmarks.retention --minutes 30 --live-mb 2000`` runs one bookie's storage with its
threads on a loop, as its process does, and writes to eight ledgers at once at full speed. Once so
much is alive, closed ledgers are deleted, mostly the oldest ones and some at random, so that logs
die in part. The first fill, without a deletion, is what the rest is compared with: the same
load, with deletion and compaction beside it. ``--bookies 3`` measures a stream with retention on
real bookies instead (``benchmarks.retention_cluster``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import retention_cluster
from benchmarks.many_ledgers import _NoKeys
from benchmarks.percentiles import p99_ms
from bookie_server.bookie import Bookie
from bookie_server.opening import open_bookie
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.limits import KIB, MIB
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId

OPEN_LEDGERS = 8
IN_FLIGHT_BYTES_MAX = 16 * MIB
LEDGER_BYTES = (8 * MIB, 96 * MIB)
SIZES = (1 * KIB, 16 * KIB, 256 * KIB, 1 * MIB)
"""Entries of a ledger have one of these sizes: both kinds of logs are written."""
OLDEST_FIRST = 0.8


class _Ledger:
    """A ledger that is being written."""

    def __init__(self, ledger_id: int, choose: random.Random) -> None:
        self.ledger_id = LedgerId(ledger_id)
        self.frame = choose.randbytes(choose.choice(SIZES))
        self.target_bytes = choose.randint(*LEDGER_BYTES)
        self.entries = 0

    @property
    def byte_count(self) -> int:
        return self.entries * len(self.frame)


class Load:
    """Appends, deletions, and a look at the disk; everything on the loop."""

    def __init__(self, bookie: Bookie, directory: Path, live_bytes: int, seed: int) -> None:
        self.bookie = bookie
        self.directory = directory
        self.live_max = live_bytes
        self.choose = random.Random(seed)
        self.next_ledger = 0
        self.open = [self._new() for _each in range(OPEN_LEDGERS)]
        self.closed: deque[_Ledger] = deque()
        self.live = self.written = self.deleted = self.in_flight = 0
        self.filled = False
        self.latencies: dict[bool, list[float]] = {False: [], True: []}
        self.uses: list[float] = []
        self.ends_at = 0.0

    def _new(self) -> _Ledger:
        self.next_ledger += 1
        return _Ledger(self.next_ledger, self.choose)

    def _done(self, began: float, size: int, status: BookieStatus, message: str) -> None:
        assert status is BookieStatus.OK, message
        self.in_flight -= size
        self.latencies[self.filled].append(time.perf_counter() - began)

    async def append(self) -> None:
        """Append to the open ledgers in turn, as fast as they are stored."""
        while time.perf_counter() < self.ends_at:
            if self.in_flight >= IN_FLIGHT_BYTES_MAX:
                await asyncio.sleep(0.0005)
                continue
            for place, ledger in enumerate(self.open):
                size = len(ledger.frame)
                run = EntryRun(
                    ledger.ledger_id, EntryId(ledger.entries), None, [size], ledger.frame
                )
                self.in_flight += size
                self.bookie.add(
                    run,
                    access_key=b"",
                    recovery=False,
                    last_add_confirmed=EntryId(ledger.entries - 1),
                    done=partial(self._done, time.perf_counter(), size),
                )
                ledger.entries += 1
                self.live += size
                self.written += size
                if ledger.byte_count >= ledger.target_bytes:
                    self.closed.append(ledger)
                    self.open[place] = self._new()
            await asyncio.sleep(0)

    async def delete(self) -> None:
        """Keep at most so much alive."""
        while time.perf_counter() < self.ends_at:
            await asyncio.sleep(0.05)
            gone: list[_Ledger] = []
            while self.live > self.live_max and self.closed:
                oldest = self.choose.random() < OLDEST_FIRST
                place = 0 if oldest else self.choose.randrange(len(self.closed))
                gone.append(self.closed[place])
                del self.closed[place]
                self.live -= gone[-1].byte_count
            if gone:
                self.filled = True
                self.deleted += len(gone)
                ids = [ledger.ledger_id for ledger in gone]
                await asyncio.to_thread(self.bookie.delete_ledgers, ids)

    async def look(self) -> None:
        """What the logs take, over what is alive, once the first fill is over."""
        while time.perf_counter() < self.ends_at:
            await asyncio.sleep(1.0)
            if self.filled:
                stats = [path.stat() for path in self.directory.glob("*.log")]
                used = sum(min(stat.st_size, stat.st_blocks * 512) for stat in stats)
                self.uses.append(used / self.live)

    async def run(self, seconds: float) -> None:
        """Everything at once."""
        self.ends_at = time.perf_counter() + seconds
        await asyncio.gather(self.append(), self.delete(), self.look())
        for _wait in range(6_000):
            if self.in_flight:
                await asyncio.sleep(0.01)

    def figures(self, seconds: float) -> dict[str, Any]:
        """What was seen."""
        compaction = self.bookie.stats().ledger_storage.compaction
        uses = sorted(self.uses) or [0.0]
        return {
            "written_mb_per_s": round(self.written / seconds / 1e6, 1),
            "ledgers_deleted": self.deleted,
            "disk_over_live_median": round(uses[len(uses) // 2], 2),
            "disk_over_live_p95": round(uses[len(uses) * 95 // 100], 2),
            "disk_over_live_most": round(uses[-1], 2),
            "append_p99_ms_first_fill": p99_ms(self.latencies[False]),
            "append_p99_ms_with_compaction": p99_ms(self.latencies[True]),
            "removed_mb": round(compaction.removed_bytes / 1e6),
            "copied_mb": round(compaction.copied_bytes / 1e6),
            "compaction_failure": compaction.last_failure,
        }


async def measure(
    directory: Path, seconds: float, live_bytes: int, seed: int, bytes_per_s: int | None
) -> dict[str, Any]:
    """Run the load on a new bookie below ``directory``."""
    journal, stored = directory / "journal", directory / "ledgers"
    bookie_id = BookieId("bookie")
    format_directories(
        PosixFileSystem(), journal, [stored], cluster_id="benchmark", bookie_id=bookie_id
    )
    loop = asyncio.get_running_loop()

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    config = StorageConfig(journal, (stored,), bookie_id)
    if bytes_per_s is not None:
        config = replace(config, compaction_bytes_per_s=bytes_per_s)
    bookie = open_bookie(
        config,
        post=post,
        on_fatal=print,
        keys=_NoKeys(),
    )
    load = Load(bookie, stored, live_bytes, seed)
    await load.run(seconds)
    figures = load.figures(seconds)
    await asyncio.to_thread(bookie.close)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--live-mb", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compaction-bytes-per-s", type=int, help="0: whole logs only")
    parser.add_argument("--directory", type=Path, help="where to store; a temporary one if missing")
    parser.add_argument("--bookies", type=int, help="real ones, and a stream with retention")
    parser.add_argument("--steady", action="store_true", help="with --bookies: a keeper throughout")
    parser.add_argument("--looks", action="store_true", help="with --bookies: a line a second")
    parser.add_argument("--json", action="store_true", help="for scripts")
    options = parser.parse_args()
    seconds, live_bytes = options.minutes * 60, options.live_mb * 10**6
    if options.bookies:
        figures = retention_cluster.measure(
            options.bookies,
            live_bytes,
            seconds,
            steady=options.steady,
            says_looks=options.looks,
        )
    else:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            rate = options.compaction_bytes_per_s
            figures = asyncio.run(measure(Path(directory), seconds, live_bytes, options.seed, rate))
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name.replace('_', ' '):40} {value}")


if __name__ == "__main__":
    main()
