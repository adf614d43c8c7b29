"""Makes a process a bookie whose disk hangs: no sync ends while a file with its pid exists."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

_flag = Path(os.environ["HANGING_DISK_FLAGS"]) / str(os.getpid())
_fdatasync = os.fdatasync


def fdatasync(fd: Any) -> None:
    """As the system's, on a disk that hangs."""
    while _flag.exists():
        time.sleep(0.05)
    _fdatasync(fd)


os.fdatasync = fdatasync
