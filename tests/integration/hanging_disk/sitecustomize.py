"""Makes a process a bookie whose disk hangs: no sync ends while a file with its pid exists.

What the file holds is the directory that hangs; all of them if it is empty.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

_flag = Path(os.environ["HANGING_DISK_FLAGS"]) / str(os.getpid())
_fdatasync = os.fdatasync


def _hangs(fd: Any) -> bool:
    try:
        directory = _flag.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return os.readlink(f"/proc/self/fd/{fd}").startswith(directory)


def fdatasync(fd: Any) -> None:
    """As the system's, on a disk that hangs."""
    while _hangs(fd):
        time.sleep(0.05)
    _fdatasync(fd)


os.fdatasync = fdatasync
