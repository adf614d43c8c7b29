"""The garbage collection of a bookie that serves: made from its configuration, run on its loop."""

from __future__ import annotations

from collections.abc import Callable

from bookie_server.bookie import Bookie
from bookie_server.collection.collecting import CollectionConfig
from bookie_server.collection.collector import CollectorConfig, LedgerCollector
from bookie_server.config import BookieConfig
from bookie_server.daemon_thread import in_daemon_thread
from bookie_server.storage.fs.posix_fs import PosixFileSystem
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.types import BookieId


def ledger_collector(
    config: BookieConfig,
    bookie: Bookie,
    store: MetadataStore,
    bookie_id: BookieId,
    new_ledgers: Callable[[], int],
) -> LedgerCollector:
    """``new_ledgers``: how many the bookie was allowed to take since it started."""

    def is_full() -> bool:
        return any(each.reason for each in bookie.disks.states.ledgers)

    def reclaimable_bytes() -> int:
        directories = bookie.stats().ledger_storage.compaction.directories
        return sum(each.reclaimable_bytes for each in directories)

    def why_not() -> str:
        stall = bookie.stall
        return bookie.failure or ("" if stall is None else stall.reason)

    return LedgerCollector(
        bookie,
        store,
        bookie_id,
        CollectorConfig(
            interval_s=config.collection.interval_s,
            each=CollectionConfig(
                pause_s=config.collection.pause_s, share_max=config.collection.share_max
            ),
        ),
        files=PosixFileSystem(),
        directory=config.ledger_directories[0],
        run_on_disk=in_daemon_thread,
        new_ledgers=new_ledgers,
        is_full=is_full,
        why_not=why_not,
        reclaimable_bytes=reclaimable_bytes,
    )
