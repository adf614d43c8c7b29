"""The driver as a process, and its Python workers, which are killed one by one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil


class Driver:
    """``query`` in a process of its own; started again when it ends by itself."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._arguments = arguments
        self.starts = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.endurance.query", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            )

    def see_to_it(self) -> None:
        """Start it again if it has ended: a task that fails four times ends the query."""
        if self._process.poll() is not None:
            self._process = self._start()

    def kill_a_worker(self, draw: random.Random) -> bool:
        """SIGKILL for one of the workers that Spark's daemon has forked; False if there is none."""
        workers = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                parent = process.parent()
                if parent and _is_daemon(process) and _is_daemon(parent):
                    workers.append(process)
            except psutil.NoSuchProcess:
                continue
        if not workers:
            return False
        draw.choice(workers).send_signal(signal.SIGKILL)
        return True

    def stop(self) -> int:
        """End the query after its batch; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _is_daemon(process: psutil.Process) -> bool:
    return "pyspark.daemon" in process.cmdline()
