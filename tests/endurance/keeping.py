"""A keeper with graces that a run can wait for, and the wait for the end of its work."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

from spark_ledger.local import LocalCluster
from spark_ledger.metadata.connect import open_store
from tests.endurance.judging import leftovers
from tests.endurance.looking import Sample, look

OWNER_GRACE_S: Final = 5.0
UNNAMED_GRACE_S: Final = 30.0
"""Three days by default, which no test waits for; longer than any task of the queries here."""

SETTLE_S: Final = 120.0
"""After the end: both graces, sessions that have to expire, and a busy machine."""


def keep(cluster: LocalCluster, *, unnamed_grace_s: float = UNNAMED_GRACE_S) -> None:
    """Start a keeper, which ends with the cluster."""
    argv = [sys.executable, "-m", "spark_ledger.cli", "keeper", "run", "--metadata", cluster.uri]
    argv += ["--owner-grace", str(OWNER_GRACE_S), "--unnamed-grace", str(unnamed_grace_s)]
    argv += ["--interval", "2"]
    cluster.processes.spawn("keeper", argv, log=cluster.directory / "keeper.log")


async def settle(uri: str, stream: str, *, seconds: float = 0.0, kills: int = 0) -> Sample:
    """Look until nothing is left, or SETTLE_S have passed; the last look, with these two numbers
    of the run."""
    store = await open_store(uri)
    deadline = time.monotonic() + SETTLE_S
    try:
        while True:
            sample = await look(store, stream, seconds, kills)
            if not leftovers(sample) or time.monotonic() > deadline:
                return sample
            await asyncio.sleep(1.0)
    finally:
        await store.close()
