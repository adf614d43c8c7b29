"""Garbage collection over many ledgers: ``python -m benchmarks.collection [LEDGERS]``.

One bookie in this process with real files, metadata in a real ZooKeeper, a tenth of the ledgers
deleted. Appends of one small run at a time go on beside the pass, and alone before it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

from benchmarks.paths import scratch
from bookie_server.bookie import Bookie
from bookie_server.collection.collecting import CollectionConfig
from bookie_server.collection.collector import CollectorConfig, LedgerCollector
from bookie_server.core.transitions import KnownLedger
from bookie_server.daemon_thread import in_daemon_thread
from bookie_server.first_contact import Answer, NoLedgers
from bookie_server.opening import open_bookie
from bookie_server.storage.config import StorageConfig
from bookie_server.storage.cookie import format_directories
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.limits import MIB
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.base import Create, Delete, MetadataStore
from spark_ledger.metadata.codec import encode_ledger
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.ledger_ids import raise_counter
from spark_ledger.metadata.ledgers import ledger_path
from spark_ledger.runs import EntryRun
from spark_ledger.types import (
    NO_ENTRY,
    BookieId,
    BookieStatus,
    EntryId,
    Fragment,
    LedgerId,
    LedgerMetadata,
    Quorums,
)

_BOOKIE = BookieId("measured")
_NODES = 500
_ALONE_S = 5.0
_WAITING = 2_000


class _AnyLedger(NoLedgers):
    """Keys of ledgers that have none."""

    def look_up(self, ledger_id: LedgerId, answer: Answer) -> None:
        """Allow it."""
        answer(KnownLedger(b""))


def _run(ledger_id: int, entry_id: int) -> EntryRun:
    frame = b"%032d" % entry_id
    return EntryRun(LedgerId(ledger_id), EntryId(entry_id), None, (len(frame),), frame)


async def _add(bookie: Bookie, ledger_id: int, entry_id: int) -> None:
    loop = asyncio.get_running_loop()
    durable: asyncio.Future[BookieStatus] = loop.create_future()
    bookie.add(
        _run(ledger_id, entry_id),
        access_key=b"",
        recovery=False,
        last_add_confirmed=NO_ENTRY,
        done=lambda status, _text: durable.set_result(status),
    )
    assert await durable is BookieStatus.OK


def _discard(_handle: asyncio.Handle) -> None:
    """Nobody cancels it."""


async def _appends(bookie: Bookie, ledger_id: int, stop: asyncio.Event) -> tuple[int, float]:
    """Appends one by one until told to stop: how many, and how many seconds."""
    started, count = time.perf_counter(), 0
    while not stop.is_set():
        await _add(bookie, ledger_id, count)
        count += 1
    return count, time.perf_counter() - started


async def _metadata(store: MetadataStore, ledgers: int) -> None:
    """The nodes of all ledgers; every tenth is deleted again."""
    fragment = Fragment(EntryId(0), (_BOOKIE,))
    await store.create(ledger_path(LedgerId(0)), b"")
    for start in range(0, ledgers + 1, 10_000):
        path = ledger_path(LedgerId(start)).rpartition("/")[0]
        if not await store.children(path):
            await store.create(f"{path}/x", b"")
    await raise_counter(store, ledgers + 10)
    for start in range(1, ledgers + 1, _NODES):
        ids = [LedgerId(each) for each in range(start, min(start + _NODES, ledgers + 1))]
        await store.transaction(
            [
                Create(
                    ledger_path(each),
                    encode_ledger(LedgerMetadata(each, Quorums(1, 1, 1), (fragment,))),
                )
                for each in ids
            ]
        )
        await store.transaction([Delete(ledger_path(each)) for each in ids if each % 10 == 0])


async def _measure(uri: str, directory: Path, ledgers: int) -> None:
    loop = asyncio.get_running_loop()
    store = await open_store(uri)
    await _metadata(store, ledgers)
    files = PosixFileSystem()
    journal, stored = directory / "journal", directory / "ledgers"
    format_directories(files, journal, [stored], cluster_id="c", bookie_id=_BOOKIE)
    bookie = open_bookie(
        StorageConfig(journal, (stored,), _BOOKIE, journal_file_bytes=64 * MIB),
        post=lambda work: _discard(loop.call_soon_threadsafe(work)),
        on_fatal=sys.exit,
        on_state_changed=lambda: None,
        keys=_AnyLedger(),
    )
    for start in range(1, ledgers + 1, _WAITING):
        ids = range(start, min(start + _WAITING, ledgers + 1))
        await asyncio.gather(*(_add(bookie, each, 0) for each in ids))
    await asyncio.to_thread(bookie.flush)
    collector = LedgerCollector(
        bookie,
        store,
        _BOOKIE,
        CollectorConfig(each=CollectionConfig(pause_s=10.0)),
        files=files,
        directory=stored,
        run_on_disk=in_daemon_thread,
        new_ledgers=lambda: ledgers,
        is_full=lambda: False,
        why_not=str,
    )
    alone_stop, beside_stop = asyncio.Event(), asyncio.Event()
    loop.call_later(_ALONE_S, alone_stop.set)
    count, seconds = await _appends(bookie, ledgers + 1, alone_stop)
    beside = asyncio.create_task(_appends(bookie, ledgers + 2, beside_stop))
    cpu, report = time.process_time(), await collector.run_pass()
    beside_stop.set()
    beside_count, beside_s = await beside
    print(f"pass: {report.duration_s:.1f} s with a pause of 10 s, {report.aborted or 'done'}")
    print(f"  {report.held} ledgers held, {report.deleted} of them deleted")
    print(f"  processor time of all, appends included: {time.process_time() - cpu:.1f} s")
    print(f"appends, one at a time: {count / seconds:.0f}/s alone, ", end="")
    print(f"{beside_count / beside_s:.0f}/s beside it")
    print(f"threads: {threading.active_count()}")
    await asyncio.to_thread(bookie.close)
    await store.close()


def main() -> None:
    """Measure and print."""
    ledgers = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with LocalCluster(bookies=1) as cluster, scratch() as directory:
        asyncio.run(_measure(cluster.uri, directory, ledgers))


if __name__ == "__main__":
    main()
