"""How long a bookie's service loop stands still while many ledgers are written in turn.

``python -m benchmarks.many_ledgers --ledgers 100000 --seconds 40`` runs one bookie's storage with
its threads on a loop as its process does, adds one small entry to each ledger in turn, asks for the
statistics and for entries that do not exist meanwhile, and prints the longest gaps between two
turns of the loop. The load takes part of each turn: "own" is the longest part that is the
program's. On a machine with other work a gap may be somebody else's: "cpu_gap" is the processor
time that this process used in it, so it is what its own threads kept the loop from.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bookie_server.bookie import Bookie
from bookie_server.core.transitions import KnownLedger
from bookie_server.first_contact import Answer, NoLedgers
from bookie_server.garbage import Collector
from bookie_server.opening import open_bookie
from bookie_server.process_settings import set_up_process
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.runs import EntryRun
from spark_ledger.types import BookieId, BookieStatus, EntryId, LedgerId
from spark_ledger.wire.frame import HEADER_BYTES

CHUNK = 25
"""Adds of one turn of the loop."""

IN_FLIGHT_MAX = 1_000
PROBE_S = 0.001


class _NoKeys(NoLedgers):
    """All ledgers were made without a key."""

    def look_up(self, ledger_id: LedgerId, answer: Answer) -> None:
        """Answer at once, as from memory."""
        answer(KnownLedger(b""))


class Load:
    """Adds to ledgers in turn, and what was seen meanwhile. Everything on the loop."""

    def __init__(self, bookie: Bookie, ledgers: int) -> None:
        self.bookie = bookie
        self.ledgers = ledgers
        self.added = self.answered = 0
        self.gaps: list[float] = []
        self.cpu_gaps: list[float] = []
        self.own_max = 0.0
        self.stats_s: list[float] = []
        self.denials_s: list[float] = []
        self.ends_at = 0.0
        self.all_answered = asyncio.Event()

    def done(self, status: BookieStatus, message: str) -> None:
        """One add was answered."""
        assert status is BookieStatus.OK, message
        self.answered += 1
        if self.answered == self.added:
            self.all_answered.set()

    async def add(self) -> None:
        """Add until the end, some per turn of the loop."""
        frame = bytes(HEADER_BYTES + 60)
        while time.perf_counter() < self.ends_at:
            if self.added - self.answered >= IN_FLIGHT_MAX:
                await asyncio.sleep(PROBE_S)
                continue
            started = time.perf_counter()
            with self.bookie.batch():
                for number in range(self.added, self.added + CHUNK):
                    ledger, entry = number % self.ledgers, number // self.ledgers
                    run = EntryRun(LedgerId(ledger), EntryId(entry), None, [len(frame)], frame)
                    self.bookie.add(
                        run,
                        access_key=b"",
                        recovery=False,
                        last_add_confirmed=EntryId(entry - 1),
                        done=self.done,
                    )
            self.added += CHUNK
            self.all_answered.clear()
            self.own_max = max(self.own_max, time.perf_counter() - started)
            await asyncio.sleep(0)

    async def probe(self) -> None:
        """Measure how late the loop comes back."""
        while (before := time.perf_counter()) < self.ends_at:
            cpu_before = time.process_time()
            await asyncio.sleep(PROBE_S)
            self.gaps.append(time.perf_counter() - before - PROBE_S)
            self.cpu_gaps.append(time.process_time() - cpu_before)

    async def look(self) -> None:
        """Ask for what a scrape and a reader at the end ask for, in a pool as the service does."""
        while time.perf_counter() < self.ends_at:
            await asyncio.sleep(0.5)
            self.stats_s.append(await asyncio.to_thread(timed, self.bookie.stats))
            ledger, entry = LedgerId(self.added % self.ledgers), EntryId(1 << 40)

            def deny(ledger: LedgerId = ledger, entry: EntryId = entry) -> None:
                outcome = self.bookie.read(ledger, entry, entry, stride=1, max_bytes=1)
                assert outcome.status is not BookieStatus.IO_ERROR, outcome

            self.denials_s.append(await asyncio.to_thread(timed, deny))

    async def run(self, seconds: float) -> None:
        """Everything at once, until the last add is answered: some wait for a flush."""
        self.ends_at = time.perf_counter() + seconds
        await asyncio.gather(self.add(), self.probe(), self.look())
        await self.all_answered.wait()

    def figures(self, seconds: float) -> dict[str, Any]:
        """What was seen; times in milliseconds."""
        gaps, cpu_gaps = sorted(self.gaps), sorted(self.cpu_gaps)
        storage = self.bookie.stats().ledger_storage
        return {
            "adds_per_s": round(self.answered / seconds),
            "gap_p99_ms": round(gaps[len(gaps) * 99 // 100] * 1000, 1),
            "gap_longest_ms": [round(gap * 1000, 1) for gap in gaps[-5:]],
            "gaps_over_50_ms": sum(gap > 0.05 for gap in gaps),
            "cpu_gap_longest_ms": [round(gap * 1000, 1) for gap in cpu_gaps[-5:]],
            "cpu_gaps_over_50_ms": sum(gap > 0.05 for gap in cpu_gaps),
            "own_ms": round(self.own_max * 1000, 1),
            "stats_longest_ms": round(max(self.stats_s) * 1000, 1),
            "denial_longest_ms": round(max(self.denials_s) * 1000, 1),
            "flushes": storage.flushes,
            "flush_s": round(storage.flush_time_s, 1),
            "flush_last_s": round(storage.last_flush_s, 2),
        }


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


async def measure(directory: Path, ledgers: int, seconds: float) -> dict[str, Any]:
    """Run the load on a new bookie below ``directory``."""
    journal, stored = directory / "journal", directory / "ledgers"
    bookie_id = BookieId("bookie")
    format_directories(
        PosixFileSystem(), journal, [stored], cluster_id="benchmark", bookie_id=bookie_id
    )
    loop = asyncio.get_running_loop()

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    bookie = open_bookie(
        StorageConfig(journal, (stored,), bookie_id),
        post=post,
        on_fatal=print,
        keys=_NoKeys(),
    )
    collector = Collector(lambda: bookie.objects_held)
    collector.start()
    load = Load(bookie, ledgers)
    await load.run(seconds)
    collector.stop()
    figures = load.figures(seconds)
    await asyncio.to_thread(bookie.close)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--directory", type=Path, help="where to store; a temporary one if missing")
    options = parser.parse_args()
    set_up_process()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        figures = asyncio.run(measure(Path(directory), options.ledgers, options.seconds))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
