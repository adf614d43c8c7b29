"""A process's time of day follows its file; its monotonic clock does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos import wall_clock

PROGRAM = """
import sys, time
from tests.chaos import wall_clock
wall_clock.install()
for _ in sys.stdin:
    print(time.time_ns(), time.time(), time.monotonic(), flush=True)
"""


def test_a_clock_jumps_and_comes_back(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | wall_clock.environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for seconds in (None, 86_400.0, -3600.0, 0.0):
            if seconds is not None:
                wall_clock.jump(tmp_path, seconds)
            before, steady = time.time(), time.monotonic()
            print(file=process.stdin, flush=True)
            nanoseconds, of_day, monotonic = process.stdout.readline().split()
            passed = time.monotonic() - steady
            shift = seconds or 0.0
            assert -0.01 <= int(nanoseconds) / 1e9 - before - shift <= passed + 0.01
            assert -0.01 <= float(of_day) - before - shift <= passed + 0.01
            assert -0.01 <= float(monotonic) - steady <= passed + 0.01
        process.stdin.close()
