"""The processes of a local cluster: in which order they end, and what is known of them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from spark_ledger.errors import ConfigurationError, CorruptionError, LedgerError
from spark_ledger.local import detached
from spark_ledger.local.detached import ClusterStatus, ProcessStatus
from spark_ledger.local.processes import Processes
from spark_ledger.local.supervisor import STATE_NAME, take_lock

PATIENCE_S = 30.0
TRAP = """
trap 'sleep {pause}; echo {name} >> ended; exit 7' TERM
echo {name} >> begun
while :; do sleep 0.02; done
"""
ADDRESS = "127.0.0.1:1"


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def lives(pid: int) -> bool:
    """Whether the process runs; one that has ended and nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Made:
    """A directory, its processes, and how to start one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes = Processes(directory, remove=False, daemon=True)

    def begin(self, name: str, pause: float = 0.0) -> int:
        """A process that notes in ``ended`` that it was told to end; its id."""
        argv = ["sh", "-c", TRAP.format(name=name, pause=pause)]
        pid = self.processes.spawn(name, argv, log=self.directory / "log")
        until(lambda: name in lines(self.directory / "begun"))
        return pid


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path)
    yield made
    made.processes.stop(graceful=False)
    if detached._is_locked(tmp_path):  # it was detached by a test that failed
        os.kill(made.processes.supervisor_pid, signal.SIGTERM)


def test_bookies_have_ended_before_the_metadata_store_is_told_to(made: Made) -> None:
    """They withdraw there. One that is paused is told as well."""
    made.begin("zookeeper")
    made.begin("bookie-0", pause=0.4)
    made.begin("bookie-1", pause=0.2)
    made.processes.signal("bookie-1", signal.SIGSTOP)
    made.processes.stop(graceful=True)
    assert lines(made.directory / "ended") == ["bookie-1", "bookie-0", "zookeeper"]


def test_stop_that_is_not_graceful_ends_all_at_once(made: Made) -> None:
    pids = [made.begin(name, pause=60.0) for name in ("zookeeper", "bookie-0")]
    made.processes.stop(graceful=False)
    assert not any(map(lives, pids))
    assert not (made.directory / "ended").exists()
    made.processes.stop(graceful=False)
    with pytest.raises(LedgerError, match="is stopped"):
        made.processes.states()


def test_what_has_ended_has_its_exit_code_and_may_be_started_again(made: Made) -> None:
    first = made.begin("bookie-0")
    with pytest.raises(LedgerError, match="bookie-0 is running"):
        made.begin("bookie-0")
    with pytest.raises(LedgerError, match="did not end within"):
        made.processes.wait_exit("bookie-0", timeout_s=0.0)
    made.processes.signal("bookie-0", signal.SIGTERM)
    assert made.processes.wait_exit("bookie-0") == 7
    assert not made.processes.is_running("bookie-0")
    made.processes.signal("bookie-0", signal.SIGKILL)  # of one that has ended: nothing happens
    second = made.begin("bookie-0")
    assert second != first and made.processes.is_running("bookie-0")
    assert made.processes.states()["bookie-0"] == (second, None)
    made.processes.signal("bookie-0", signal.SIGKILL)
    assert made.processes.wait_exit("bookie-0") == -signal.SIGKILL
    assert not made.processes.is_running("bookie-7")


@pytest.mark.parametrize("removes", [True, False])
def test_caller_that_goes_away_leaves_no_process(tmp_path: Path, removes: bool) -> None:
    """And nothing of a temporary directory."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    processes = Processes(directory, remove=removes)
    argv = ["sh", "-c", TRAP.format(name="zookeeper", pause=0)]
    pid = processes.spawn("zookeeper", argv, log=tmp_path / "log")
    processes._close_pipes()
    until(lambda: not lives(pid))
    until(lambda: directory.exists() is not removes)
    assert processes._process.wait(PATIENCE_S) == 0


def test_request_that_comes_in_parts_is_one(made: Made) -> None:
    """A pipe holds 64 KiB, and the environment of a process may be larger."""
    log, env = made.directory / "log", {f"PART_{number}": "x" * 50_000 for number in range(4)}
    pid = made.processes.spawn("bookie-0", ["sleep", "60"], log=log, env=env)
    assert lives(pid) and made.processes.is_running("bookie-0")


def test_supervisor_that_was_killed_is_told_from_one_that_was_stopped(tmp_path: Path) -> None:
    processes = Processes(tmp_path, remove=False)
    os.kill(processes.supervisor_pid, signal.SIGKILL)
    with pytest.raises(LedgerError, match="stopped from outside"):
        processes.states()
    processes.stop(graceful=True)


def test_second_cluster_in_a_directory_is_refused(made: Made) -> None:
    with pytest.raises(ConfigurationError, match="runs in"):
        Processes(made.directory, remove=False)


