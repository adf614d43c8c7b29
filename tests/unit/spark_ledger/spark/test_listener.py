"""LedgerListener: its line, its numbers, and the reports that it gets from other processes."""

from __future__ import annotations

import errno
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.spark import METRICS_QUERIES_MAX, REPORT_BATCHES_MAX
from spark_ledger.spark import LedgerListener
from spark_ledger.spark.reports import Inbox, Report, send
from tests.unit.spark_ledger.spark.test_progress import reported, stream

RUN = "0f0f0f0f-1111-2222-3333-444444444444"
WRITE = Report(
    7, "write", rows=25, entries=3, size_bytes=900, seconds=0.5, ensemble_changes=1,
    commit_seconds=0.02,
)  # fmt: skip
READ = Report(7, "read", rows=20, entries=2, size_bytes=600, seconds=0.25, requests=2)


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # a short path: see the limits
        monkeypatch.setattr("tempfile.tempdir", directory)
        yield Path(directory)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def listener(lines: list[str]) -> Iterator[LedgerListener]:
    made = LedgerListener(log=lines.append)
    yield made
    made.close()


def event(**values: Any) -> Any:
    return SimpleNamespace(runId=RUN, **values)


def progressed(*sources: dict[str, Any], **changes: Any) -> Any:
    return event(progress=reported(*sources, runId=RUN, **changes))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the reports did not come"
        time.sleep(0.001)


def arrived(inbox: Inbox, batch_id: int, tasks: int) -> bool:
    return sum(report.tasks for report in inbox._reports.get(batch_id, {}).values()) == tasks


def test_line_of_a_batch_says_how_long_how_far_behind_and_what_tasks_did(
    listener: LedgerListener, lines: list[str]
) -> None:
    listener.onQueryStarted(event())
    for report in (READ, msgspec.structs.replace(READ, failovers=1), WRITE):
        send(RUN, report)
    until(lambda: arrived(listener._inboxes[RUN], 7, 3))
    listener.onQueryProgress(progressed(stream()))
    assert lines == [
        "query copy batch 7: 25 rows in 0.20 s "
        "(planning 10%, rows 60%, checkpoint 20%, other 10%); "
        "clicks at (12, 0, 0), 70 rows, 900 bytes, 1.5 s behind; "
        "read by 2 tasks: 40 rows, 4 entries, 1200 bytes in 0.50 s, 4 requests, 1 failovers; "
        "write by 1 tasks: 25 rows, 3 entries, 900 bytes in 0.50 s, commit 0.020 s, "
        "1 ensemble changes"
    ]


def test_query_without_ledgers_is_passed_over(listener: LedgerListener, lines: list[str]) -> None:
    listener.onQueryStarted(event())
    listener.onQueryProgress(progressed({"endOffset": "5", "latestOffset": "6"}))
    assert lines == []
    assert "{" not in listener.metrics_text()


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_query_has_a_line_and_numbers_if_it_reads_or_writes_a_stream(
    listener: LedgerListener, lines: list[str], reads: bool, writes: bool
) -> None:
    """Its other end may be anything: Kafka, files, a table."""
    listener.onQueryStarted(event())
    if writes:
        send(RUN, WRITE)
        until(lambda: arrived(listener._inboxes[RUN], 7, 1))
    listener.onQueryProgress(progressed(stream() if reads else {"endOffset": "5"}))
    said = [[part in line for part in ("clicks at", "write by 1 tasks")] for line in lines]
    assert said == ([[reads, writes]] if reads or writes else [])
    page = listener.metrics_text()
    assert ("spark_ledger_source_rows_total{" in page) == reads
    assert ('spark_ledger_task_rows_total{query="copy",kind="write"} 25' in page) == writes


