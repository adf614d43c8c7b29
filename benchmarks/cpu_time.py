"""CPU time by component of a running Spark job: who works how much for the same rows.

The components are told apart by process and thread, from outside, at no cost to what is measured:
the JVM; the Python processes that Spark starts, whose main thread runs Spark's own serialisation
and the connector, and whose other threads run the client (its event loop and gRPC); the bookies.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import psutil

SAMPLE_S = 0.25
"""Spark's Python processes come and go; what they used is read this often."""

JVM = "Spark (JVM)"
MAIN_THREAD = "connector, with Spark's Python side"
CLIENT = "client"
BOOKIES = "bookies"
DRIVER = "driver program"

_Usage = dict[tuple[str, int, float, int], float]


class CpuMeter:
    """CPU seconds by component since ``start``; the calling process is the driver program."""

    def __init__(self, bookies: Sequence[int]) -> None:
        self._me = psutil.Process()
        self._bookies = [psutil.Process(pid) for pid in bookies]
        self._usage: _Usage = {}
        self._before: _Usage = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpu-meter", daemon=True)

    def start(self) -> None:
        """Count from now on, and sample in the background."""
        self._sample()
        self._before = dict(self._usage)
        self._thread.start()

    def finish(self) -> dict[str, float]:
        """Stop; CPU seconds by component."""
        self._stop.set()
        self._thread.join()
        self._sample()
        seconds = dict.fromkeys((JVM, MAIN_THREAD, CLIENT, BOOKIES, DRIVER), 0.0)
        for key, used in self._usage.items():
            seconds[key[0]] += used - self._before.get(key, 0.0)
        return seconds

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        self._process(DRIVER, self._me)
        for bookie in self._bookies:
            self._process(BOOKIES, bookie)
        for child in self._me.children(recursive=True):
            try:
                if child.name().startswith("java"):
                    self._process(JVM, child)
                else:
                    self._threads(child)
            except psutil.NoSuchProcess:
                continue  # it has ended; what it had used is in the last sample

    def _process(self, component: str, process: psutil.Process) -> None:
        times = process.cpu_times()
        key = (component, process.pid, process.create_time(), 0)
        self._usage[key] = times.user + times.system

    def _threads(self, process: psutil.Process) -> None:
        for thread in process.threads():
            component = MAIN_THREAD if thread.id == process.pid else CLIENT
            key = (component, process.pid, process.create_time(), thread.id)
            self._usage[key] = thread.user_time + thread.system_time


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Each component's part of the whole, with three digits; they add up to 1 but for rounding."""
    whole = sum(seconds.values())
    return {name: round(used / whole, 3) for name, used in seconds.items()} if whole else {}
