"""How fast the copies of a lost bookie are made again, and a bookie is emptied or filled.

``python -m benchmarks.repair --ledgers 10000`` closes so many ledgers of one small entry on five
bookies, or with ``--gb 2`` ledgers of 64 MiB that hold so much, kills one bookie, marks what it
held, and prints ledgers and bytes per second of one worker, and its processor time for each
ledger. Time that the auditor waits for the bookie to come back is not in it.

``--case decommission`` takes out a bookie that runs, up to the end: nothing names it, its cookie is
gone. ``--case rebalance`` adds a bookie, and moves copies to it. ``--case load``: see
``benchmarks.repair_load``.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from benchmarks import repair_load
from benchmarks.paths import scratch
from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.limits import KIB, MIB
from spark_ledger.local import LocalCluster
from spark_ledger.repair.auditor import Auditor
from spark_ledger.repair.decommission import decommission
from spark_ledger.repair.rebalance import Rebalance, RebalanceConfig
from spark_ledger.repair.status import look
from spark_ledger.repair.worker import Worker, WorkerConfig
from spark_ledger.types import BookieId

_BOOKIES = 5
_LOST = BookieId("bookie-1")
_CREATED_AT_ONCE = 50
_LARGE_LEDGER_BYTES = 64 * MIB
_NO_LIMIT = 1e12


async def _fill(client: LedgerClient, entries: int, payload: bytes) -> None:
    async with await client.create_ledger() as writer:
        for _ in range(entries):
            await writer.append(payload)


async def _write(client: LedgerClient, ledgers: int, gb: float) -> None:
    entries, payload = 1, b"x" * 100
    if gb:
        entries, payload = _LARGE_LEDGER_BYTES // MIB, b"x" * MIB
        ledgers = max(1, round(gb * 1e9 / _LARGE_LEDGER_BYTES))
    at_once = 4 if gb else _CREATED_AT_ONCE
    for start in range(0, ledgers, at_once):
        count = min(at_once, ledgers - start)
        await asyncio.gather(*(_fill(client, entries, payload) for _ in range(count)))


async def _measure(cluster: LocalCluster, options: argparse.Namespace) -> None:
    async with await LedgerClient.connect(cluster.uri) as client:
        began = time.perf_counter()
        await _write(client, options.ledgers, options.gb)
        print(f"  written in {time.perf_counter() - began:.1f} s")
        await _CASES[options.case](cluster, client, options)


async def _lost(cluster: LocalCluster, client: LedgerClient, options: argparse.Namespace) -> None:
    cluster.kill_bookie(1)
    while _LOST in {  # noqa: ASYNC110 - until its session ends
        each.bookie_id for each in await client.list_bookies()
    }:
        await asyncio.sleep(0.2)
    marked = await Auditor(client).audit(frozenset([_LOST]))
    worker = Worker(client, _config(options))
    began, used = time.perf_counter(), time.process_time()
    tried = await worker.run_pass()
    seconds, used = time.perf_counter() - began, time.process_time() - used
    found = await look(client.store)
    done, size_mb = found.done.ledgers, found.done.copied_bytes / 1e6
    print(
        f"  {marked:,} marked, {tried:,} tried, {done:,} repaired in {seconds:.1f} s: "
        f"{done / seconds:,.0f} ledgers/s, {size_mb / seconds:,.1f} MB/s, "
        f"{1e3 * used / max(1, tried):.2f} ms of the worker's processor each; "
        f"{sum(found.marked.values())} still marked, {found.failing} failed"
    )


def _rate(options: argparse.Namespace) -> float:
    return float(options.rate_mb * 1e6) if options.rate_mb else _NO_LIMIT


def _config(options: argparse.Namespace) -> WorkerConfig:
    rate = _rate(options)
    return WorkerConfig(
        bytes_per_s=rate, source_bytes_per_s=rate, at_once=options.at_once, open_grace_s=0.0
    )


async def _decommission(
    cluster: LocalCluster, client: LedgerClient, options: argparse.Namespace
) -> None:
    told: list[int] = []
    began, used = time.perf_counter(), time.process_time()
    left = await decommission(
        client, _LOST, _config(options), told=lambda named: told.append(named.ledgers)
    )
    seconds, used = time.perf_counter() - began, time.process_time() - used
    assert left.runs, "it serves meanwhile"
    naming = await Auditor(client).audit(frozenset([_LOST]))
    done = (await look(client.store)).done
    print(
        f"  {told[0]:,} ledgers named {_LOST}, {naming:,} at the end, after {seconds:.1f} s: "
        f"{told[0] / seconds:,.0f} ledgers/s, {done.copied_bytes / 1e6 / seconds:,.1f} MB/s, "
        f"{1e3 * used / max(1, told[0]):.2f} ms of the command's processor each"
    )


async def _rebalance(
    cluster: LocalCluster, client: LedgerClient, options: argparse.Namespace
) -> None:
    index = cluster.add_bookie()
    new = BookieId(cluster.bookie_ids[index])
    rate = _rate(options)
    config = RebalanceConfig(bytes_per_s=rate, source_bytes_per_s=rate, at_once=options.at_once)
    began = time.perf_counter()
    done = await Rebalance(client, config).run()
    seconds = time.perf_counter() - began
    part = done.after[new].used / done.mean
    print(
        f"  {done.moves:,} copies moved in {seconds:.1f} s: {done.moves / seconds:,.0f} copies/s, "
        f"{done.moved_bytes / 1e6 / seconds:,.1f} MB/s; the new bookie's share is {part:.0%} of "
        f"the mean, even: {done.is_even}, failed: {len(done.failed)}"
    )


_CASES = {"lost": _lost, "decommission": _decommission, "rebalance": _rebalance}


def main() -> None:
    """Print two lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=[*sorted(_CASES), "load"], default="lost")
    parser.add_argument("--ledgers", type=int, default=1_000, help="of one small entry")
    parser.add_argument("--gb", type=float, default=0.0, help="large ledgers instead; 2 is much")
    parser.add_argument("--rate-mb", type=float, default=0.0, help="MB/s at most; 0: no bound")
    parser.add_argument("--at-once", type=int, default=WorkerConfig().at_once)
    parser.add_argument("--entry-kib", type=int, default=1024, help="of the case load")
    options = parser.parse_args()
    if options.case == "load":
        with scratch():
            repair_load.run(_BOOKIES, options.gb or 1.0, options.entry_kib * KIB)
        return
    with LocalCluster(bookies=_BOOKIES) as cluster:
        asyncio.run(_measure(cluster, options))


if __name__ == "__main__":
    main()
