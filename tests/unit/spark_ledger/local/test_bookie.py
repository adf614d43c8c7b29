"""The configuration that a local bookie starts with."""

from __future__ import annotations

from pathlib import Path

from bookie_server.config import load
from spark_ledger.local import bookie


def test_rack_of_the_last_start_stays(tmp_path: Path) -> None:
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
