"""The garbage collection of a bookie has the bookie's configuration, and asks the bookie."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from bookie_server.bookie import Bookie
from bookie_server.collection_task import ledger_collector
from bookie_server.config import parse
from bookie_server.core.disk_space import UNKNOWN
from bookie_server.core.read_only import Cause, Stall
from bookie_server.daemon_thread import in_daemon_thread
from bookie_server.storage.ledgers.compaction import DirectoryUse
from spark_ledger.metadata.memory import MemoryMetadataStore, MemoryTree
from spark_ledger.types import BookieId

TEXT = (
    'metadata = "zk://h/x"\n[collection]\ninterval_s = 901.0\npause_s = 11.0\nshare_max = 0.25\n'
    '[storage]\njournal_directory = "/j"\nledger_directories = ["/l0", "/l1"]\n'
)


def test_collection_asks_the_bookie_and_goes_by_its_configuration() -> None:
    disks = SimpleNamespace(states=SimpleNamespace(ledgers=(UNKNOWN, UNKNOWN)))
    uses = (DirectoryUse(reclaimable_bytes=3), DirectoryUse(log_bytes=100, reclaimable_bytes=4))
    compaction = SimpleNamespace(directories=uses)
    bookie = SimpleNamespace(
        disks=disks,
        stall=None,
        failure="",
        stats=lambda: SimpleNamespace(ledger_storage=SimpleNamespace(compaction=compaction)),
    )

    async def main() -> None:
        store = MemoryMetadataStore(MemoryTree())
        config = parse(TEXT, Path("/bookie.toml"))
        collector = ledger_collector(
            config, cast("Bookie", bookie), store, BookieId("b1"), lambda: 7
        )
        each = collector._config
        assert (each.interval_s, each.each.pause_s, each.each.share_max) == (901.0, 11.0, 0.25)
        assert collector._mark._path.parent == Path("/l0"), "the disk that the bookie always has"
        assert collector._run_on_disk is in_daemon_thread, "a disk that hangs stops no loop"
        assert collector._new_ledgers() == 7 == collector._reclaimable_bytes()
        assert not collector._is_full() and collector._why_not() == ""
        disks.states.ledgers = (UNKNOWN, UNKNOWN._replace(reason="full"))
        assert collector._is_full(), "one directory is enough: only deletions make room there"
        bookie.stall = Stall(Cause.LEDGERS_STALLED, "it hangs")
        assert collector._why_not() == "it hangs"
        bookie.failure = "it failed"
        assert collector._why_not() == "it failed"
        await store.close()

    asyncio.run(main())
