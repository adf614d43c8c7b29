"""What the supervisor of a local ZooKeeper says of it: why nobody answers at a port here.

A notice is a small file that only its user can write, in a directory of that user. It explains an
error, and nothing depends on it: whatever is odd about it, there is none.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

_LOOPBACK: Final = ("127.0.0.1:", "localhost:")

NOTICE_BYTES_MAX: Final = 1_000
"""A few sentences."""


def notice_path(port: int) -> Path:
    """Where the notice about the server at this port of this machine is, if there is one."""
    return Path(tempfile.gettempdir()) / f"spark-ledger-{os.getuid()}" / f"zookeeper-{port}"


def read_notice(hosts: str) -> str:
    """What is said of the server at ``host:port``, with a leading ``"; "``; empty if nothing is."""
    if not hosts.startswith(_LOOPBACK) or "," in hosts:
        return ""
    path = notice_path(int(hosts.rpartition(":")[2]))
    try:
        found = path.parent.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
            return ""  # somebody else's
        with path.open("rb") as file:
            text = file.read(NOTICE_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
    return f"; {text.strip()}" if text.isprintable() and text.strip() else ""
