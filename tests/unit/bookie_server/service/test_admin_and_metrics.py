"""The admin port over HTTP, the Prometheus text, and the histogram behind it."""

from __future__ import annotations

import asyncio
import json
import logging

import aiohttp
import pytest

from bookie_server.core.disk_space import DirectoryState, Space
from bookie_server.core.read_only import Cause
from bookie_server.service import admin
from bookie_server.service.guard.log_bound import LogBound
from bookie_server.service.metrics import Histogram, KeeperFigures, RepairFigures, ServiceMetrics
from bookie_server.service.prometheus import exposition
from bookie_server.storage.disks import DiskStates
from bookie_server.storage.journal.waiting import JournalStats
from bookie_server.storage.ledgers.compaction import CompactionStats, DirectoryUse
from bookie_server.storage.ledgers.directory_scrub import ScrubCounts
from bookie_server.storage.ledgers.scrub import ScrubStats
from bookie_server.storage.ledgers.storage_stats import LedgerStorageStats
from bookie_server.storage.stats import StorageStats
from spark_ledger.errors import ConfigurationError
from spark_ledger.types import BookieStatus


def stats(failure: str = "") -> StorageStats:
    zeros = dict.fromkeys(JournalStats._fields, 0)
    journal = JournalStats(**{**zeros, "batches": 4, "sync_time_s": 0.5})  # type: ignore[arg-type]
    counters = dict.fromkeys(LedgerStorageStats.__dataclass_fields__, 0)
    uses = (DirectoryUse(), DirectoryUse(1000, 700, 300, 4, 1))
    counters["compaction"] = CompactionStats(uses, 2, 5000, 600, 7, "", 80)  # type: ignore[assignment]
    scrubbed = (ScrubCounts(), ScrubCounts(5.0, 10, 1000, 2, 0, 1, 1))
    counters["scrub"] = ScrubStats(scrubbed)  # type: ignore[assignment]
    ledger_storage = LedgerStorageStats(**counters)  # type: ignore[arg-type]
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
    metrics.adds_completed(BookieStatus.OK, 1, 10, 1000, 0.0015)
    metrics.adds_completed(BookieStatus.FENCED, 1, 1, 100, 0.0)
    metrics.read_ended(BookieStatus.OK, 500, 0.3)
    metrics.calls["Read", "OK"] += 1
    metrics.connections_ended["idle"] += 3
    metrics.calls_refused["poll"] += 2
    metrics.answer_bytes = lambda: 99
    text = exposition(metrics, stats(), up=True, read_only=()).decode()
    (memory,) = [line for line in text.splitlines() if line.startswith("bookie_memory_bytes ")]
    assert float(memory.split()[1]) > 1_000_000
    for line in (
        'bookie_adds_total{status="OK"} 1.0',
        'bookie_adds_total{status="FENCED"} 1.0',
        "bookie_added_entries_total 10.0",
        'bookie_hung_up_total{reason="idle"} 3.0',
        'bookie_refused_calls_total{kind="poll"} 2.0',
        "bookie_answer_bytes 99.0",
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
        'bookie_log_bytes{directory="/b"} 1000.0',
        'bookie_live_bytes{directory="/b"} 700.0',
        'bookie_reclaimable_bytes{directory="/b"} 300.0',
        'bookie_damaged_logs{directory="/b"} 1.0',
        "bookie_removed_log_bytes_total 5000.0",
        "bookie_given_back_bytes_total 80.0",
        "bookie_compacted_bytes_total 600.0",
        "bookie_compaction_passes_total 7.0",
        "bookie_compaction_failed 0.0",
        'bookie_scrub_ended_at_seconds{directory="/b"} 5.0',
        'bookie_bad_blocks_total{directory="/b"} 2.0',
        'bookie_lacking_stretches{directory="/b"} 1.0',
        'bookie_refetched_stretches_total{directory="/b"} 1.0',
    ):
        assert line in text.splitlines(), f"{line} is not in:\n{text}"
    assert (
        "bookie_storage_failed 1.0"
        in exposition(metrics, stats("disk"), up=False, read_only=()).decode()
    )


