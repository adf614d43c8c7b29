"""How large a ZooKeeper server is, by its own words: all of it, whoever else uses it."""

from __future__ import annotations

import re

from kazoo import exceptions as kz

from spark_ledger.metadata.base import StoreSize
from spark_ledger.metadata.zookeeper.kazoo_api import Client


def ask_size(client: Client) -> StoreSize:
    """Ask the server. Blocks. Most servers tell a stranger their number of nodes only."""
    found = StoreSize(None, None)
    for command in (b"mntr", b"srvr"):
        try:
            found = parse_size(client.command(command))
        except (kz.KazooException, OSError):
            continue
        if found.nodes is not None:
            break
    return found


def parse_size(text: str) -> StoreSize:
    """The figures in an answer to ``mntr`` or ``srvr``; None where there is none."""
    nodes = re.search(r"^(?:zk_znode_count\s+|Node count:\s*)(\d+)$", text, re.MULTILINE)
    size = re.search(r"^zk_approximate_data_size\s+(\d+)$", text, re.MULTILINE)
    return StoreSize(int(nodes[1]) if nodes else None, int(size[1]) if size else None)
