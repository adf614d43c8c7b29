"""Processes: the caller's side of the supervisor, which owns every process of a local cluster."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from spark_ledger.errors import ConfigurationError, LedgerError
from spark_ledger.local import supervisor

EXIT_TIMEOUT_S: Final = 20.0
"""A process that was told to end has had its own time to drain by then."""

POLL_S: Final = 0.01
LOG_TAIL_BYTES: Final = 4000


class ProcessState(NamedTuple):
    """A process of the cluster; ``exit_code`` is None while it runs (negative: a signal)."""

    pid: int
    exit_code: int | None


class Processes:
    """Starts, signals and watches named processes. Thread-safe.

    ``remove``: the directory is temporary, and the supervisor removes it at the end, whoever dies.
    ``daemon``: made for ``detach``; until then it still ends with the caller.
    """

    def __init__(self, directory: Path, *, remove: bool, daemon: bool = False) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        arguments = [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), str(directory)]
        arguments += ["--remove"] * remove
        arguments += ["--daemon"] if daemon else ["--parent", str(os.getpid())]
        with (directory / "supervisor.log").open("ab") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # control-C in a terminal is for the caller alone
            )
        assert self._process.stdout is not None
        hello = self._process.stdout.readline()
        if daemon or not hello:
            self._process.wait()
        if not hello:
            self._close_pipes()
            if self._process.returncode == supervisor.DIRECTORY_IN_USE:
                raise ConfigurationError(
                    f"a local cluster runs in {directory} already: "
                    "see where with `ledger local status`, end it with `ledger local down`, or "
                    "use another directory"
                )
            raise LedgerError(
                f"the local cluster cannot start: {log_tail(directory / 'supervisor.log')}"
            )
        self.supervisor_pid: int = json.loads(hello)["pid"]

    def spawn(
        self, name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> int:
        """Start a process in the cluster's directory; its process id."""
        reply = self._request(
            {
                "op": "spawn",
                "name": name,
                "argv": list(argv),
                "cwd": str(self.directory),
                "log": str(log),
                "env": dict(env or {}),
            }
        )
        return reply["pid"]

    def signal(self, name: str, signal_number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""
        self._request({"op": "signal", "name": name, "signal": int(signal_number)})

    def keep(
        self,
        name: str,
        *,
        notice: Path,
        sayings: Mapping[int, str],
        pause_s: float = supervisor.RESTART_S,
        unless: Sequence[int] = (),
    ) -> None:
        """Have a process started again when it ends, or if it has, but not when ``signal`` ended
        it, or with one of the exit codes ``unless``.

        ``notice``: a file that says why it ended, while that may explain that it does not answer.
        ``sayings``: what it says by exit code. ``pause_s``: before the first time.
        """
        self._request(
            {
                "op": "keep",
                "name": name,
                "notice": str(notice),
                "sayings": {str(code): text for code, text in sayings.items()},
                "pause": pause_s,
                "unless": list(unless),
            }
        )

    def states(self) -> dict[str, ProcessState]:
        """Every process that was ever started, by name."""
        processes = self._request({"op": "status"})["processes"]
        return {
            name: ProcessState(state["pid"], state["exit"]) for name, state in processes.items()
        }

    def is_running(self, name: str) -> bool:
        state = self.states().get(name)
        return state is not None and state.exit_code is None

    def wait_exit(self, name: str, timeout_s: float = EXIT_TIMEOUT_S) -> int:
        """The exit code, once it has ended. Raises LedgerError after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while True:
            exit_code = self.states()[name].exit_code
            if exit_code is not None:
                return exit_code
            if time.monotonic() > deadline:
                raise LedgerError(f"{name} did not end within {timeout_s:g} s")
            time.sleep(POLL_S)

    def detach(self, state_file: Path) -> None:
        """Let the cluster run on without this process; its end removes the state file."""
        self._request({"op": "detach", "state": str(state_file)})
        self._close_pipes()

    def stop(self, *, graceful: bool) -> None:
        """End every process and the supervisor. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            # If the supervisor is gone, so is every process: it kills them at its end.
            with contextlib.suppress(LedgerError):
                self._request({"op": "stop", "graceful": graceful})
        self._close_pipes()
        self._process.wait()

    def _request(self, request: supervisor.Request) -> supervisor.Reply:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with self._lock:
            try:
                stdin.write(json.dumps(request).encode() + b"\n")
                stdin.flush()
                line = stdout.readline()
            except ValueError as error:  # we have closed the pipes
                raise LedgerError("the local cluster is stopped") from error
            except OSError:
                line = b""
        if not line:
            raise LedgerError("the local cluster was stopped from outside: its supervisor is gone")
        reply: supervisor.Reply = json.loads(line)
        if "error" in reply:
            raise LedgerError(f"the local cluster cannot {request['op']}: {reply['error']}")
        return reply

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent bytes, and nobody to read them
                    pipe.close()


def log_tail(path: Path) -> str:
    """The end of a log, for an error message."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
