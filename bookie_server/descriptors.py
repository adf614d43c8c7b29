"""File descriptors of a bookie: the limit is raised, and connections leave enough for the storage.

Each connection is a descriptor, and clients open as many as they like. A bookie that has none left
cannot begin a journal file or open an entry log, and ends. So connections are capped at what the
storage does not need, and entry logs that are open for readers at what the journal does not.
"""

from __future__ import annotations

import resource
from typing import Final, NamedTuple

from spark_ledger.errors import ConfigurationError
from spark_ledger.limits.bookie import (
    BOOKIE_ADMIN_CONNECTIONS_MAX,
    BOOKIE_CONNECTIONS_MAX,
    BOOKIE_OPEN_LOGS_MAX,
)

_LIMIT_MAX: Final = 1 << 20
"""What Linux allows a process by default (fs.nr_open), also where the hard limit is "unlimited"."""

_OWN: Final = 64 + BOOKIE_ADMIN_CONNECTIONS_MAX
"""Libraries, event loops, listening sockets, the metadata store, locks, journal files, admin."""

_PER_DIRECTORY: Final = 8
"""The entry log that is written, one that is read while the index is, the index and its locks."""

_OPEN_LOGS_MIN: Final = 8
"""More than there are threads that read: each keeps the log that it is reading."""


class Share(NamedTuple):
    """How many descriptors are for what."""

    connections: int
    """Of clients, to the bookie's main port."""

    open_logs: int
    """Entry logs that stay open for readers, of each ledger directory."""


def raise_limit() -> int:
    """Raise the soft limit as far as the hard one allows; how many descriptors there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):  # fs.nr_open is lower than usual: what there is has to do
            return soft
    return wanted


def share_out(limit: int, ledger_directories: int) -> Share:
    """Share ``limit`` descriptors between clients and storage: half each, if there are few.

    Raises ConfigurationError if they are too few for a bookie.
    """
    fixed = _OWN + _PER_DIRECTORY * ledger_directories
    needed = 2 * (fixed + _OPEN_LOGS_MIN * ledger_directories)
    if limit < needed:
        raise ConfigurationError(
            f"this process may have {limit} files open, and a bookie with {ledger_directories} "
            f"ledger directories needs {needed}: raise the limit (ulimit -n, LimitNOFILE)"
        )
    open_logs = min(BOOKIE_OPEN_LOGS_MAX, (limit // 2 - fixed) // ledger_directories)
    kept = fixed + open_logs * ledger_directories
    return Share(min(limit - kept, BOOKIE_CONNECTIONS_MAX), open_logs)
