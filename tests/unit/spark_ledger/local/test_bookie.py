"""The configuration that a local bookie starts with."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_server.config import load
from spark_ledger.local import bookie


def test_rack_of_the_last_start_stays(tmp_path: Path) -> None:
    assert bookie.read_rack(tmp_path) == "/default-rack"
    (tmp_path / bookie.CONFIG_NAME).write_text("[listen]\nport = 1\n")  # by an older version
    assert bookie.read_rack(tmp_path) == "/default-rack"
    path = bookie.write_config(
        tmp_path, "bookie-1", "zk://h:1/x", bookie.Ports(1, 2), keeper=False, rack="/rack-1"
    )
    assert load(path).rack == "/rack-1" == bookie.read_rack(tmp_path)


def test_collection_interval_is_the_one_of_the_cluster(tmp_path: Path) -> None:
    ports = bookie.Ports(1, 2)
    path = bookie.write_config(
        tmp_path, "bookie-1", "zk://h:1/x", ports, keeper=False, collection_interval_s=2.5
    )
    assert load(path).collection.interval_s == 2.5


def test_open_ledger_grace_is_the_one_of_the_cluster(tmp_path: Path) -> None:
    ports = bookie.Ports(1, 2)
    path = bookie.write_config(
        tmp_path, "bookie-1", "zk://h:1/x", ports, keeper=True, open_ledger_grace_s=4.5
    )
    assert load(path).autorecovery.open_ledger_grace_s == 4.5


def test_ports_of_the_last_start_are_known(tmp_path: Path) -> None:
    assert bookie.read_ports(tmp_path) == bookie.Ports(0, 0)
    bookie.write_config(tmp_path, "bookie-1", "zk://h:1/x", bookie.Ports(11, 22), keeper=False)
    assert bookie.read_ports(tmp_path) == bookie.Ports(11, 22)


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ((), 0),
        (("zookeeper", "bookie-x", "bookie-1.old"), 0),
        (("bookie-0", "bookie-1"), 2),
        (("bookie-0", "bookie-2"), 3),  # somebody took the directory of another away
        (("bookie-2", "bookie-10", "bookie-9"), 11),
    ],
)
def test_bookies_of_an_earlier_cluster_are_counted_up_to_the_highest(
    names: tuple[str, ...], count: int, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert bookie.count_existing(tmp_path) == count
