"""A wall clock that can be set for one process: time of day is read with an offset from a file.

Only time that Python reads is moved. The product's only other clock is monotonic, and no operator
can set that.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "SPARK_LEDGER_TEST_CLOCK"
"""Environment variable that names the file: seconds to add, as text. Without the file, none."""


def environment(directory: Path) -> dict[str, str]:
    """The environment of a process with a clock in this directory."""
    return {VARIABLE: str(directory / "clock")}


def jump(directory: Path, seconds: float) -> None:
    """Set the clock in a directory so many seconds ahead, or back, from now on."""
    temporary = directory / "clock.new"
    temporary.write_text(repr(seconds))
    temporary.replace(directory / "clock")


def install() -> None:
    """Make this process read its time of day with the offset of its file."""
    clock = Path(os.environ[VARIABLE])
    right_ns = time.time_ns

    def time_ns() -> int:
        try:
            return right_ns() + round(float(clock.read_text()) * 1e9)
        except FileNotFoundError:
            return right_ns()

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
