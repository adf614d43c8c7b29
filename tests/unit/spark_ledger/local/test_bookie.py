"""The configuration that a local bookie starts with."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from bookie_server.config import load
from spark_ledger.local import bookie, zookeeper


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


@pytest.mark.parametrize(
    "text",
    [
        *("", 'metadata = "zk', "[listen]", "listen = 3\n", '[listen]\nport = "x"\n', "\udcff"),
        *("[listen]\nport = 70000\n", "[listen]\nport = -1\n"),
        "[" * 5000,
    ],
)
def test_config_that_a_full_disk_has_cut_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """Else no start would ever write it again."""
    (tmp_path / bookie.CONFIG_NAME).write_bytes(text.encode(errors="surrogateescape"))
    assert bookie.read_ports(tmp_path) == bookie.Ports(0, 0)
    assert bookie.read_rack(tmp_path) == "/default-rack"


def test_config_that_cannot_be_written_leaves_that_of_the_last_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = bookie.Ports(11, 22)
    bookie.write_config(tmp_path, "bookie-1", "zk://h:1/x", ports, keeper=False, rack="/r")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_text = Path.write_text

    def half(path: Path, text: str, **options: str) -> int:
        write_text(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", half)
        with pytest.raises(OSError, match="No space"):
            bookie.write_config(tmp_path, "b", "zk://h:1/x", ports, keeper=False)
        with pytest.raises(OSError, match="No space"):
            zookeeper.write_config(tmp_path, 2)
    after = {name: (tmp_path / name).read_bytes() for name in before}
    assert after == before and not (tmp_path / "zoo.cfg").exists()
    again = bookie.write_config(tmp_path, "b", "zk://h:1/x", ports, keeper=False)
    assert load(again).bookie_id == "b", "what is left of the half file harms nothing"


def test_bookie_that_is_stopped_while_python_imports_it_stays_stopped(tmp_path: Path) -> None:
    """It says nothing of its own then; whoever stops one that just came back meets it."""
    argv = [sys.executable, "-m", "bookie_server", "--config", str(tmp_path / "none.toml")]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        process.terminate()
        assert process.wait(30) in bookie.STAYS_ENDED
