"""What thousands of writers cost their client beside a bookie that hangs.

``python -m benchmarks.silent_bookie --writers 3000 --seconds 30`` opens so many ledgers over three
bookies (E 3, WQ 3, AQ 2) in one client, stops the process of one bookie (SIGSTOP), and appends one
more entry to each ledger. Two bookies confirm it, the third owes 3,000 answers. From then on nobody
appends: what the client's process uses is its timers, its looks at the bookie that is silent, and
the changes of ensembles. It prints the share of a core before and after, second by second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.client.writer import LedgerWriter
from spark_ledger.local import LocalCluster

_AT_ONCE: Final = 100
"""Ledgers that are made at the same time."""

_LOOK_S: Final = 1.0


async def _open(client: LedgerClient, writers: int) -> list[LedgerWriter]:
    """So many open ledgers, each with an entry."""
    opened: list[LedgerWriter] = []
    while len(opened) < writers:
        count = min(_AT_ONCE, writers - len(opened))
        made = (
            client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            for _ in range(count)
        )
        opened += await asyncio.gather(*made)
    await asyncio.gather(*(writer.append(b"before") for writer in opened))
    return opened


@contextmanager
def _silent(pid: int) -> Iterator[None]:
    """Stop a process meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _shares(seconds: float) -> list[float]:
    """Of one core, what this process uses, look by look."""
    shares: list[float] = []
    ends_at = time.monotonic() + seconds
    while (began := time.monotonic()) < ends_at:
        used = time.process_time()
        await asyncio.sleep(_LOOK_S)
        shares.append((time.process_time() - used) / (time.monotonic() - began))
    return shares


async def measure(cluster: LocalCluster, writers: int, seconds: float) -> dict[str, Any]:
    """Open, stop, append, look."""
    async with await LedgerClient.connect(cluster.uri) as client:
        opened = await _open(client, writers)
        before = await _shares(min(seconds, 5.0))
        with _silent(cluster.bookie_pid(0)):
            began = time.monotonic()
            await asyncio.gather(*(writer.append(b"beside") for writer in opened))
            confirmed_s = time.monotonic() - began
            shares = await _shares(seconds)
        await asyncio.gather(*(writer.append(b"after") for writer in opened))
        changes = [len(writer.metadata.fragments) - 1 for writer in opened]
        await asyncio.gather(*(writer.close() for writer in opened))
    return {
        "writers": writers,
        "all_confirmed_s": round(confirmed_s, 2),
        "core_before_percent": round(100 * sum(before) / len(before), 1),
        "core_percent": round(100 * sum(shares) / len(shares), 1),
        "core_percent_by_second": [round(100 * share) for share in shares],
        "ensemble_changes_most": max(changes),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=3_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with LocalCluster(bookies=3) as cluster:
        print(json.dumps(asyncio.run(measure(cluster, options.writers, options.seconds)), indent=1))


if __name__ == "__main__":
    main()
