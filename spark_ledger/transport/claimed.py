"""Which process of a family speaks to bookies: the first one, as gRPC does not survive a fork.

Loads nothing of gRPC, so that a process can be refused before it has cause to.
"""

from __future__ import annotations

import os

from spark_ledger.errors import ConfigurationError, LedgerClosedError

_used_in_process: int | None = None
"""The first process that made a transport; its forked children inherit the value."""


def claim_process() -> int:
    """The id of this process, which may have transports from now on.

    Raises ConfigurationError in a forked child of a process that has used gRPC, or may have.
    """
    global _used_in_process
    if _used_in_process is None:
        _used_in_process = os.getpid()
    elif _used_in_process != os.getpid():
        raise ConfigurationError(
            f"process {os.getpid()} was forked from process {_used_in_process} after that had "
            "connected to a cluster, and gRPC does not survive a fork: connect only after the "
            'fork, or start processes with multiprocessing.get_context("spawn")'
        )
    return _used_in_process


def check_usable(process_id: int, *, closed: bool) -> None:
    """Raises LedgerClosedError if a transport is closed, or is that of another process."""
    if closed:
        raise LedgerClosedError("the transport is closed: open a new client")
    if os.getpid() != process_id:
        raise LedgerClosedError(
            f"the transport was made in process {process_id} and is used in process "
            f"{os.getpid()}: connections do not survive a fork"
        )
