"""A cluster on this machine: a real ZooKeeper and real bookies as processes on loopback.

``LocalCluster`` lives as long as its ``with`` block; ``up``, ``down`` and ``status`` manage one
that runs on by itself (``ledger local up``). Loads neither pyspark nor kazoo.
"""

from __future__ import annotations

from spark_ledger.local.cluster import LocalCluster
from spark_ledger.local.detached import ClusterStatus, ProcessStatus, down, status, up

__all__ = ["LocalCluster", "ClusterStatus", "ProcessStatus", "down", "status", "up"]
