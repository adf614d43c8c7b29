"""LocalCluster, and up, status, down, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import spark_ledger
from spark_ledger import local
from spark_ledger.errors import BookieUnavailableError, ConfigurationError, LedgerError
from spark_ledger.local import LocalCluster, cluster, ports
from spark_ledger.metadata.bookies import BookieRegistry
from spark_ledger.metadata.cluster import read_cluster
from spark_ledger.metadata.connect import open_store
from spark_ledger.types import BookieInfo

pytestmark = pytest.mark.processes

WAIT_S = 30.0
ROOT = str(Path(spark_ledger.__file__).parent.parent)
ENVIRONMENT = {**os.environ, "PYTHONPATH": ROOT}


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def registered(uri: str) -> list[BookieInfo]:
    async def main() -> list[BookieInfo]:
        store = await open_store(uri)
        try:
            return await BookieRegistry(store).list()
        finally:
            await store.close()

    return asyncio.run(main())


def cluster_id(uri: str) -> str:
    async def main() -> str:
        store = await open_store(uri)
        try:
            return await read_cluster(store)
        finally:
            await store.close()

    return asyncio.run(main())


def pids_of(found: LocalCluster) -> list[int]:
    states = found.processes.states().values()
    return [found.processes.supervisor_pid, *(state.pid for state in states)]


def all_gone(pids: list[int]) -> bool:
    return not any(
        psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        for pid in pids
    )


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=2) as started:
        yield started


def test_what_is_started_is_registered(shared: LocalCluster) -> None:
    found = registered(shared.uri)
    assert [info.bookie_id for info in found][:2] == shared.bookie_ids[:2]
    for index in range(2):
        assert found[index].address == shared.bookie_address(index)
        assert found[index].admin_address == shared.bookie_admin_address(index)


def test_kill_and_start_keep_id_and_address(shared: LocalCluster) -> None:
    before = registered(shared.uri)[0]
    pid = shared.bookie_pid(0)
    shared.kill_bookie(0)
    assert all_gone([pid])
    assert not shared.is_bookie_running(0)
    shared.kill_bookie(0)
    shared.start_bookie(0)
    assert shared.bookie_pid(0) != pid
    after = registered(shared.uri)[0]
    assert (after.bookie_id, after.address) == (before.bookie_id, before.address)
    with pytest.raises(ConfigurationError, match="bookie-0 is running"):
        shared.start_bookie(0)


def test_stop_drains_and_exits_with_zero(shared: LocalCluster) -> None:
    assert shared.stop_bookie(1) == 0
    assert "bookie-1" not in [info.bookie_id for info in registered(shared.uri)]
    shared.start_bookie(1)
    assert "bookie-1" in [info.bookie_id for info in registered(shared.uri)]


def test_pause_and_resume(shared: LocalCluster) -> None:
    process = psutil.Process(shared.bookie_pid(0))
    shared.pause_bookie(0)
    eventually(lambda: process.status() == psutil.STATUS_STOPPED)
    assert shared.is_bookie_running(0)
    shared.resume_bookie(0)
    eventually(lambda: process.status() != psutil.STATUS_STOPPED)
    shared.pause_bookie(0)
    shared.kill_bookie(0)
    shared.start_bookie(0)
    shared.pause_bookie(0)
    assert shared.stop_bookie(0) == 0
    shared.start_bookie(0)


def test_zookeeper_killed_and_started(shared: LocalCluster) -> None:
    before = cluster_id(shared.uri)
    shared.kill_zookeeper()
    shared.start_zookeeper()
    assert cluster_id(shared.uri) == before
    eventually(lambda: len(registered(shared.uri)) >= 2)
    with pytest.raises(ConfigurationError, match="running"):
        shared.start_zookeeper()


def test_add_bookie(shared: LocalCluster) -> None:
    index = shared.add_bookie()
    assert shared.bookie_ids[index] == f"bookie-{index}"
    assert shared.bookie_ids[index] in [info.bookie_id for info in registered(shared.uri)]


def test_an_unknown_index_is_named(shared: LocalCluster) -> None:
    for call in (shared.kill_bookie, shared.start_bookie, shared.pause_bookie):
        for index in (-1, 99):
            with pytest.raises(ConfigurationError, match=f"no bookie {index}"):
                call(index)


def test_two_clusters_at_once_leave_nothing_behind() -> None:
    with LocalCluster(bookies=1) as one, LocalCluster(bookies=1) as two:
        assert one.uri != two.uri
        assert cluster_id(one.uri) != cluster_id(two.uri)
        directories = [one.directory, two.directory]
        pids = [*pids_of(one), *pids_of(two)]
        assert not all_gone(pids)
    assert all_gone(pids)
    assert not any(directory.exists() for directory in directories)
    one.stop()
    with pytest.raises(LedgerError, match="stopped"):
        one.kill_bookie(0)


def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    with LocalCluster(bookies=1, directory=tmp_path / "h\u00f6he = a\\b #1") as found:
        assert [info.bookie_id for info in registered(found.uri)] == ["bookie-0"]
        assert list((found.directory / "zookeeper" / "data").iterdir())


@pytest.mark.parametrize(
    "arguments", [{"bookies": -1}, {"bookies": "3"}, {"bookies": 1.5}, {"directory": 5}]
)
def test_bad_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        LocalCluster(**arguments)


def test_a_directory_of_its_own_keeps_the_data(tmp_path: Path) -> None:
    with LocalCluster(bookies=2, directory=tmp_path / "kept") as first:
        before, uri = cluster_id(first.uri), first.uri
        with pytest.raises(
            ConfigurationError, match=r"runs in .*kept already: .*ledger local down"
        ):
            LocalCluster(bookies=1, directory=tmp_path / "kept")
    with LocalCluster(bookies=1, directory=str(tmp_path / "kept")) as second:
        assert second.uri == uri
        assert cluster_id(second.uri) == before
        assert second.bookie_ids == ["bookie-0", "bookie-1"]


def test_the_thread_that_starts_it_may_end() -> None:
    started: list[LocalCluster] = []
    thread = threading.Thread(target=lambda: started.append(LocalCluster(bookies=1)))
    thread.start()
    thread.join()
    with started[0] as found:
        assert found.is_bookie_running(0)
        assert [info.bookie_id for info in registered(found.uri)] == ["bookie-0"]


PARENT = """
import os, sys, time
from spark_ledger.local import LocalCluster
cluster = LocalCluster(bookies=1)
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)  # holds a copy of the pipe to the supervisor
pids = [cluster.processes.supervisor_pid, *(s.pid for s in cluster.processes.states().values())]
print(cluster.directory, *pids, flush=True)
time.sleep(60)
"""


def start_parent(*arguments: str) -> tuple[subprocess.Popen[str], Path, list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
        start_new_session=True,
    )
    assert process.stdout is not None
    directory, *pids = process.stdout.readline().split()
    return process, Path(directory), [int(pid) for pid in pids]


def end_parent(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its fork too; the supervisor has its own session
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("arguments", [[], ["fork"]])
def test_no_orphans_when_the_parent_is_killed(arguments: list[str]) -> None:
    process, directory, pids = start_parent(*arguments)
    try:
        assert len(pids) == 3 and not all_gone(pids)
        process.kill()
        process.wait()
        eventually(lambda: all_gone(pids))
        eventually(lambda: not directory.exists())
    finally:
        end_parent(process)


def test_no_orphans_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with LocalCluster(bookies=1, directory=tmp_path) as found:
        pids = pids_of(found)
        os.kill(found.processes.supervisor_pid, signal.SIGKILL)
        eventually(lambda: all_gone(pids[1:]))
        with pytest.raises(LedgerError, match="from outside"):
            found.kill_bookie(0)


def test_a_bookie_that_dies_at_start_shows_its_log(tmp_path: Path) -> None:
    journal = tmp_path / "bookie-0" / "journal"
    journal.mkdir(parents=True)
    (journal / "something").write_text("not a journal")
    with pytest.raises(BookieUnavailableError, match=r"bookie-0 ended.*\n(.*\n)*.*journal"):
        LocalCluster(bookies=1, directory=tmp_path)
    assert not local.status(tmp_path).running


def test_bookie_that_refuses_its_directories_starts_once_what_it_asks_for_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster ended with it: the command that the refusal named had nothing to talk to."""
    monkeypatch.setattr(cluster, "REFUSED_PAUSE_S", 1.0)
    data, backup = tmp_path / "zookeeper" / "data", tmp_path / "backup"
    first = local.up(tmp_path, 1)
    try:
        shutil.copytree(data, backup)
    finally:
        local.down(tmp_path)
    local.up(tmp_path, 1)
    local.down(tmp_path)
    shutil.rmtree(data)
    backup.rename(data)
    restored = local.up(tmp_path, 1)
    try:
        assert restored.uri == first.uri
        (refused,) = restored.bookies
        assert not refused.running
        assert refused.note.startswith("did not start: directory")
        assert "`ledger cluster restored`" in refused.note
        command = [sys.executable, "-m", "spark_ledger.cli", "cluster", "restored", "--yes"]
        command += ["--metadata", restored.uri, f"--without-bookie={refused.name}"]
        subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True)
        eventually(lambda: local.status(tmp_path).bookies[0].running)
        eventually(lambda: len(registered(restored.uri)) == 1)
    finally:
        local.down(tmp_path)


