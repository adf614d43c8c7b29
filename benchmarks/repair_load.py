"""A bookie is lost for good under load: how fast its copies come back, and what appends pay.

``python -m benchmarks.repair --case load --gb 20``: so much is written to five bookies in ledgers
of 64 MiB, one is killed and its disk taken away, and repair works with its default rates beside
appends of 1 KiB, every 20 ms, and of 64 KiB, some 2 MB/s. At the end two more are killed, which
held the oldest copies, and everything is read back, beside the repair of what those held.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass, field
from statistics import median

from benchmarks.percentiles import p99_ms
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.limits import KIB, MIB
from spark_ledger.limits.repair import REPAIR_BYTES_PER_S
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.unsettled import pages
from spark_ledger.repair.nodes import PRIORITIES, RepairDone, mark_root
from spark_ledger.repair.status import look
from spark_ledger.types import LedgerId

LOST_AFTER_S = 5.0
QUIET_S = 30.0
LEDGER_BYTES = 64 * MIB
WRITTEN_AT_ONCE = 4
_LOST = 1


@dataclass
class _Seen:
    """Latencies of small appends, by what went on beside them."""

    phase: str = "before"
    appends_s: dict[str, list[float]] = field(default_factory=dict)
    acknowledged: int = 0


def _payload(number: int, size: int) -> bytes:
    return number.to_bytes(8, "big") * (size // 8)


async def _fill(client: LedgerClient, count: int, entry_bytes: int) -> list[LedgerId]:
    at_once = max(1, MIB // entry_bytes)

    async def one() -> LedgerId:
        async with await client.create_ledger() as writer:
            for first in range(0, LEDGER_BYTES // entry_bytes, at_once):
                numbers = range(first, first + at_once)
                payloads = (_payload(number, entry_bytes) for number in numbers)
                await asyncio.gather(*map(writer.append, payloads))
        return writer.ledger_id

    written: list[LedgerId] = []
    for start in range(0, count, WRITTEN_AT_ONCE):
        at_once = min(WRITTEN_AT_ONCE, count - start)
        written += await asyncio.gather(*(one() for _ in range(at_once)))
    return written


async def _append(client: LedgerClient, seen: _Seen, size: int, pause_s: float) -> None:
    """Append for ever, one at a time; the latency of small ones counts."""
    async with await client.create_ledger() as writer:
        while seen.phase != "over":
            phase, began = seen.phase, time.perf_counter()
            await writer.append(b"s" * size)
            seen.acknowledged += 1
            if size == KIB:
                seen.appends_s.setdefault(phase, []).append(time.perf_counter() - began)
            await asyncio.sleep(pause_s)


async def _repaired(client: LedgerClient) -> tuple[RepairDone, float, float]:
    """Wait until nothing is marked any more; what was done, since when, and until when."""
    began = ended = 0.0
    while True:
        # Not by a status: it reads the metadata of what is marked, beside what is measured.
        marked = await _marked(client)
        now = time.perf_counter()
        if marked and not began:
            began = now
        if began and not marked:
            break
        ended = now
        await asyncio.sleep(0.5)
    return (await look(client.store)).done, began, ended


async def _marked(client: LedgerClient) -> bool:
    for copies in PRIORITIES:
        async for page in pages(client.store, mark_root(copies)):
            if page.ids:
                return True
    return False


async def _read_all(
    client: LedgerClient, ledgers: list[LedgerId], entry_bytes: int
) -> tuple[int, float]:
    """How many entries there are, and how many seconds the slowest ledger took."""
    count, slowest_s = 0, 0.0
    for ledger_id in ledgers:
        began = time.perf_counter()
        reader = await client.open_ledger(ledger_id)
        async for entry in reader.read(0, reader.last_add_confirmed):
            assert entry.payload == _payload(entry.entry_id, entry_bytes), (
                ledger_id,
                entry.entry_id,
            )
            count += 1
        slowest_s = max(slowest_s, time.perf_counter() - began)
    return count, slowest_s


async def _measure(cluster: LocalCluster, gb: float, entry_bytes: int) -> None:
    async with await LedgerClient.connect(cluster.uri) as client:
        ledgers = await _fill(client, max(1, round(gb * 1e9 / LEDGER_BYTES)), entry_bytes)
        print(f"  {len(ledgers)} ledgers of 64 MiB written", flush=True)
        seen = _Seen()
        async with asyncio.TaskGroup() as group:
            group.create_task(_append(client, seen, KIB, 0.02))
            group.create_task(_append(client, seen, 64 * KIB, 0.03))
            await asyncio.sleep(QUIET_S)
            seen.phase = "failover"
            await asyncio.to_thread(cluster.kill_bookie, _LOST)
            await asyncio.to_thread(shutil.rmtree, cluster.bookie_directory(_LOST) / "ledgers")
            await asyncio.sleep(LOST_AFTER_S)
            seen.phase = "repair"
            done, began, ended = await _repaired(client)
            seen.phase = "over"
        seconds = ended - began
        rate = done.copied_bytes / seconds
        phases = ("before", "failover", "repair")
        p99 = {phase: p99_ms(seen.appends_s[phase]) for phase in phases}
        p50 = {phase: 1e3 * median(seen.appends_s[phase]) for phase in phases}
        print(
            f"  {done.ledgers} ledgers, {done.copied_bytes / 1e6:,.0f} MB copied in {seconds:.0f} s"
            f": {rate / 1e6:.1f} MB/s, {rate / REPAIR_BYTES_PER_S:.0%} of the throttle\n"
            f"  p99 of 1 KiB appends: {p99['before']} ms before, {p99['failover']} ms while the "
            f"bookie was lost, {p99['repair']} ms beside repair "
            f"({p99['repair'] / p99['before']:.2f} times); {seen.acknowledged:,} acknowledged\n"
            f"  p50: {p50['before']:.1f} ms before, {p50['repair']:.1f} ms beside repair "
            f"({p50['repair'] / p50['before']:.2f} times)",
            flush=True,
        )
        oldest = (await client.ledger_metadata(ledgers[0])).fragments[0].bookies
        for name in oldest[:2]:
            cluster.kill_bookie(cluster.bookie_ids.index(name))
        count, slowest_s = await _read_all(client, ledgers, entry_bytes)
        print(
            f"  {' and '.join(oldest[:2])} killed as well: {count:,} entries read, none lost; "
            f"the slowest ledger took {slowest_s:.1f} s"
        )


def run(bookies: int, gb: float, entry_bytes: int) -> None:
    """Measure on a new cluster, whose keeper repairs."""
    with LocalCluster(bookies=bookies, keeper=True, lost_bookie_delay_s=LOST_AFTER_S) as cluster:
        asyncio.run(_measure(cluster, gb, entry_bytes))
