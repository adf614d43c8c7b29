"""Streams on real bookies and a real ZooKeeper: several processes, kills, restarts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import spark_ledger
from spark_ledger.errors import ConflictError, LedgerError, NoSuchStreamError
from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection
from spark_ledger.stream.ranges import ranges_between
from spark_ledger.types import Dlsn

pytestmark = pytest.mark.processes

COLUMNS: dict[str, pa.DataType] = {"n": pa.int64(), "text": pa.string()}
SCHEMA = pa.schema(COLUMNS)
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=4) as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[StreamConnection]:
    with spark_ledger.connect(cluster.uri, add_timeout_s=3.0, read_timeout_s=3.0) as made:
        yield made


def table(first: int, count: int = 1, width: int = 10) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {"n": pa.array(numbers, pa.int64()), "text": [f"{n}".rjust(width, ".") for n in numbers]},
        schema=SCHEMA,
    )


def values(batches: Iterator[Any]) -> list[int]:
    return [n for batch in batches for n in batch.column("n").to_pylist()]


def test_rows_come_back_in_another_connection_and_from_any_position(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    stream = client.create_stream("copy", SCHEMA, entry_bytes=64 * 1024)
    stream.append(table(0, 20_000, width=50), sink_id="j", transaction_id=1)
    for n in range(20):
        stream.append(table(20_000 + n), sink_id="j", transaction_id=2 + n)
    with spark_ledger.connect(cluster.uri) as other:
        reader = other.stream("copy")
        assert values(reader.read()) == list(range(20_020))
        (first,) = reader.commit(0).segments
        assert first.entries > 10
        position = Dlsn(0, 3, 5)
        start = sum(first.entry_rows[:3]) + 5
        assert values(reader.read(position, Dlsn(2))) == list(range(start, 20_001))
        ranges = ranges_between(reader.commits_between(0, 21), position, Dlsn(21))
        found = [n for p in reader.read_ranges(ranges) for n in p.batch.column("n").to_pylist()]
        assert found == list(range(start, 20_020))
    stream.close()


def sink_process(uri: str, name: str, count: int) -> None:
    with spark_ledger.connect(uri) as client:
        stream = client.stream("race")
        for transaction_id in range(count):
            for _ in range(2):  # every transaction is offered twice
                rows = table(transaction_id, 3)
                stream.append(rows, sink_id=name, transaction_id=transaction_id)
        stream.close()


def test_sinks_of_several_processes_are_applied_once_each_and_in_order(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    stream = client.create_stream("race", SCHEMA)
    names = [f"sink {n}/ü" for n in range(3)]
    processes = [SPAWN.Process(target=sink_process, args=(cluster.uri, x, 10)) for x in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    commits = stream.commits(0, stream.head().next_commit)
    for name in names:
        assert [c.transaction_id for c in commits if c.sink_id == name] == list(range(10))
    assert [c.first_segment for c in commits] == list(range(30))
    assert sorted(values(stream.read())) == sorted(3 * [t + k for t in range(10) for k in range(3)])
    with pytest.raises(ConflictError, match="checkpoint"):
        stream.append(table(0), sink_id=names[0], transaction_id=3)


def doomed_process(uri: str, ready: Any) -> None:
    client = spark_ledger.connect(uri)
    stream = client.stream("crash")
    stream.append(table(0, 5), sink_id="d", transaction_id=0)
    writer = stream.writer()
    writer.write(table(5, 50_000, width=100))
    writer.finish()
    ready.put(os.getpid())
    time.sleep(60)


def test_a_writer_killed_before_its_commit_leaves_nothing_visible(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    stream = client.create_stream("crash", SCHEMA)
    ready = SPAWN.Queue()
    process = SPAWN.Process(target=doomed_process, args=(cluster.uri, ready))
    process.start()
    assert ready.get(timeout=30) == process.pid
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(10)
    assert values(stream.read()) == [0, 1, 2, 3, 4]
    again = stream.append(table(5, 2), sink_id="d", transaction_id=1)
    assert again.applied
    assert values(stream.read()) == list(range(7))


def test_a_bookie_killed_while_rows_are_written_and_read_costs_no_row(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    stream = client.create_stream("kill", SCHEMA, entry_bytes=16 * 1024)
    stream.append(table(0, 1000))
    assert len(values(stream.read())) == 1000  # the reader knows the ledger's first fragment
    ledger_id = stream.commit(0).segments[0].ledger_id
    bookies = client.ledger_metadata(ledger_id).last_fragment.bookies
    index = list(cluster.bookie_ids).index(bookies[0])
    writer = stream.writer()
    cluster.kill_bookie(index)
    try:
        for n in range(1, 6):
            stream.append(table(1000 * n, 1000))
        assert values(stream.read()) == list(range(6000))
        writer.write(table(6000, 1000))
        stream.commit_segments(writer.finish())
        assert values(stream.read()) == list(range(7000))
    finally:
        writer.close()
        cluster.start_bookie(index)
    with spark_ledger.connect(cluster.uri) as other:
        assert values(other.stream("kill").read()) == list(range(7000))


def test_a_tail_follows_commits_of_another_connection(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    stream = client.create_stream("tail", SCHEMA)
    with spark_ledger.connect(cluster.uri) as other, ThreadPoolExecutor(1) as pool:
        follower = other.stream("tail")
        found = pool.submit(lambda: values(follower.tail("earliest", idle_timeout=3.0)))
        for n in range(30):
            stream.append(table(n))
        assert found.result(timeout=30) == list(range(30))
        waiting = pool.submit(
            lambda: follower.wait_for_commit(after_segment=30, timeout_s=20).next_segment
        )
        stream.append(table(30))
        assert waiting.result(timeout=20) == 31


def test_zookeeper_restarting_under_a_writer_loses_and_doubles_nothing(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    stream = client.create_stream("restart", SCHEMA)
    stream.append(table(0), sink_id="j", transaction_id=0)
    with ThreadPoolExecutor(1) as pool:

        def produce() -> None:
            for n in range(1, 150):
                deadline = time.monotonic() + 40
                while True:
                    try:
                        stream.append(table(n), sink_id="j", transaction_id=n)
                        break
                    except LedgerError as error:
                        assert error.retryable or error.outcome_unknown, error
                        assert time.monotonic() < deadline

        producing = pool.submit(produce)
        while stream.head().next_commit < 5:
            time.sleep(0.01)
        cluster.kill_zookeeper()
        cluster.start_zookeeper()
        producing.result(timeout=60)
    assert values(stream.read()) == list(range(150))
    assert stream.head().next_commit == 150


def test_a_deleted_stream_is_gone_for_readers_and_its_ledgers_too(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    before = set(client.list_ledgers())
    stream = client.create_stream("gone", SCHEMA)
    for n in range(5):
        stream.append(table(n), sink_id=f"s{n}", transaction_id=0)
    mine = set(client.list_ledgers()) - before
    assert mine
    with spark_ledger.connect(cluster.uri) as other:
        reader = other.stream("gone")
        batches = reader.tail("earliest")
        assert next(batches).num_rows == 1
        client.delete_stream("gone")
        with pytest.raises(NoSuchStreamError):
            values(batches)
    assert not mine & set(client.list_ledgers())
    assert "gone" not in client.list_streams()
    with pytest.raises(NoSuchStreamError):
        stream.append(table(9))
    again = client.create_stream("gone", SCHEMA)
    assert again.append(table(1)).number == 0
