"""A process that is kept: started again, later each time, and a notice that says why it ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from spark_ledger.local.supervisor import (
    RAN_WELL_S,
    RESTART_S,
    RESTART_S_MAX,
    ChildState,
    Kept,
    Request,
    Supervisor,
)


class World:
    """A kept process, its clock and its starts."""

    def __init__(self, notice: Path) -> None:
        self.now = 1000.0
        self.starts: list[float] = []
        self.notice = notice
        request = Request(notice=str(notice), sayings={"3": "its heap is full"}, pause=RESTART_S)
        self.kept = Kept(request, self._start, self.now)

    def _start(self) -> int:
        self.starts.append(self.now)
        return 100 + len(self.starts)

    def pause_after_end(self, code: int) -> float:
        """It ends now; after how long it is started again, in steps of 0.25 s."""
        begin = self.now
        while self.kept.look(code, self.now) is None:
            self.now += 0.25
            assert self.now < begin + 100, "not started again"
        return self.now - begin


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "notices" / "zookeeper-1")


def test_kept_process_that_ends_again_and_again_is_started_later_each_time(world: World) -> None:
    pauses = [world.pause_after_end(1) for _ in range(9)]
    assert pauses[:4] == [RESTART_S, 2 * RESTART_S, 4 * RESTART_S, 8 * RESTART_S]
    assert pauses[-2:] == [RESTART_S_MAX, RESTART_S_MAX]
    assert world.kept.ended == len(world.starts) == 9


def test_kept_process_that_ran_well_begins_afresh(world: World) -> None:
    for _ in range(4):
        world.pause_after_end(3)
    world.now += RAN_WELL_S
    world.kept.look(None, world.now)
    assert world.notice.exists()
    world.now += 1.0
    world.kept.look(None, world.now)
    assert not world.notice.exists()
    assert world.pause_after_end(3) == RESTART_S


def test_kept_process_that_ended_for_good_is_not_started_again(world: World) -> None:
    request = Request(notice=str(world.notice), sayings={}, pause=RESTART_S, unless=[0, 2])
    for code, is_started in ((0, False), (2, False), (1, True), (-9, True)):
        kept = Kept(request, world._start, world.now)
        world.starts.clear()
        for _ in range(400):
            world.now += 0.25
            kept.look(code, world.now)
            if world.starts:
                break
        assert bool(world.starts) is is_started and kept.ended == 1
        said = "is started again" if is_started else "its log says why"
        assert kept.why.startswith(f"it ended with exit code {code}") and kept.why.endswith(said)


def test_notice_says_why_it_ended_until_somebody_ends_it(world: World) -> None:
    world.pause_after_end(3)
    assert world.notice.read_text() == "its heap is full"
    assert world.notice.parent.stat().st_mode & 0o077 == 0
    world.pause_after_end(7)
    assert "exit code 7" in world.notice.read_text()
    world.kept.end()
    assert not world.notice.exists()


def test_notice_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    world = World(tmp_path / "file" / "zookeeper-1")
    assert world.pause_after_end(3) == RESTART_S


def test_process_that_cannot_be_started_again_says_so_and_is_tried_again(world: World) -> None:
    """It has ended once, however often it was tried, and begins once that is possible."""
    fails = True
    start = world.kept._start

    def sometimes() -> int:
        if fails:
            raise OSError("no such program")
        return start()

    world.kept._start = sometimes
    for _ in range(400):
        assert world.kept.look(3, world.now) is None
        world.now += 0.25
    assert world.kept.ended == 1
    assert world.kept.why == "it cannot be started again: no such program"
    assert world.notice.read_text() == world.kept.why
    fails = False
    assert world.pause_after_end(3) <= RESTART_S_MAX
    assert len(world.starts) == 1


def test_state_file_says_that_a_process_cannot_be_started_again(tmp_path: Path) -> None:
    program, cwd, log = tmp_path / "program", str(tmp_path), str(tmp_path / "log")
    program.write_text("#!/bin/sh\nexit 5\n")
    program.chmod(0o700)
    owner, state = Supervisor(remove=None, parent=None), tmp_path / "state"
    argv, notice = [str(program)], str(tmp_path / "notice")
    owner.handle(Request(op="spawn", name="z", argv=argv, env={}, cwd=cwd, log=log))
    owner.handle(Request(op="keep", name="z", notice=notice, sayings={}, pause=RESTART_S))
    state.write_text(
        '{"zookeeper": {"name": "y"}, "bookies": [{"name": "z", "pid": 1, "note": ""}]}'
    )
    owner._state = state
    program.unlink()
    deadline = time.monotonic() + 30.0
    try:
        while "cannot be started again" not in owner._kept["z"].why:
            assert time.monotonic() < deadline, "it was not tried"
            owner.handle({"op": "status"})
            owner.look()
            time.sleep(0.02)
        assert "cannot be started again" in state.read_text()
    finally:
        owner.handle({"op": "stop", "graceful": False})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_process_that_was_ended_by_a_request_is_not_started_again(
    tmp_path: Path, number: int
) -> None:
    keeper = Supervisor(remove=None, parent=None)

    def state(name: str) -> ChildState:
        return keeper.handle({"op": "status"})["processes"][name]

    def notice(name: str) -> Path:
        return tmp_path / "notices" / name

    cwd, log = str(tmp_path), str(tmp_path / "log")
    for name in ("ended", "crashed"):
        argv = ["sleep", "60"]
        keeper.handle(Request(op="spawn", name=name, argv=argv, env={}, cwd=cwd, log=log))
        about = Request(op="keep", name=name, notice=str(notice(name)), sayings={}, pause=RESTART_S)
        keeper.handle(about)
    ended, crashed = state("ended")["pid"], state("crashed")["pid"]
    try:
        keeper.handle({"op": "signal", "name": "ended", "signal": number})
        os.kill(crashed, signal.SIGKILL)
        deadline = time.monotonic() + 30.0
        while state("crashed")["pid"] == crashed or state("ended")["exit"] is None:
            assert time.monotonic() < deadline, "not started again"
            keeper.look()
            time.sleep(0.02)
        assert state("ended") == {"pid": ended, "exit": -number}
        assert not notice("ended").exists() and notice("crashed").exists()
    finally:
        keeper.handle({"op": "stop", "graceful": False})
    assert not notice("crashed").exists()