def test_metrics_add_up_counters_and_keep_the_last_value_of_gauges(
    listener: LedgerListener,
) -> None:
    listener.onQueryStarted(event())
    for batch, behind in ((7, 70), (8, 10)):
        send(RUN, msgspec.structs.replace(WRITE, batch_id=batch))
        until(lambda batch=batch: arrived(listener._inboxes[RUN], batch, 1))  # type: ignore[misc]
        newest = f'{{"entry": 0, "segment": 14, "name": "cli\\"cks", "rowsBehind": {behind}}}'
        listener.onQueryProgress(progressed(stream(latestOffset=newest), batchId=batch))
    page = listener.metrics_text().splitlines()
    assert 'spark_ledger_source_behind_rows{query="copy",stream="cli\\"cks"} 10' in page
    assert 'spark_ledger_source_rows_total{query="copy",stream="cli\\"cks"} 50' in page
    assert 'spark_ledger_query_batch{query="copy"} 8' in page
    assert 'spark_ledger_task_bytes_total{query="copy",kind="write"} 1800' in page
    assert 'spark_ledger_ensemble_changes_total{query="copy",kind="write"} 2' in page
    assert 'spark_ledger_commit_seconds_total{query="copy",kind="write"} 0.04' in page
    assert not [line for line in page if line.startswith("spark_ledger_source_behind_bytes{")]


def test_metrics_forget_how_far_behind_a_stream_is_that_left_its_query(
    listener: LedgerListener,
) -> None:
    """An alarm on it would never end. What was read of it stays: a counter does not go back."""

    def behind(*names: str) -> dict[str, Any]:
        ends = {name: {"entry": 0, "segment": 5} for name in names}
        lag = {"rowsBehind": 70, "bytesBehind": 900, "millisBehind": 1500, "batchRows": 4}
        newest = {name: {**end, **lag} for name, end in ends.items()}
        return stream(endOffset={"streams": ends}, latestOffset={"streams": newest})

    listener.onQueryProgress(progressed(behind("a", "b"), id="other", name="other"))
    for names in ("ab", "b"):
        listener.onQueryProgress(progressed(behind(*names)))
    page = listener.metrics_text().splitlines()
    gauges = [line for line in page if line.startswith("spark_ledger_source_behind")]
    assert len(gauges) == 3 * 3 and not [one for one in gauges if 'copy",stream="a"' in one]
    assert 'spark_ledger_source_rows_total{query="copy",stream="a"} 4' in page
    assert 'spark_ledger_source_rows_total{query="copy",stream="b"} 8' in page
    assert 'spark_ledger_query_batch{query="copy"} 7' in page


def test_metrics_keep_how_far_behind_a_stream_is_that_is_not_named_for_once(
    listener: LedgerListener,
) -> None:
    """The first micro-batch behind a restart may have the stream's id alone."""
    end = {"entry": 0, "segment": 5, "stream": "abc"}
    lag = {"rowsBehind": 70, "bytesBehind": 900, "millisBehind": 1500, "name": "orders"}
    listener.onQueryProgress(progressed(stream(endOffset=end, latestOffset={**end, **lag})))
    listener.onQueryProgress(progressed(stream(endOffset=end, latestOffset=end)))
    assert 'source_behind_rows{query="copy",stream="orders"} 70' in listener.metrics_text()


def test_metrics_forget_the_queries_seen_longest_ago(listener: LedgerListener) -> None:
    for number in range(METRICS_QUERIES_MAX + 2):
        listener.onQueryProgress(progressed(stream(), id=f"q{number}", name=f"n{number}"))
    batches = [
        line for line in listener.metrics_text().splitlines()
        if line.startswith("spark_ledger_query_batch{")
    ]  # fmt: skip
    assert len(batches) == METRICS_QUERIES_MAX
    assert batches[0] == 'spark_ledger_query_batch{query="n2"} 7'


