"""Queries survive outages of bookies and of ZooKeeper, and lose and double nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ledger.local import LocalCluster
from spark_ledger.stream.blocking import StreamConnection
from tests.spark.conftest import Lab

Until = Callable[[Callable[[], bool], str], None]


@pytest.fixture
def fragile(spark: Any, tmp_path: Path) -> Iterator[Lab]:
    """A cluster of its own, to break."""
    with LocalCluster(bookies=3) as cluster, StreamConnection.connect(cluster.uri) as client:
        yield Lab(spark, cluster, client, tmp_path)


def test_raw_ledger_is_read_through_an_outage_of_all_bookies(fragile: Lab) -> None:
    with fragile.client.create_ledger() as writer:
        for number in range(30):
            writer.append(b"%d" % number)
    frame = fragile.read(stream=None, ledgerId=writer.ledger_id, minPartitions=2)
    assert frame.rdd.getNumPartitions() == 2  # planned, while all is well
    for bookie in range(3):
        fragile.cluster.kill_bookie(bookie)

    def start_bookies() -> None:
        for bookie in range(3):
            fragile.cluster.start_bookie(bookie)

    back = threading.Timer(3.0, start_bookies)
    back.start()
    try:
        assert [row.entry_id for row in frame.collect()] == list(range(30))
    finally:
        back.join()


def test_query_goes_on_after_outages_of_bookies_and_zookeeper(fragile: Lab, until: Until) -> None:
    copy = fragile.another()
    fragile.numbers(0, 10)
    two: dict[str, Any] = {
        "ensembleSize": 2,
        "writeQuorum": 2,
        "ackQuorum": 1,
    }  # two bookies can begin a ledger
    query = copy.sink(fragile.follow(maxRowsPerTrigger=50), **two).start()
    try:
        stream = fragile.client.stream(fragile.name)

        def copied() -> int:
            if copy.name not in fragile.client.list_streams():
                return 0
            return fragile.client.stream(copy.name).head().rows

        until(lambda: copied() == 10, "the first rows")
        fragile.cluster.kill_bookie(0)
        fragile.numbers(10, 200, partitions=2)
        until(lambda: copied() == 200, "rows written and read without one of three bookies")
        fragile.cluster.start_bookie(0)
        fragile.cluster.kill_zookeeper()
        fragile.cluster.start_zookeeper()
        fragile.numbers(200, 230)
        until(lambda: copied() == 230, "rows after ZooKeeper came back")
        for bookie in range(3):
            fragile.cluster.kill_bookie(bookie)
        for bookie in range(3):
            fragile.cluster.start_bookie(bookie)
        fragile.numbers(230, 250)
        until(lambda: copied() == 250, "rows after all bookies were gone for a while")
        assert query.exception() is None
        assert stream.head().rows == 250
    finally:
        query.stop()
    assert sorted(copy.stored()) == list(range(250))
