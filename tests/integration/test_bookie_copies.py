"""Copies of a bookie's directories, as operators make them: none takes the place of the original.

Each test writes acknowledged entries, so that what a copy would deny is seen as lost.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import spark_ledger
from spark_ledger.local import LocalCluster
from spark_ledger.metadata.connect import open_store
from spark_ledger.metadata.cookies import cookie_path, decode_cookie, encode_cookie
from spark_ledger.types import BookieId, BookieStart, BookieStatus
from tests.integration.test_bookie_process import (
    Process,
    append,
    make_ledger,
    make_run,
    stored,
    with_transport,
)

pytestmark = pytest.mark.processes

DATA = ("journal", "l0", "l1")


@pytest.fixture
def bookie(tmp_path: Path, metadata_uri: str) -> Iterator[Process]:
    directory = tmp_path / "original"
    directory.mkdir()
    process = Process(directory, metadata_uri)
    asyncio.run(make_ledger(metadata_uri))
    yield process
    if process.process is not None:
        if process.process.poll() is None:
            process.process.kill()
        process.process.communicate()


def write(bookie: Process, first: int, count: int = 10) -> None:
    """Acknowledged entries."""
    result = with_transport(bookie.await_ready(), lambda t, b: append(t, b, make_run(first, count)))
    assert result.status is BookieStatus.OK


def copy_of(bookie: Process, name: str, uri: str) -> Process:
    """A copy of everything at another path, as `cp -a` makes it."""
    target = bookie.directory.parent / name
    subprocess.run(["cp", "-a", str(bookie.directory), str(target)], check=True)
    (target / "ready.json").unlink(missing_ok=True)
    return Process(target, uri)


def restore(copy: Process, bookie: Process) -> None:
    """The copy's data in place of the original's, by new directories of the same names."""
    for name in DATA:
        shutil.rmtree(bookie.directory / name)
        subprocess.run(
            ["cp", "-a", str(copy.directory / name), str(bookie.directory / name)], check=True
        )


async def claim(uri: str, bookie_id: BookieId) -> None:
    """What the start of a clone does, which has the same inodes and the same last start."""
    store = await open_store(uri)
    node = await store.get(cookie_path(bookie_id))
    cookie = decode_cookie(bookie_id, node.value)
    later = msgspec.structs.replace(cookie, start=BookieStart(99, "clone"))
    await store.put(cookie_path(bookie_id), encode_cookie(later), node.version)
    await store.close()


def refused(process: Process, *words: str) -> None:
    code, log = process.run_to_end()
    assert code == 2, log
    for word in words:
        assert word in log, log
    assert "Traceback" not in log, log


def test_copy_beside_the_live_original_is_refused(bookie: Process, metadata_uri: str) -> None:
    bookie.start("--format")
    write(bookie, 0)
    copy = copy_of(bookie, "copy", metadata_uri)
    write(bookie, 10)
    refused(copy, "it was moved, or is a copy", "ledger bookie relocate")
    write(bookie, 20)
    assert with_transport(bookie.await_ready(), stored) == [(0, 29)]
    assert bookie.end() == 0
    refused(copy, "is an older copy: it knows start 1, and the cluster start 2")
    bookie.start()
    assert with_transport(bookie.await_ready(), stored) == [(0, 29)]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_copy_in_place_of_the_original_is_refused(
    bookie: Process, metadata_uri: str, end: signal.Signals
) -> None:
    bookie.start("--format")
    write(bookie, 0)
    copy = copy_of(bookie, "copy", metadata_uri)
    write(bookie, 10)
    bookie.end(end)
    original = copy_of(bookie, "kept", metadata_uri)
    restore(copy, bookie)
    refused(bookie, "older copy" if end is signal.SIGTERM else "copied, or restored")
    restore(original, bookie)  # with the newest content, but not the directories themselves
    refused(bookie, "is not the one in which bookie", "ledger bookie relocate")


def test_snapshot_of_an_earlier_start_is_refused(bookie: Process, metadata_uri: str) -> None:
    bookie.start("--format")
    write(bookie, 0)
    snapshot = copy_of(bookie, "snapshot", metadata_uri)
    bookie.end(signal.SIGKILL)
    bookie.start()
    write(bookie, 10)
    bookie.end(signal.SIGKILL)
    for name in DATA:  # into the same directories, as a backup tool does it
        for path in (bookie.directory / name).rglob("*"):
            if path.is_file():
                path.unlink()
        subprocess.run(
            ["cp", "-a", f"{snapshot.directory / name}/.", str(bookie.directory / name)], check=True
        )
    refused(bookie, "is an older copy: it knows start 1, and the cluster start 2")


def test_start_while_the_old_session_is_there_waits(bookie: Process, metadata_uri: str) -> None:
    bookie.start("--format")
    write(bookie, 0)
    bookie.end(signal.SIGKILL)
    bookie.start()
    assert with_transport(bookie.await_ready(), stored) == [(0, 9)], "it has waited, if need be"
    assert bookie.end() == 0
    logged = bookie.log.stat().st_size
    bookie.start()
    bookie.await_ready()
    assert "waiting until it ends" not in bookie.log.read_text()[logged:], "it had withdrawn"


def test_bookie_that_was_replaced_stops_with_its_own_code(
    bookie: Process, metadata_uri: str
) -> None:
    """Another process takes the bookie over by force: the one that runs ends at once."""
    bookie.start("--format")
    ready = bookie.await_ready()
    asyncio.run(claim(metadata_uri, BookieId(ready["bookie_id"])))
    assert bookie.wait() == 4
    log = bookie.log.read_text()
    assert "this bookie was replaced, and stops: another process has started as bookie" in log
    refused(bookie, "is an older copy")


def test_directories_that_were_moved_start_after_the_command(
    bookie: Process, metadata_uri: str
) -> None:
    bookie.start("--format")
    write(bookie, 0)
    moved = copy_of(bookie, "moved", metadata_uri)
    code, log = moved.run_to_end("--relocate")
    assert code == 2 and "is registered at 127.0.0.1:" in log
    assert bookie.end() == 0
    code, log = moved.run_to_end("--relocate")
    assert code == 2 and "older copy" in log, "it was copied while the bookie ran"
    moved = copy_of(bookie, "moved again", metadata_uri)
    refused(moved, "ledger bookie relocate")
    assert moved.run_to_end("--relocate")[0] == 0
    refused(bookie, "older copy")
    moved.start()
    try:
        assert with_transport(moved.await_ready(), stored) == [(0, 9)]
    finally:
        assert moved.end() == 0


def test_recovery_beside_copies_of_every_bookie_loses_nothing(tmp_path: Path) -> None:
    """Copies of all bookies of a ledger are started beside them, and the ledger is recovered."""
    with LocalCluster(bookies=3) as cluster, spark_ledger.connect(cluster.uri) as client:
        writer = client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for number in range(20):
            writer.append(b"%d" % number)
        copies = []
        for index in range(3):
            target = tmp_path / str(index)
            shutil.copytree(cluster.bookie_directory(index), target)
            copies.append(target)
        for number in range(20, 40):
            writer.append(b"%d" % number)
        cluster.kill_bookie(2)  # its copy finds no registration after a while, and is refused still
        for copy in copies:
            command = [sys.executable, "-m", "bookie_server", "--config", str(copy / "bookie.toml")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 2, done.stderr
            assert "it was moved, or is a copy" in done.stderr, done.stderr
        cluster.start_bookie(2)
        reader = client.open_ledger(writer.ledger_id, recover=True)
        assert [entry.payload for entry in reader.read(0, 39)] == [b"%d" % n for n in range(40)]


def test_second_bookie_of_the_same_name_is_refused(bookie: Process, metadata_uri: str) -> None:
    bookie.start("--format")
    ready = bookie.await_ready()
    other = bookie.directory.parent / "other"
    other.mkdir()
    second = Process(other, metadata_uri, f'bookie_id = "{ready["bookie_id"]}"')
    code, log = second.run_to_end("--format")
    assert code == 2 and "is taken in this cluster" in log and "Traceback" not in log
    write(bookie, 0)
    assert bookie.end() == 0
