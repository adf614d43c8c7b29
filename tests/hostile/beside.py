"""A client beside an attack, as a process of its own, and how long it waited for what it wanted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def end_of_input() -> threading.Event:
    """For the process itself: set once its standard input ends."""
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    return ended


class Beside:
    """The process of ``tests.hostile.neighbour``, or of ``visitor``, from the outside."""

    def __init__(
        self, address: str, bookie_id: str, file: Path, *, program: str = "neighbour"
    ) -> None:
        self._command = (
            *(sys.executable, "-m", f"tests.hostile.{program}"),
            *(address, bookie_id, str(file)),
        )
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin."""
        self._file.touch()
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)

    @property
    def is_alive(self) -> bool:
        """It has every answer so far."""
        assert self._process is not None, "start comes first"
        return self._process.poll() is None

    @property
    def has_begun(self) -> bool:
        """It was served once: no attack begins before that."""
        return self._file.stat().st_size > 0

    def latencies(self, begin: float, end: float) -> list[float]:
        """Of the entries that were acknowledged then, or of visits, sorted; and, when it waits for
        one, for how long."""
        found: list[float] = []
        last = begin
        for line in self._file.read_text(encoding="ascii").splitlines():
            at, _, seconds = line.partition(" ")
            if seconds and begin <= float(at) <= end:
                found.append(float(seconds))
                last = float(at)
        if end - last > 0.5:
            found.append(end - last)
        return sorted(found)

    def finish(self) -> int:
        """Have it end, and a neighbour compare every entry; its exit code."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(120)

    def kill(self) -> None:
        """End it, in whatever state it is."""
        if self._process is not None:
            with self._process:  # waits, and closes the pipe
                self._process.kill()


def quantile(latencies: Sequence[float], share: float) -> float:
    """Milliseconds; of sorted seconds."""
    last = len(latencies) - 1
    return 1e3 * latencies[min(last, int(len(latencies) * share))] if latencies else 0.0
