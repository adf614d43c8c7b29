"""A wall clock that can be set for one process: time of day is read through an offset in a file.

Only what Python reads of it moves, and the product's only clock besides is a monotonic one, which
no operator can set.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "SPARK_LEDGER_TEST_CLOCK"
"""Names the file: seconds to add, as text. Without the file the clock is right."""


def environment(directory: Path) -> dict[str, str]:
    """What a process with a clock in this directory is started with."""
    return {VARIABLE: str(directory / "clock")}


def jump(directory: Path, seconds: float) -> None:
    """Set the clock there, from now on, so much ahead of the right time (or behind it)."""
    temporary = directory / "clock.new"
    temporary.write_text(repr(seconds))
    temporary.replace(directory / "clock")


def install() -> None:
    """Have this process read its time of day through the file that it was told of."""
    clock = Path(os.environ[VARIABLE])
    right_ns = time.time_ns

    def time_ns() -> int:
        try:
            return right_ns() + round(float(clock.read_text()) * 1e9)
        except FileNotFoundError:
            return right_ns()

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
