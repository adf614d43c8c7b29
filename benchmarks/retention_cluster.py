"""How much disk a stream with retention takes on real bookies, and what appends pay for that.

``python -m benchmarks.retention --bookies 3`` runs it. Writers commit to one stream as fast as it
takes them, beside a ledger that appends small entries one at a time. A keeper drops what retention
does not keep, bookies collect and compact. For a part of each minute there is no keeper, so nothing
is dropped, collected or compacted: appends of then are what those beside it are compared with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.paths import scratch
from benchmarks.percentiles import p99_ms
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.limits import KIB, MIB
from spark_ledger.local import LocalCluster
from spark_ledger.stream.catalog import StreamCatalog
from spark_ledger.stream.model import Compression, Retention
from spark_ledger.stream.stream import Stream

SCHEMA = pa.schema([("payload", pa.binary())])
NAME = "measured"
COMMIT_BYTES = 4 * MIB
WRITERS = 4
SMALL_ENTRY = b"s" * KIB
SMALL_PAUSE_S = 0.02
SMALL_LEDGER_S = 30.0
COLLECTION_INTERVAL_S = 0.5
KEEPER = ("--interval", "0.3", "--owner-grace", "10", "--dropped-grace", "1", "--no-autorecovery")
"""At full speed two gigabytes are written in seconds, so space has to come back in seconds."""

CYCLE_S = 60.0
SETTLING_S = 6.0
QUIET_S = 10.0
CATCHING_UP_S = 14.0
DISK_FACTOR_MAX = 10
"""More than so many times what is kept ends the run: nothing is given back."""


class Phase(StrEnum):
    """What goes on beside the appends."""

    FILL = "first_fill"
    """Nothing was dropped yet."""

    BUSY = "with_compaction"
    """The keeper drops, bookies collect and compact."""

    SETTLING = "settling"
    """The keeper is stopped, and what it began comes to its end."""

    QUIET = "without"
    """Nothing is dropped, collected or compacted."""

    CATCHING_UP = "catching_up"
    """The keeper is back and drops what it missed."""


@dataclass
class _Seen:
    """Figures of the run."""

    commits_s: dict[Phase, list[float]] = field(default_factory=lambda: {p: [] for p in Phase})
    appends_s: dict[Phase, list[float]] = field(default_factory=lambda: {p: [] for p in Phase})
    disk_bytes: list[tuple[Phase, int, int, int]] = field(default_factory=list)
    """Phase, the most that a bookie takes, payload that is live, payload that metadata name."""
    most: Counter[str] = field(default_factory=Counter)
    """What the fullest bookie had on its disk when that was most."""
    written_bytes: int = 0


class _Keeper:
    """``ledger keeper run`` as a process that can be stopped for a while."""

    def __init__(self, uri: str, *, speaks: bool) -> None:
        self._uri = uri
        self._speaks = speaks
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "spark_ledger.cli", "keeper", "run"),
                *(*KEEPER, "--until-input-ends"),
            ],
            env={**os.environ, "SPARK_LEDGER_METADATA": self._uri},
            stdin=subprocess.PIPE,
            stderr=None if self._speaks else subprocess.DEVNULL,
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def disk_bytes(directory: Path) -> Counter[str]:
    """What the files below it take on the disk, by what they are."""
    used: Counter[str] = Counter()
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # collected meanwhile
            used[_kind(path)] += path.stat().st_blocks * 512
    return used


def _kind(path: Path) -> str:
    if path.suffix == ".log" and path.name.startswith("entries-"):
        return "entry_logs"
    if path.suffix == ".log" and path.parent.name == "ledgers":
        return "run_logs"
    return "journal" if path.parent.name == "journal" else "others"


class _Load:
    """Writers, the small appends, the phases and the looks; everything on one loop."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: LedgerClient,
        live_bytes: int,
        seconds: float,
        *,
        steady: bool,
        says_looks: bool,
    ) -> None:
        self._steady = steady
        self._says_looks = says_looks
        self._cluster = cluster
        self._client = client
        self._catalog = StreamCatalog(client)
        self._live_max = live_bytes
        self._keeper = _Keeper(cluster.uri, speaks=says_looks)
        self._ends_at = time.perf_counter() + seconds
        self._began_at = time.perf_counter()
        self._phase = Phase.FILL
        self._seen = _Seen()

    @property
    def _is_over(self) -> bool:
        return time.perf_counter() >= self._ends_at

    async def _write(self, stream: Stream, table: pa.Table) -> None:
        """Commit as fast as the stream takes it."""
        while not self._is_over:
            phase, began = self._phase, time.perf_counter()
            await stream.append(table)
            self._seen.commits_s[phase].append(time.perf_counter() - began)
            self._seen.written_bytes += COMMIT_BYTES

    async def _append_small(self) -> None:
        """Small appends, one at a time, to ledgers that are deleted again."""
        while not self._is_over:
            writer = await self._client.create_ledger()
            rolls_at = time.perf_counter() + SMALL_LEDGER_S
            while not self._is_over and time.perf_counter() < rolls_at:
                phase, began = self._phase, time.perf_counter()
                await writer.append(SMALL_ENTRY)
                self._seen.appends_s[phase].append(time.perf_counter() - began)
                await asyncio.sleep(SMALL_PAUSE_S)
            await writer.close()
            await self._client.delete_ledger(writer.ledger_id)

    async def _look(self, stream: Stream) -> None:
        """Each second, what the fullest bookie takes and what is live."""
        directories = [
            self._cluster.bookie_directory(index) for index in range(len(self._cluster.bookie_ids))
        ]
        while not self._is_over:
            uses = await asyncio.to_thread(lambda: list(map(disk_bytes, directories)))
            fullest = max(uses, key=Counter.total)
            used = fullest.total()
            extent = await stream.retention.extent()
            named = extent.live_bytes + extent.reclaimable_bytes
            self._seen.disk_bytes.append((self._phase, used, extent.live_bytes, named))
            if self._says_looks:
                self._say(extent.live_bytes, named, fullest)
            if self._phase is Phase.BUSY and used >= self._seen.most.total():
                self._seen.most = fullest
            if self._phase is Phase.FILL and extent.head.size_bytes >= self._live_max:
                self._phase = Phase.BUSY
            if used > DISK_FACTOR_MAX * self._live_max:
                raise RuntimeError(f"a bookie takes {used:,} bytes: nothing is given back")
            await asyncio.sleep(1.0)

    def _say(self, live_bytes: int, named_bytes: int, fullest: Counter[str]) -> None:
        """A line of a look, so that one sees when the disk was fullest and with what."""
        print(
            f"{time.perf_counter() - self._began_at:6.1f} s  {self._phase:15}",
            f"written {self._seen.written_bytes / 1e6:7,.0f} MB",
            f"live {live_bytes / 1e6:6,.0f}  named {named_bytes / 1e6:6,.0f} ",
            f"fullest {fullest.total() / 1e6:6,.0f}:",
            *(f"{what} {size / 1e6:,.0f}" for what, size in sorted(fullest.items())),
            file=sys.stderr,
        )

    async def _sleep(self, seconds: float) -> None:
        left = self._ends_at - time.perf_counter()
        await asyncio.sleep(max(0.0, min(seconds, left)))

    async def _turn_phases(self) -> None:
        """Take the keeper away for a part of each minute, once the first fill is over."""
        await asyncio.to_thread(self._keeper.start)
        while self._phase is Phase.FILL and not self._is_over:
            await self._sleep(0.5)
        while not self._steady and not self._is_over:
            await self._sleep(CYCLE_S - SETTLING_S - QUIET_S - CATCHING_UP_S)
            if self._is_over:
                break
            self._phase = Phase.SETTLING
            await asyncio.to_thread(self._keeper.stop)
            await self._sleep(SETTLING_S)
            self._phase = Phase.QUIET
            await self._sleep(QUIET_S)
            self._phase = Phase.CATCHING_UP
            await asyncio.to_thread(self._keeper.start)
            await self._sleep(CATCHING_UP_S)
            self._phase = Phase.BUSY

    async def run(self) -> dict[str, Any]:
        """Everything at once; the figures."""
        stream = await self._catalog.create(
            NAME,
            SCHEMA,
            compression=Compression.NONE,
            retention=Retention(size_bytes=self._live_max),
        )
        handles = [stream, *[await self._catalog.open(NAME) for _each in range(WRITERS)]]
        choose = random.Random(1)
        rows = [choose.randbytes(64 * KIB) for _each in range(COMMIT_BYTES // (64 * KIB))]
        table = pa.table({"payload": rows}, SCHEMA)
        try:
            async with asyncio.TaskGroup() as tasks:
                for handle in handles[1:]:
                    tasks.create_task(self._write(handle, table))
                for duty in (self._append_small(), self._look(stream), self._turn_phases()):
                    tasks.create_task(duty)
        finally:
            self._keeper.stop()
            for handle in handles:
                await handle.close()
        return self._figures()

    def _figures(self) -> dict[str, Any]:
        seen, seconds = self._seen, time.perf_counter() - self._began_at
        after = [look for look in seen.disk_bytes if look[0] is not Phase.FILL]
        with_keeper = [look for look in after if look[0] is Phase.BUSY]
        middle = len(with_keeper) // 2
        return {
            "seconds": round(seconds),
            "written_mb_per_s": round(seen.written_bytes / seconds / 1e6, 1),
            "live_mb": round(_most(after, lambda look: look[2]) / 1e6),
            "disk_mb_most": round(_most(with_keeper, lambda look: look[1]) / 1e6),
            "disk_mb_most_first_half": round(_most(with_keeper[:middle], lambda k: k[1]) / 1e6),
            "disk_mb_most_second_half": round(_most(with_keeper[middle:], lambda k: k[1]) / 1e6),
            "disk_mb_most_without_keeper": round(_most(after, lambda look: look[1]) / 1e6),
            "disk_over_live_median": _median(with_keeper, lambda look: look[1] / look[2]),
            "disk_over_live_most": round(_most(with_keeper, lambda look: look[1] / look[2]), 2),
            "disk_over_named_most": round(_most(with_keeper, lambda look: look[1] / look[3]), 2),
            "looks": len(with_keeper),
            **{f"most_mb_{what}": round(size / 1e6) for what, size in sorted(seen.most.items())},
            "append_p99_ratio": _ratio(seen.appends_s),
            "commit_p99_ratio": _ratio(seen.commits_s),
            **{f"append_p99_ms_{phase}": p99_ms(seen.appends_s[phase]) for phase in Phase},
            **{f"commit_p99_ms_{phase}": p99_ms(seen.commits_s[phase]) for phase in Phase},
            **{f"commits_{phase}": len(seen.commits_s[phase]) for phase in Phase},
        }


_Look = tuple[Phase, int, int, int]


def _most(looks: list[_Look], of: Callable[[_Look], float]) -> float:
    return max(map(of, looks), default=0.0)


def _median(looks: list[_Look], of: Callable[[_Look], float]) -> float:
    ordered = sorted(map(of, looks)) or [0.0]
    return round(ordered[len(ordered) // 2], 2)


def _ratio(times_s: dict[Phase, list[float]]) -> float:
    """The p99 beside compaction over that without: of the quiet phases, or of the first fill."""
    without_ms = p99_ms(times_s[Phase.QUIET] or times_s[Phase.FILL])
    return round(p99_ms(times_s[Phase.BUSY]) / without_ms, 2) if without_ms else 0.0


async def _measure(
    cluster: LocalCluster, live_bytes: int, seconds: float, *, steady: bool, says_looks: bool
) -> dict[str, Any]:
    async with await LedgerClient.connect(cluster.uri) as client:
        load = _Load(cluster, client, live_bytes, seconds, steady=steady, says_looks=says_looks)
        return await load.run()


def measure(
    bookies: int, live_bytes: int, seconds: float, *, steady: bool, says_looks: bool
) -> dict[str, Any]:
    """Run the load on a new cluster of this machine. ``steady``: the keeper is there all the time,
    so the disks are as full as they are without anybody's absence. ``says_looks``: a line a second
    on standard error, among what the keeper says."""
    with (
        scratch(),
        LocalCluster(bookies=bookies, collection_interval_s=COLLECTION_INTERVAL_S) as cluster,
    ):
        return asyncio.run(
            _measure(cluster, live_bytes, seconds, steady=steady, says_looks=says_looks)
        )