def state_file(made: Made, **pids: int) -> Path:
    """What ``ledger local up`` writes, with a process of the cluster and one that is none."""
    status = ClusterStatus(
        directory=str(made.directory),
        running=True,
        supervisor_pid=made.processes.supervisor_pid,
        zookeeper=ProcessStatus("zookeeper", ADDRESS, pids["zookeeper"]),
        bookies=tuple(
            ProcessStatus(name, ADDRESS, pid) for name, pid in pids.items() if name != "zookeeper"
        ),
    )
    path = made.directory / STATE_NAME
    path.write_bytes(msgspec.json.encode(status))
    return path


def test_process_that_is_kept_has_its_new_id_and_why_it_ended_in_the_state_file(
    made: Made,
) -> None:
    pid = made.begin("zookeeper")
    stranger = os.getpid()
    notice, path = made.directory / "notices" / "1", state_file(made, zookeeper=pid, b=stranger)
    sayings = {-signal.SIGKILL: "somebody has killed it"}
    made.processes.keep("zookeeper", notice=notice, sayings=sayings)
    made.processes.detach(path)
    for times in (1, 2):
        known = detached.status(made.directory).zookeeper
        assert known is not None and known.running
        os.kill(known.pid, signal.SIGKILL)

        def is_another(pid: int = known.pid) -> bool:
            return bool(json.loads(path.read_bytes())["zookeeper"]["pid"] != pid)

        until(is_another)
        now = detached.status(made.directory)
        assert now.zookeeper is not None and now.zookeeper.running
        assert now.zookeeper.note == f"somebody has killed it (it has ended {times} times)"
        assert notice.read_text() == "somebody has killed it"
    assert [bookie.running for bookie in now.bookies] == [False], "it is not the cluster's own"
    until(lambda: len(lines(made.directory / "begun")) == 3)
    assert detached.down(made.directory)
    assert lines(made.directory / "ended") == ["zookeeper"]
    assert not path.exists() and not notice.exists()
    assert not detached.down(made.directory), "none runs any more"
    assert detached.status(made.directory) == ClusterStatus(
        directory=str(made.directory), running=False
    )


def test_state_file_that_is_missing_or_damaged_is_told_from_a_cluster_that_is_down(
    made: Made,
) -> None:
    with pytest.raises(ConfigurationError, match="another program holds it"):
        detached.status(made.directory)
    (made.directory / STATE_NAME).write_text("{")
    with pytest.raises(CorruptionError, match="is damaged"):
        detached.status(made.directory)


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the id which a supervisor had before a power cut."""
    process = subprocess.Popen(["sleep", "60"])
    status = ClusterStatus(directory=str(tmp_path), running=True, supervisor_pid=process.pid)
    (tmp_path / STATE_NAME).write_bytes(msgspec.json.encode(status))
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("holder", [take_lock, lambda path: Processes(path, remove=False)])
def test_process_with_the_id_of_a_supervisor_before_a_power_cut_is_left_alone(
    tmp_path: Path,
    stranger: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    holder: Callable[[Path], int | Processes],
) -> None:
    monkeypatch.setattr(detached, "DOWN_TIMEOUT_S", 0.5)
    held = holder(tmp_path)
    try:
        with pytest.raises(ConfigurationError, match="another program holds it"):
            detached.down(tmp_path)
        assert stranger.poll() is None
    finally:
        if isinstance(held, Processes):
            held.stop(graceful=False)
        else:
            os.close(held)


def test_state_file_of_a_cluster_that_runs_stays_when_another_one_is_refused(made: Made) -> None:
    path = state_file(made, zookeeper=os.getpid())
    assert take_lock(made.directory) is None and path.exists()


def test_cluster_of_another_user_is_not_ended_and_the_user_told(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int, _signal_number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    state_file(made, zookeeper=os.getpid())
    with monkeypatch.context() as patched, pytest.raises(ConfigurationError, match="another user"):
        patched.setattr(os, "kill", refuse)
        detached.down(made.directory)


class Cluster:
    """What ``up`` starts, without servers; it is interrupted once it is detached."""

    uri, zookeeper_port, bookie_ids = "zk://127.0.0.1:1/ledgers", 1, ()

    def __init__(self, made: Made) -> None:
        self.directory, self.processes = made.directory, made.processes
        self.stop = lambda: made.processes.stop(graceful=True)

    def detach(self, state: Path) -> None:
        pipes = self.processes._process
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(json.dumps({"op": "detach", "state": str(state)}).encode() + b"\n")
        pipes.stdin.flush()
        assert select.select([pipes.stdout], [], [], PATIENCE_S)[0], "it has answered"
        raise KeyboardInterrupt


def test_up_that_is_interrupted_at_its_end_leaves_no_cluster_behind(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command could end it: nothing says any more which process holds it."""
    pid = made.begin("zookeeper")
    monkeypatch.setattr(detached, "LocalCluster", lambda *_, **__: Cluster(made))
    with pytest.raises(KeyboardInterrupt):
        detached.up(made.directory)
    assert not detached.status(made.directory).running and not lives(pid)
    assert lines(made.directory / "ended") == ["zookeeper"]
