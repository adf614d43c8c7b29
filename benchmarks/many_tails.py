"""Command: ``python -m benchmarks.many_tails``: how long an entry takes to reach many tails.

A local cluster of three bookies; one client appends small entries to one ledger at a steady rate,
and another client of the same process follows it with many tails, each of a reader of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
from statistics import median
from typing import Final, NamedTuple

from benchmarks.ledgers_in_turn import bookies_s
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.reader import LedgerReader
from spark_ledger.local import LocalCluster

_STAMP: Final = struct.Struct(">d")
_PAYLOAD: Final = bytes(1_000)


class Delivered(NamedTuple):
    """How late entries were, and the microseconds of a processor that each delivery took."""

    p50_ms: float
    p99_ms: float
    deliveries: int
    client_us: float
    bookies_us: float


async def _follow(reader: LedgerReader, late_s: list[float]) -> None:
    async for batch in reader.tail_batches():
        now = time.perf_counter()
        late_s += [now - _STAMP.unpack_from(entry.payload)[0] for entry in batch]


async def follow(cluster: LocalCluster, tails: int, rate: int, seconds: float) -> Delivered:
    """One round: from the call of each append until each tail has its entry."""
    late_s: list[float] = []
    async with (
        await LedgerClient.connect(cluster.uri) as client,
        await LedgerClient.connect(cluster.uri) as other,
    ):
        writer = await client.create_ledger()
        readers = [await other.open_ledger(writer.ledger_id) for _tail in range(tails)]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(_follow(reader, late_s))
            await asyncio.sleep(1.0)  # every tail has looked once, and waits
            used, used_there = time.process_time(), bookies_s(cluster)
            began = time.perf_counter()
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
                writer.append_nowait(_STAMP.pack(time.perf_counter()) + _PAYLOAD)
            await writer.close()
        used, used_there = time.process_time() - used, bookies_s(cluster) - used_there
    late_s.sort()
    return Delivered(
        p50_ms=1e3 * median(late_s),
        p99_ms=1e3 * late_s[len(late_s) * 99 // 100],
        deliveries=len(late_s),
        client_us=1e6 * used / len(late_s),
        bookies_us=1e6 * used_there / len(late_s),
    )


def main() -> None:
    """Print the figures of one round."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_tails", description=__doc__)
    parser.add_argument("--tails", type=int, default=200)
    parser.add_argument("--rate", type=int, default=100, help="entries a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with LocalCluster(bookies=3) as cluster:
        found = asyncio.run(follow(cluster, options.tails, options.rate, options.seconds))
    print(
        f"{options.tails} tails, {options.rate} entries/s: p50 {found.p50_ms:.0f} ms, "
        f"p99 {found.p99_ms:.0f} ms, {found.deliveries} deliveries; of a processor each: "
        f"{found.client_us:.0f} us in the client, {found.bookies_us:.0f} us in the bookies"
    )


if __name__ == "__main__":
    main()
