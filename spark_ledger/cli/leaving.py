"""Takes bookies out of the cluster, for the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_ledger.types import BookieId

if TYPE_CHECKING:
    from spark_ledger.repair.decommission import Left, Named


def take_out(
    uri: str,
    bookie_id: str,
    *,
    open_grace_s: float,
    bytes_per_s: float,
    told: Callable[[Named], None],
) -> Left:
    """See ``repair.decommission.decommission``."""
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.repair.decommission import decommission
    from spark_ledger.repair.worker import WorkerConfig

    async def run() -> Left:
        config = WorkerConfig(
            bytes_per_s=bytes_per_s, open_grace_s=open_grace_s, despite_losses=True
        )
        async with await LedgerClient.connect(uri) as client:
            return await decommission(client, BookieId(bookie_id), config, told=told)

    return asyncio.run(run())


def empty(
    uri: str,
    bookie_id: str,
    *,
    open_grace_s: float,
    bytes_per_s: float,
    told: Callable[[Named], None],
) -> None:
    """See ``repair.decommission.drain``."""
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.repair.decommission import drain
    from spark_ledger.repair.worker import WorkerConfig

    async def run() -> None:
        config = WorkerConfig(
            bytes_per_s=bytes_per_s, open_grace_s=open_grace_s, despite_losses=True
        )
        async with await LedgerClient.connect(uri) as client:
            await drain(client, BookieId(bookie_id), config, told=told)

    asyncio.run(run())


def let_stay(uri: str, bookie_id: str) -> bool:
    """See ``repair.decommission.stay``."""
    from spark_ledger.client.ledger_client import LedgerClient
    from spark_ledger.repair.decommission import stay

    async def run() -> bool:
        async with await LedgerClient.connect(uri) as client:
            return await stay(client, BookieId(bookie_id))

    return asyncio.run(run())
