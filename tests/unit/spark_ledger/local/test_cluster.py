"""A local cluster over processes that only seem to run: what it waits for at each start."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_ledger.errors import BookieUnavailableError
from spark_ledger.local import bookie, cluster, zookeeper
from spark_ledger.local.cluster import LocalCluster
from spark_ledger.local.processes import ProcessState

READY_AFTER_LOOKS = 3


class Pretended:
    """Stands for ``Processes``. A bookie says that it serves a few looks after each of its starts,
    and writes which start that was."""

    ends_with: int | None = None
    """The exit code of bookies that begin from now on; None: they serve."""

    def __init__(self, directory: Path, **_options: object) -> None:
        self.directory = directory
        self.starts: dict[str, int] = {}
        self.looks: dict[str, int] = {}
        self.exits: dict[str, int | None] = {}
        self.signals: list[tuple[str, int]] = []
        self.kept: dict[str, tuple[int, ...]] = {}
        """What is started again when it ends, but with which exit codes; and the detaching."""

    def spawn(
        self, name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> int:
        assert self.exits.get(name, 0) is not None, f"{name} runs"
        self.starts[name] = self.starts.get(name, 0) + 1
        self.looks[name], self.exits[name] = 0, None
        return 1

    def states(self) -> dict[str, ProcessState]:
        for name, exit_code in self.exits.items():
            self.looks[name] += 1
            if exit_code is not None or not name.startswith("bookie"):
                continue
            if self.ends_with is not None:
                self.exits[name] = self.ends_with
            elif self.looks[name] == READY_AFTER_LOOKS:
                bookie.ready_file(self.directory / name).write_text(str(self.starts[name]))
        return {name: ProcessState(1, exit_code) for name, exit_code in self.exits.items()}

    def is_running(self, name: str) -> bool:
        return self.exits.get(name, 0) is None

    def signal(self, name: str, number: int) -> None:
        self.signals.append((name, int(number)))
        paused = [each for each in self.signals if each[0] == name][:-1]
        if number == signal.SIGKILL or (
            number == signal.SIGTERM and (name, int(signal.SIGSTOP)) not in paused
        ):
            self.exits[name] = -int(number)
        elif number == signal.SIGCONT and (name, int(signal.SIGTERM)) in paused:
            self.exits[name] = 0

    def wait_exit(self, name: str, timeout_s: float = 20.0) -> int:
        exit_code = self.exits[name]
        assert exit_code is not None, f"{name} does not end"
        return exit_code

    def keep(self, name: str, *, unless: Sequence[int] = (), **_options: object) -> None:
        self.kept[name] = tuple(unless)

    def detach(self, state_file: Path) -> None:
        self.kept[state_file.name] = ()

    def stop(self, *, graceful: bool) -> None:
        self.exits = dict.fromkeys(self.exits, 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalCluster]:
    monkeypatch.setattr(cluster, "Processes", Pretended)
    monkeypatch.setattr(cluster, "POLL_S", 0.0)
    monkeypatch.setattr(zookeeper, "answers", lambda *_given: True)
    monkeypatch.setattr(zookeeper, "command", lambda *_given, **_named: [])
    with LocalCluster(2, tmp_path) as found:
        yield found


def start_that_serves(made: LocalCluster, index: int) -> int:
    """Which start of the bookie has said that it serves."""
    return int(bookie.ready_file(made.bookie_directory(index)).read_text())


def pretended(made: LocalCluster) -> Any:
    return made.processes


def test_each_start_waits_until_this_one_serves(made: LocalCluster) -> None:
    """And takes nothing for its word that one of before has left in the directory."""
    for number in (1, 2, 3):
        assert start_that_serves(made, 0) == pretended(made).starts["bookie-0"] == number
        made.kill_bookie(0)
        made.start_bookie(0)
    assert start_that_serves(made, 1) == 1


def test_start_of_a_bookie_that_ends_says_so_though_it_has_served_before(
    made: LocalCluster,
) -> None:
    made.stop_bookie(0)
    pretended(made).ends_with = 2
    with pytest.raises(BookieUnavailableError, match="exit code 2"):
        made.start_bookie(0)
    pretended(made).ends_with = None
    made.start_bookie(0)
    assert start_that_serves(made, 0) == 3


def test_paused_bookie_is_stopped_or_killed_at_once(made: LocalCluster) -> None:
    made.pause_bookie(0)
    assert made.stop_bookie(0) == 0
    made.start_bookie(0)
    made.pause_bookie(1)
    made.kill_bookie(1)
    assert not made.is_bookie_running(1) and made.is_bookie_running(0)


def test_bookies_of_a_cluster_that_is_left_alone_are_started_again_when_they_end(
    made: LocalCluster,
) -> None:
    """Those of a program are not: it kills them on purpose. One that refused to start is kept
    already, with its words."""
    assert list(pretended(made).kept) == ["zookeeper"]
    made.refused["bookie-1"] = "did not start: its disk is away"
    made.detach(made.directory / "state")
    assert list(pretended(made).kept) == ["zookeeper", "bookie-0", "state"]
    assert pretended(made).kept["bookie-0"] == (0, 2, 4, -15, -2)