def test_metrics_keep_a_query_that_goes_on_beside_many_short_ones(
    listener: LedgerListener,
) -> None:
    for number in range(METRICS_QUERIES_MAX + 2):
        for query in ("for-months", f"q{number}"):
            listener.onQueryProgress(progressed(stream(), id=query, name=query))
    seconds = [
        float(line.split()[-1]) for line in listener.metrics_text().splitlines()
        if line.startswith('spark_ledger_query_seconds_total{query="for-months"')
    ]  # fmt: skip
    once = [
        float(line.split()[-1]) for line in listener.metrics_text().splitlines()
        if line.startswith(f'spark_ledger_query_seconds_total{{query="q{METRICS_QUERIES_MAX}"')
    ]  # fmt: skip
    assert sum(seconds) == pytest.approx(sum(once) * (METRICS_QUERIES_MAX + 2)) and sum(once) > 0


def test_port_serves_the_numbers_until_close(lines: list[str]) -> None:
    listener = LedgerListener(port=0, log=lines.append)
    try:
        listener.onQueryProgress(progressed(stream()))
        address = f"http://127.0.0.1:{listener.port}"
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as page:
            assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert page.read().decode() == listener.metrics_text()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/", timeout=30)
        with pytest.raises(ConfigurationError, match="give another port, 0 for any that is free"):
            LedgerListener(port=cast("int", listener.port))
    finally:
        listener.close()
    assert listener.port is None
    listener.close()


def test_socket_is_there_while_the_run_is(listener: LedgerListener, sockets: Path) -> None:
    listener.onQueryStarted(event())
    (directory,) = sockets.iterdir()
    assert [each.name for each in directory.iterdir()] == [RUN]
    listener.onQueryTerminated(event())
    assert list(directory.iterdir()) == []
    assert not listener._inboxes, "sessions see thousands of runs"
    send(RUN, WRITE)  # nobody listens any more


def test_closed_inbox_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    inbox = Inbox(RUN)
    (thread,) = set(threading.enumerate()) - before
    inbox.close()
    thread.join(30)
    assert not thread.is_alive()


def test_directory_of_another_user_is_not_used(
    monkeypatch: pytest.MonkeyPatch, sockets: Path
) -> None:
    """Somebody was there before and took the name; here that is us."""
    monkeypatch.setattr("os.getuid", lambda: 4242)
    inbox = Inbox(RUN)
    (directory,) = sockets.iterdir()
    assert directory.name.endswith("4242") and list(directory.iterdir()) == []
    inbox.close()


def test_task_goes_on_though_the_directory_of_another_user_may_not_be_looked_into(
    monkeypatch: pytest.MonkeyPatch, sockets: Path
) -> None:
    """Who took the name first could end each query of this user on the machine."""
    Inbox(RUN).close()

    def exists(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("os.getuid", lambda: 4242)
    (directory,) = sockets.iterdir()
    directory.rename(directory.with_name("spark-ledger-4242"))
    directory.with_name("spark-ledger-4242").chmod(0o777)
    monkeypatch.setattr(Path, "exists", exists)
    send(RUN, WRITE)


def test_directory_that_others_may_enter_is_not_used(sockets: Path) -> None:
    Inbox(RUN).close()
    (directory,) = sockets.iterdir()
    directory.chmod(0o777)
    inbox = Inbox(RUN)
    assert list(directory.iterdir()) == []
    assert inbox.take(7) == {}
    inbox.close()


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "x" * 65])
def test_run_that_is_no_file_name_gets_no_socket(run_id: str) -> None:
    inbox = Inbox(run_id)
    send(run_id, WRITE)
    assert inbox.take(7) == {}
    inbox.close()


def test_inbox_passes_over_nonsense_and_forgets_batches_that_nobody_asks_for() -> None:
    inbox = Inbox(RUN)
    try:
        for batch in range(REPORT_BATCHES_MAX + 3):
            inbox._take_in(msgspec.structs.replace(WRITE, batch_id=batch))
        assert inbox.take(0) == {}
        assert inbox.take(REPORT_BATCHES_MAX + 2).keys() == {"write"}
        assert inbox.take(REPORT_BATCHES_MAX + 1) == {}, "an older one was forgotten with it"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(b"{nonsense", str(inbox._path))
        send(RUN, WRITE)
        until(lambda: arrived(inbox, 7, 1))
        assert inbox.take(7) == {"write": WRITE}
    finally:
        inbox.close()
