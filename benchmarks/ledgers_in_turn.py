"""Command: ``python -m benchmarks.ledgers_in_turn``: what an entry costs a client of many ledgers.

A local cluster of three bookies; one client appends an entry of 1 KiB to each of its ledgers in
turn, three copies each, some 2,000 in flight. Wall time depends on the machine and on what else
runs on it; processor time does so less.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import psutil

from benchmarks.cases import KIB
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.local import LocalCluster

_BOOKIES = 3
_CREATED_AT_ONCE = 100
_PAYLOAD = bytes(range(256)) * (KIB // 256)


def _bookies_s(cluster: LocalCluster) -> float:
    """Processor seconds of the bookies until now."""
    times = [psutil.Process(cluster.bookie_pid(index)).cpu_times() for index in range(_BOOKIES)]
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


async def _measure(cluster: LocalCluster, ledgers: int, in_flight: int, seconds: float) -> None:
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
                _bookies_s(cluster),
            )
            entries = await _append(writers, in_flight, seconds)
            seconds_taken, used = time.perf_counter() - began, time.process_time() - used
            used_there = (_bookies_s(cluster) - used_there) / _BOOKIES
            print(
                f"  {entries / seconds_taken:9,.0f} entries/s, "
                f"{1e6 * used / entries:6.1f} us of the client each, "
                f"{1e6 * used_there / entries:6.1f} us of a bookie"
            )


def main() -> None:
    """Print three rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=1_000)
    parser.add_argument("--in-flight", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    options = parser.parse_args()
    with LocalCluster(bookies=_BOOKIES) as cluster:
        asyncio.run(_measure(cluster, options.ledgers, options.in_flight, options.seconds))


if __name__ == "__main__":
    main()
