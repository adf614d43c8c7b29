"""Finds out why a connection does not come back: ZooKeeper may have been restored from a backup.

A server refuses a session that has seen later changes than it has itself, and says so only in its
own log: it hangs up, and kazoo tries again for ever. A fresh session has seen nothing and is
accepted.
"""

from __future__ import annotations

import contextlib

from kazoo import exceptions as kz

from spark_ledger.limits.metadata import ZOOKEEPER_PROBE_TIMEOUT_S
from spark_ledger.metadata.uri import ZooKeeperAddress
from spark_ledger.metadata.zookeeper.kazoo_api import Client


def newest_change(client: Client, path: str) -> int | None:
    """The last change that the servers know, asked with a client that was not started before and
    is ended here; None if they do not answer. Blocks.

    After a sync: a server that only lags behind the others must not pass for an older store.
    """
    try:
        client.start(timeout=ZOOKEEPER_PROBE_TIMEOUT_S)
        # Not without a limit: what is asked while the connection is away waits until one is back,
        # and with it the thread, for which the process waits when it ends.
        for ask in (client.sync_async, client.exists_async):
            ask(path).get(timeout=ZOOKEEPER_PROBE_TIMEOUT_S)
        return client.last_zxid
    except (kz.KazooException, OSError, client.handler.timeout_exception):
        return None
    finally:
        for step in (client.stop, client.close):
            with contextlib.suppress(kz.KazooException, OSError):
                step()


def is_older(address: ZooKeeperAddress) -> str:
    """What to say of a store that is older than what was seen of it."""
    return (
        f"ZooKeeper at {address.hosts} is older than what this process has seen of it: restored "
        "from a backup? Run `ledger cluster restored`"
    )
