"""The admin port over HTTP, the Prometheus text, and the histogram behind it."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from bookie_server.bookie import StorageStats
from bookie_server.core.disk_space import DirectoryState, Space
from bookie_server.service import admin
from bookie_server.service.metrics import Histogram, ServiceMetrics
from bookie_server.service.prometheus import exposition
from bookie_server.storage.disks import DiskStates
from bookie_server.storage.journal.journal import JournalStats
from bookie_server.storage.ledgers.ledger_storage import LedgerStorageStats
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieStatus


def stats(failure: str = "") -> StorageStats:
    zeros = dict.fromkeys(JournalStats._fields, 0)
    journal = JournalStats(**{**zeros, "batches": 4, "sync_time_s": 0.5})  # type: ignore[arg-type]
    ledger_storage = LedgerStorageStats(**dict.fromkeys(LedgerStorageStats.__dataclass_fields__, 0))
    fine = DirectoryState(Space(100, 60))
    full = DirectoryState(Space(100, 3), "disk full: /b", above_marks=True)
    disks = DiskStates(fine, (fine, full), "")
    names = ("/j", "/a", "/b")
    return StorageStats(journal, ledger_storage, 77, 0, failure, disks, names)


def test_the_admin_port_answers() -> None:
    async def main() -> None:
        listener = admin.bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        healthy = [True]
        server = admin.AdminServer(
            listener,
            status=lambda: {"bookie_id": "b1"},
            metrics=lambda: b"a_metric 1\n",
            is_healthy=lambda: healthy[0],
        )
        await server.start()
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/status") as answer:
                assert json.loads(await answer.text()) == {"bookie_id": "b1"}
            async with session.get(f"{url}/metrics") as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                assert await answer.text() == "a_metric 1\n"
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200
            healthy[0] = False
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 503
            async with session.get(f"{url}/else") as answer:
                assert answer.status == 404
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
            admin.bind("127.0.0.1", port)
        await server.stop()

    asyncio.run(main())


def test_metrics_are_in_prometheus_text() -> None:
    metrics = ServiceMetrics()
    metrics.add_completed(BookieStatus.OK, 10, 1000, 0.0015)
    metrics.add_completed(BookieStatus.FENCED, 1, 100, 0.0)
    metrics.read_ended(BookieStatus.OK, 500, 0.3)
    metrics.calls["Read", "OK"] += 1
    text = exposition(metrics, stats(), up=True).decode()
    for line in (
        'bookie_adds_total{status="OK"} 1.0',
        'bookie_adds_total{status="FENCED"} 1.0',
        "bookie_added_entries_total 10.0",
        "bookie_added_bytes_total 1000.0",
        "bookie_fenced_adds_total 1.0",
        'bookie_add_seconds_bucket{le="0.001"} 0.0',
        'bookie_add_seconds_bucket{le="0.002"} 1.0',
        'bookie_add_seconds_bucket{le="+Inf"} 1.0',
        "bookie_read_bytes_total 500.0",
        'bookie_calls_total{code="OK",method="Read"} 1.0',
        "bookie_append_bytes_in_flight 77.0",
        "bookie_journal_sync_seconds_count 4.0",
        "bookie_journal_sync_seconds_sum 0.5",
        "bookie_healthy 1.0",
        "bookie_storage_failed 0.0",
    ):
        assert line in text.splitlines(), f"{line} is not in:\n{text}"
    assert "bookie_storage_failed 1.0" in exposition(metrics, stats("disk"), up=False).decode()


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 14.0
