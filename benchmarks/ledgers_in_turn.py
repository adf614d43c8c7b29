"""Command: ``python -m benchmarks.ledgers_in_turn``: what an entry costs a client of many ledgers.

A local cluster of three bookies; one client appends an entry of 1 KiB to each of its ledgers in
turn, three copies each, some 2,000 in flight. Wall time depends on the machine and on what else
runs on it; processor time does so less.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import NamedTuple

import psutil

from benchmarks.cases import KIB
from benchmarks.rows import Round
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.local import LocalCluster

BOOKIES = 3
IN_FLIGHT = 2_000
_CREATED_AT_ONCE = 100
_PAYLOAD = bytes(range(256)) * (KIB // 256)


def bookies_s(cluster: LocalCluster) -> float:
    """Processor seconds of the bookies until now, added up."""
    times = [psutil.Process(cluster.bookie_pid(index)).cpu_times() for index in range(BOOKIES)]
    return sum(each.user + each.system for each in times)


async def _append(writers: list[LedgerWriter], in_flight: int, seconds: float) -> int:
    """Append to each in turn for so long; how many entries were confirmed."""
    room = asyncio.Semaphore(in_flight)
    ends_at = time.perf_counter() + seconds
    appended = 0
    while time.perf_counter() < ends_at:
        await room.acquire()
        future = writers[appended % len(writers)].append_nowait(_PAYLOAD)
        future.add_done_callback(lambda _: room.release())
        appended += 1
    for writer in writers:
        await writer.flush()
    return appended


class InTurn(NamedTuple):
    """One round, and the microseconds of a processor that each of its entries took."""

    round: Round
    client_us: float
    bookie_us: float


async def rounds(
    cluster: LocalCluster, ledgers: int, in_flight: int, seconds: float
) -> list[InTurn]:
    """Three rounds on ledgers that are made first, after a short one that is not counted."""
    found: list[InTurn] = []
    async with await LedgerClient.connect(cluster.uri) as client:
        writers: list[LedgerWriter] = []
        while len(writers) < ledgers:
            count = min(_CREATED_AT_ONCE, ledgers - len(writers))
            writers += await asyncio.gather(*(client.create_ledger() for _ in range(count)))
        await _append(writers, in_flight, seconds / 5)
        for _ in range(3):
            began, used, used_there = (
                time.perf_counter(),
                time.process_time(),
                bookies_s(cluster),
            )
            entries = await _append(writers, in_flight, seconds)
            seconds_taken, used = time.perf_counter() - began, time.process_time() - used
            used_there = (bookies_s(cluster) - used_there) / BOOKIES
            result = Round("append", entries, seconds_taken)
            found.append(InTurn(result, 1e6 * used / entries, 1e6 * used_there / entries))
    return found


def main() -> None:
    """Print three rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=1_000)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    options = parser.parse_args()
    with LocalCluster(bookies=BOOKIES) as cluster:
        each = rounds(cluster, options.ledgers, options.in_flight, options.seconds)
        for found in asyncio.run(each):
            print(
                f"  {found.round.per_second:9,.0f} entries/s, "
                f"{found.client_us:6.1f} us of the client each, "
                f"{found.bookie_us:6.1f} us of a bookie"
            )


if __name__ == "__main__":
    main()
