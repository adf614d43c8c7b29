"""Real bookies and a real ZooKeeper are killed, paused and restarted while a client works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import spark_ledger
from spark_ledger.client.blocking_writer import BlockingWriter
from spark_ledger.errors import (
    BookieUnavailableError,
    FencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    RecoveryError,
)
from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=4) as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[StreamConnection]:
    with spark_ledger.connect(
        cluster.uri, add_timeout_s=4.0, read_timeout_s=4.0, metadata_timeout_s=4.0
    ) as made:
        yield made


def payload(number: int) -> bytes:
    return b"entry %d" % number


def cluster_index(cluster: LocalCluster, writer: BlockingWriter, bookie_index: int) -> int:
    """The index in the cluster of the bookie at a bookie index of the writer's ensemble."""
    return list(cluster.bookie_ids).index(writer.metadata.last_fragment.bookies[bookie_index])


def append(writer: BlockingWriter, count: int) -> None:
    first = writer.last_add_pushed + 1
    futures = [writer.append_async(payload(first + i)) for i in range(count)]
    assert [future.result(timeout=30) for future in futures] == list(range(first, first + count))


def check_read(client: StreamConnection, ledger_id: int, count: int) -> None:
    reader = client.open_ledger(ledger_id, recover=True)
    assert reader.last_add_confirmed == count - 1
    entries = list(reader.read(0, count - 1))
    assert [entry.payload for entry in entries] == [payload(i) for i in range(count)]


def eventually(probe: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def test_killed_bookies_are_replaced_and_nothing_is_lost(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    writer = client.create_ledger()
    append(writer, 500)
    first = cluster_index(cluster, writer, 0)
    cluster.kill_bookie(first)
    append(writer, 500)
    dead = cluster.bookie_ids[first]
    assert dead not in writer.metadata.last_fragment.bookies, "the spare has replaced it"
    second = cluster_index(cluster, writer, 1)
    cluster.kill_bookie(second)
    append(writer, 500)  # there is no spare: two of three copies are enough
    cluster.start_bookie(first)
    cluster.start_bookie(second)
    append(writer, 500)
    writer.close()
    check_read(client, writer.ledger_id, 2000)


def test_paused_bookie_delays_no_add(cluster: LocalCluster, client: StreamConnection) -> None:
    writer = client.create_ledger()
    append(writer, 100)
    paused = cluster_index(cluster, writer, 2)
    cluster.pause_bookie(paused)
    append(writer, 2000)
    silent = cluster.bookie_ids[paused]
    eventually(lambda: tick(writer) and silent not in writer.metadata.last_fragment.bookies, silent)
    cluster.resume_bookie(paused)
    count = writer.last_add_confirmed + 1
    writer.close()
    check_read(client, writer.ledger_id, count)


def tick(writer: BlockingWriter) -> bool:
    """Append one more entry, so that the writer notices; always true."""
    append(writer, 1)
    return True


def test_everything_acknowledged_survives_a_power_cut(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    writer = client.create_ledger(password=b"secret")
    append(writer, 3000)
    for index in range(4):
        cluster.kill_bookie(index)
    with pytest.raises((RecoveryError, BookieUnavailableError)):
        client.open_ledger(writer.ledger_id, recover=True, password=b"secret")
    for index in range(4):
        cluster.start_bookie(index)
    reader = client.open_ledger(writer.ledger_id, recover=True, password=b"secret")
    assert reader.last_add_confirmed == 2999
    payloads = [entry.payload for entry in reader.read(0, 2999)]
    assert payloads == [payload(i) for i in range(3000)]
    with pytest.raises((FencedError, NotEnoughBookiesError)):
        writer.append(b"the old writer is out")


def test_second_writer_takes_over_and_the_first_is_told(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    writer = client.create_ledger()
    append(writer, 100)
    with spark_ledger.connect(cluster.uri) as other:
        reader = other.open_ledger(writer.ledger_id, recover=True)
        assert reader.is_closed
        assert reader.last_add_confirmed == 99
    with pytest.raises(FencedError, match=f"ledger {writer.ledger_id}"):
        writer.append(b"late")
    for index in range(4):  # a fence survives a crash
        cluster.kill_bookie(index)
        cluster.start_bookie(index)
    with pytest.raises(FencedError):
        writer.append(b"later")
    check_read(client, writer.ledger_id, 100)


def test_adds_go_on_without_zookeeper_and_changes_wait_for_it(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    writer = client.create_ledger()
    append(writer, 100)
    cluster.kill_zookeeper()
    append(writer, 500)
    with pytest.raises(MetadataUnavailableError):
        client.create_ledger()
    cluster.start_zookeeper()
    cluster.kill_bookie(cluster_index(cluster, writer, 0))
    append(writer, 500)
    writer.close()
    check_read(client, writer.ledger_id, 1100)


def test_all_bookies_down_is_one_clear_error(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    with client.create_ledger() as writer:
        append(writer, 10)
    open_writer = client.create_ledger()
    append(open_writer, 10)
    reader = client.open_ledger(writer.ledger_id)
    for index in range(4):
        cluster.kill_bookie(index)
    with pytest.raises(NotEnoughBookiesError, match="Start bookies"):
        open_writer.append(b"nowhere to go")
    with pytest.raises(BookieUnavailableError, match="entry 0"):
        list(reader.read(0, 9))


def test_no_zookeeper_at_connect_names_the_address() -> None:
    with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1:1"):
        spark_ledger.connect("zk://127.0.0.1:1/ledgers", metadata_timeout_s=1.0)


def test_a_tail_follows_over_an_ensemble_change_to_the_end(
    cluster: LocalCluster, client: StreamConnection
) -> None:
    writer = client.create_ledger()
    append(writer, 10)
    reader = client.open_ledger(writer.ledger_id)
    following = reader.tail(0, idle_timeout=20.0)
    assert [next(following).entry_id for _ in range(10)] == list(range(10))
    cluster.kill_bookie(cluster_index(cluster, writer, 0))
    append(writer, 10)
    writer.close()
    assert [entry.payload for entry in following] == [payload(i) for i in range(10, 20)]