@pytest.mark.parametrize("cause", Cause)
def test_read_only_is_shown_for_every_cause_with_the_cause(cause: Cause) -> None:
    def lines(causes: set[Cause]) -> list[str]:
        text = exposition(ServiceMetrics(), stats(), up=True, read_only=causes).decode()
        return [line for line in text.splitlines() if line.startswith("bookie_read_only")]

    assert "bookie_read_only 0.0" in lines(set())
    assert f'bookie_read_only_cause{{cause="{cause.value}"}} 0.0' in lines(set())
    assert "bookie_read_only 1.0" in lines({cause})
    ones = [line for line in lines({cause}) if "_cause" in line and line.endswith(" 1.0")]
    assert ones == [f'bookie_read_only_cause{{cause="{cause.value}"}} 1.0']


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 14.0


def test_what_is_no_http_is_few_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        listener = admin.bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        server = admin.AdminServer(
            listener, status=dict, metrics=lambda: b"", is_healthy=lambda: True
        )
        await server.start()
        for _number in range(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
            assert b"400" in await reader.readline()
            writer.close()
            await writer.wait_closed()
        await server.stop()

    with caplog.at_level(logging.DEBUG, logger=admin.__name__):
        asyncio.run(main())
    lines = [record for record in caplog.records if record.name.startswith(admin.__name__)]
    assert 1 <= len(lines) < 15
    assert all(record.exc_info is None and "\n" not in record.getMessage() for record in lines)


def test_half_of_a_request_does_not_keep_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        listener = admin.bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        server = admin.AdminServer(
            listener, status=dict, metrics=lambda: b"", is_healthy=lambda: True
        )
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await writer.wait_closed()
        await server.stop()

    monkeypatch.setattr(admin, "BOOKIE_ADMIN_CONNECTION_S", 0.1)
    asyncio.run(main())


def test_lines_that_strangers_cause_are_counted_when_they_are_left_out() -> None:
    now = [0.0]
    bound = LogBound(clock=lambda: now[0])

    def passes() -> str | None:
        details = (ValueError, ValueError("two\nlines"), None)
        record = logging.LogRecord("x", logging.ERROR, "", 1, "bad %s", ("thing",), details)
        return record.getMessage() if bound.filter(record) else None

    assert [passes() for _number in range(7)] == ["bad thing: two lines"] * 5 + [None] * 2
    now[0] = 1.0
    assert passes() == "bad thing: two lines (2 lines before it were left out)"
    assert passes() == "bad thing: two lines"


def test_every_figure_of_the_keeper_is_exported() -> None:
    metrics = ServiceMetrics()
    assert "bookie_keeper" not in exposition(metrics, stats(), up=True, read_only=()).decode()
    figures = KeeperFigures(*range(1, len(KeeperFigures._fields) + 1))
    metrics.keeper = lambda: figures
    text = exposition(metrics, stats(), up=True, read_only=()).decode()
    shown = [line for line in text.splitlines() if line.startswith("bookie_keeper")]
    values = [float(line.split()[1]) for line in shown if "_created" not in line]
    assert sorted(values) == sorted(map(float, figures))
    assert f"bookie_keeper_reclaimable_bytes {figures.reclaimable_bytes:.1f}" in text
    assert f"bookie_keeper_recovered_ledgers_total {figures.recovered:.1f}" in text


def test_every_figure_of_repair_is_exported() -> None:
    metrics = ServiceMetrics()
    figures = RepairFigures(*range(1, len(RepairFigures._fields) + 1))
    metrics.repair = lambda: figures
    text = exposition(metrics, stats(), up=True, read_only=()).decode()
    shown = [line for line in text.splitlines() if line.startswith("bookie_repair")]
    values = [float(line.split()[1]) for line in shown if "_created" not in line]
    assert sorted(values) == sorted(map(float, figures))
    assert f"bookie_repair_marked_ledgers {figures.marked:.1f}" in text
    assert f"bookie_repair_copied_bytes_total {figures.copied_bytes:.1f}" in text