def test_start_on_taken_ports_moves_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        free_port = ports.free_port
        wrong = [port, free_port(), port, free_port(), port]  # ZooKeeper, then bookies
        monkeypatch.setattr(cluster, "free_port", lambda: wrong.pop(0) if wrong else free_port())
        with LocalCluster(bookies=1) as found:
            assert not wrong
            assert found.zookeeper_port != port
            assert [info.bookie_id for info in registered(found.uri)] == ["bookie-0"]


def test_bookie_that_lost_its_port_moves_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        free_port = ports.free_port
        wrong = [free_port(), free_port(), taken.getsockname()[1]]  # ZooKeeper, then a bookie
        monkeypatch.setattr(cluster, "free_port", lambda: wrong.pop(0) if wrong else free_port())
        monkeypatch.setattr(cluster, "is_free", lambda _port: True)
        with LocalCluster(bookies=1) as found:
            assert [info.bookie_id for info in registered(found.uri)] == ["bookie-0"]


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="-1"):
        LocalCluster(bookies=-1)


UP = "import sys; from spark_ledger import local; local.up(sys.argv[1], 2)"


def test_up_status_down(tmp_path: Path) -> None:
    directory = tmp_path / "detached"
    assert not local.status(directory).running
    assert not local.down(directory)
    subprocess.run(
        [sys.executable, "-c", UP, str(directory)],
        check=True,
        env=ENVIRONMENT,
    )
    try:
        found = local.status(directory)
        assert found.running and found.zookeeper is not None and found.zookeeper.running
        assert [bookie.name for bookie in found.bookies] == ["bookie-0", "bookie-1"]
        assert all(bookie.running for bookie in found.bookies)
        assert [info.address for info in registered(found.uri)] == [
            bookie.address for bookie in found.bookies
        ]
        before = cluster_id(found.uri)
        with pytest.raises(ConfigurationError, match="already"):
            local.up(directory)
        os.kill(found.bookies[0].pid, signal.SIGKILL)
        eventually(lambda: local.status(directory).bookies[0].pid != found.bookies[0].pid)
        eventually(lambda: local.status(directory).bookies[0].running)  # nobody else can start it
        assert "exit code -9" in local.status(directory).bookies[0].note
        os.kill(found.bookies[1].pid, signal.SIGTERM)  # somebody wants it to end
        eventually(lambda: bool(local.status(directory).bookies[1].note))
        assert not local.status(directory).bookies[1].running
        assert "exit code 0" in local.status(directory).bookies[1].note
    finally:
        stopped = local.down(directory)
    assert stopped
    assert not local.status(directory).running
    assert all_gone([bookie.pid for bookie in found.bookies] + [found.supervisor_pid])
    again = local.up(directory)  # at least as many as there are
    try:
        assert [bookie.name for bookie in again.bookies] == ["bookie-0", "bookie-1", "bookie-2"]
        assert cluster_id(again.uri) == before
        assert json.loads((directory / "cluster.json").read_bytes())["uri"] == again.uri
    finally:
        assert local.down(directory)
    assert not (directory / "cluster.json").exists()


def test_status_of_a_cluster_of_another_program(tmp_path: Path) -> None:
    with (
        LocalCluster(bookies=0, directory=tmp_path),
        pytest.raises(ConfigurationError, match="another program"),
    ):
        local.status(tmp_path)
