"""The process that owns a local cluster's processes, so that none of them outlives it.

Run as a script by its path, with the standard library only, because it must start in a few
milliseconds. It has one thread. Requests are JSON lines on standard input, one reply line each:

    {"op": "spawn", "name": ..., "argv": [...], "cwd": ..., "log": ..., "env": {...}}
    {"op": "signal", "name": ..., "signal": 9}
    {"op": "keep", "name": ..., "notice": path, "sayings": {"3": ...}, "pause": 0.5,
     "unless": [0]}
                                      start it again when it ends, and if it has, but not for
                                      these exit codes
    {"op": "status"}                  -> {"processes": {name: {"pid": 1, "exit": null}}}
    {"op": "detach", "state": path}   go on alone; the state file is removed at the end
    {"op": "stop", "graceful": true}

Until it is detached it kills everything and ends when its input closes or its parent dies. It
watches both, because a program that the parent has forked may hold the other end of the input
open. A process that it keeps is started again, later each time, unless a request ended it; why it
ended stands in the notice, for those who wonder why it does not answer, and in the state file. If
this process itself is killed, the kernel kills the children (on Linux; the flag belongs to
the thread that made the child, so there is only one). It holds a lock on the directory as long as
it lives.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypedDict

LOCK_NAME: Final = "lock"
STATE_NAME: Final = "cluster.json"
"""What a detached cluster says of itself; it is believed only while the lock is held."""

PARENT_CHECK_S: Final = 0.25
"""The parent is looked for this often: its end closes no pipe that a fork of it holds."""

BOOKIES_STOP_S: Final = 15.0
"""Bookies flush their write caches before they end."""

OTHERS_STOP_S: Final = 5.0
"""ZooKeeper has nothing to write at its end."""

RESTART_S: Final = 0.5
"""A kept process that ended is started again after this, and twice as long each time."""

RESTART_S_MAX: Final = 30.0
"""The longest of these pauses: one whose trouble has gone is back soon."""

RAN_WELL_S: Final = 60.0
"""A kept process that ran for so long begins afresh: a short pause, and no notice."""

DIRECTORY_IN_USE: Final = 3
"""Exit code: another cluster runs in the directory."""

_PR_SET_PDEATHSIG: Final = 1


class Request(TypedDict, total=False):
    """One line of input. Which fields there are depends on ``op``; see above."""

    op: str
    name: str
    argv: list[str]
    cwd: str
    log: str
    env: dict[str, str]
    signal: int
    state: str
    graceful: bool
    notice: str
    sayings: dict[str, str]
    pause: float
    unless: list[int]


class ChildState(TypedDict):
    """A process that was started; ``exit`` is its exit code, or None while it runs."""

    pid: int
    exit: int | None


class Reply(TypedDict, total=False):
    """One line of output: what ``op`` asks for, or ``error``."""

    pid: int
    processes: dict[str, ChildState]
    error: str


class _TerminatedError(Exception):
    """SIGTERM or SIGINT came."""


class Kept:
    """A process that is started again when it ends. Who watches it calls ``look`` now and then."""

    def __init__(self, request: Request, start: Callable[[], int], now: float) -> None:
        """It runs ``now``, and ``start`` starts it again."""
        self._start = start
        self._sayings = request["sayings"]
        self._stays_ended = request.get("unless", [])
        self._notice = Path(request["notice"])
        self._first_pause_s = self._pause_s = request["pause"]
        self._started_at = now
        self._again_at: float | None = None
        self.ended = 0
        """How often it has ended."""
        self.why = ""
        """Why it ended last, with what to do; empty if it never did."""
        self._remove_notice()

    def look(self, exit_code: int | None, now: float) -> int | None:
        """Start it again if that is due; then its new process id."""
        if exit_code is None:
            if self.ended and now - self._started_at > RAN_WELL_S:
                self._pause_s = self._first_pause_s
                self._remove_notice()
            return None
        if self._again_at is None:
            stays_ended = exit_code in self._stays_ended
            self._again_at = float("inf") if stays_ended else self._next_try(now)
            self.ended += 1
            rest = ": its log says why" if stays_ended else ", and is started again"
            default = f"it ended with exit code {exit_code}{rest}"
            self.why = self._sayings.get(str(exit_code), default)
            self._write_notice()
        if now < self._again_at:
            return None
        try:
            pid = self._start()
        except OSError as error:
            self._again_at = self._next_try(now)
            self.why = f"it cannot be started again: {error}"
            self._write_notice()
            return None
        self._again_at, self._started_at = None, now
        return pid

    def _next_try(self, now: float) -> float:
        """When it is started, after a pause that is twice as long the next time."""
        again_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, RESTART_S_MAX)
        return again_at

    def end(self) -> None:
        """It is not kept any more: somebody ended it on purpose."""
        self._remove_notice()

    def _write_notice(self) -> None:
        with contextlib.suppress(OSError):  # it only explains; a full disk must not end the cluster
            self._notice.parent.mkdir(mode=0o700, exist_ok=True)
            temporary = self._notice.with_name(f"{self._notice.name}.{os.getpid()}")
            temporary.write_text(self.why)
            temporary.replace(self._notice)

    def _remove_notice(self) -> None:
        with contextlib.suppress(OSError):
            self._notice.unlink(missing_ok=True)


class Supervisor:
    """The children by name, and the requests about them."""

    def __init__(self, *, remove: Path | None, parent: int | None) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._spawned: dict[str, Request] = {}
        self._kept: dict[str, Kept] = {}
        self._remove = remove
        self._parent = parent
        self._state: Path | None = None
        self._detached = False
        self._stopped = False
        self._die_with_parent = _death_signal()

    def run(self) -> None:
        """Serve until told to stop, or until nobody is left who could."""
        graceful = False
        try:
            self._serve()
        except _TerminatedError:
            graceful = True
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if not self._stopped:
                self._stop(graceful=graceful)
            if self._state is not None:
                self._state.unlink(missing_ok=True)
            if self._remove is not None:
                shutil.rmtree(self._remove, ignore_errors=True)

    def _serve(self) -> None:
        buffered = b""
        while not self._stopped:
            inputs = [] if self._detached else [0]
            ready, _, _ = select.select(inputs, [], [], PARENT_CHECK_S)
            for child in self._children.values():
                child.poll()  # reap
            self.look()
            if ready:
                received = os.read(0, 65536)
                if not received:
                    return
                *lines, buffered = (buffered + received).split(b"\n")
                for line in lines:
                    self._answer(line)
            if self._parent is not None and os.getppid() != self._parent:
                return

    def _answer(self, line: bytes) -> None:
        try:
            reply = self.handle(json.loads(line))
        except (OSError, KeyError, ValueError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(BrokenPipeError):  # the reader is gone; the loop will see it
            os.write(1, json.dumps(reply).encode() + b"\n")
        if self._detached:
            os.close(1)

    def handle(self, request: Request) -> Reply:
        """Do what a request asks for; the reply."""
        match request["op"]:
            case "spawn":
                return self._spawn(request)
            case "signal":
                self._signal(request["name"], request["signal"])
            case "keep":
                self._keep(request)
            case "status":
                return {
                    "processes": {
                        name: {"pid": child.pid, "exit": child.poll()}
                        for name, child in self._children.items()
                    }
                }
            case "detach":
                self._detached, self._parent = True, None
                self._state = Path(request["state"])
            case "stop":
                self._stop(graceful=request["graceful"])
            case other:
                raise ValueError(f"unknown request {other!r}")
        return {}

    def _spawn(self, request: Request) -> Reply:
        name = request["name"]
        before = self._children.get(name)
        if before is not None and before.poll() is None:
            raise ValueError(f"{name} is running")
        with Path(request["log"]).open("ab") as log:
            child = subprocess.Popen(
                request["argv"],
                cwd=request["cwd"],
                env={**os.environ, **request["env"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=self._die_with_parent,  # safe: this process has one thread
            )
        self._children[name], self._spawned[name] = child, request
        return {"pid": child.pid}

    def _signal(self, name: str, number: int) -> None:
        if number in (signal.SIGKILL, signal.SIGTERM) and name in self._kept:
            self._kept.pop(name).end()
        child = self._children[name]
        if child.poll() is None:
            child.send_signal(number)

    def _keep(self, request: Request) -> None:
        name = request["name"]
        spawned = self._spawned[name]
        self._kept[name] = Kept(request, lambda: self._spawn(spawned)["pid"], time.monotonic())

    def look(self) -> None:
        """Start again what is kept and has ended."""
        for name, kept in self._kept.items():
            before = kept.ended, kept.why
            pid = kept.look(self._children[name].returncode, time.monotonic())
            if pid is not None or (kept.ended, kept.why) != before:
                self._write_state(name, kept)

    def _write_state(self, name: str, kept: Kept) -> None:
        """Tell who reads the state file of the new process, and why it ended."""
        if self._state is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(self._state.read_bytes())
            (process,) = (p for p in (state["zookeeper"], *state["bookies"]) if p["name"] == name)
            process["pid"] = self._children[name].pid
            process["note"] = f"{kept.why} (it has ended {kept.ended} times)"
            temporary = self._state.with_suffix(".tmp")
            temporary.write_text(json.dumps(state, indent=2))
            temporary.replace(self._state)

    def _stop(self, *, graceful: bool) -> None:
        """End all children, the bookies before the metadata store they report to."""
        self._stopped = True
        for kept in self._kept.values():
            kept.end()
        if graceful:
            bookies = [c for name, c in self._children.items() if name.startswith("bookie")]
            others = [c for name, c in self._children.items() if not name.startswith("bookie")]
            _terminate(bookies, BOOKIES_STOP_S)
            _terminate(others, OTHERS_STOP_S)
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
        for child in self._children.values():
            child.wait()


def _terminate(children: list[subprocess.Popen[bytes]], timeout_s: float) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            child.send_signal(signal.SIGCONT)  # a paused one would sleep through it
    deadline = time.monotonic() + timeout_s
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))


def _death_signal() -> Callable[[], None] | None:
    """For Linux: a function that a new child calls to be killed when this process dies."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    supervisor = os.getpid()

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before the call above
            os.kill(os.getpid(), signal.SIGKILL)

    return die_with_parent


def _terminated(_signal_number: int, _frame: object) -> None:
    raise _TerminatedError


def take_lock(directory: Path) -> int | None:
    """The descriptor that holds the directory, or None if another cluster does."""
    lock = os.open(directory / LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    # Of a cluster that a power cut ended: its process ids may be those of strangers by now.
    (directory / STATE_NAME).unlink(missing_ok=True)
    return lock


def main() -> int:
    """Take the lock, say so, serve. Exit code 3: another cluster runs in the directory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--remove", action="store_true", help="remove the directory at the end")
    parser.add_argument("--daemon", action="store_true", help="leave the parent at once")
    parser.add_argument("--parent", type=int, help="end when this is no longer the parent")
    options = parser.parse_args()
    if take_lock(options.directory) is None:
        return DIRECTORY_IN_USE
    if options.daemon and os.fork() > 0:
        os._exit(0)  # the fork keeps the lock, and has no parent that could end it
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGINT, _terminated)
    supervisor = Supervisor(
        remove=options.directory if options.remove else None,
        parent=None if options.daemon else options.parent,
    )
    os.write(1, json.dumps({"pid": os.getpid()}).encode() + b"\n")
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
