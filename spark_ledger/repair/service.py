"""Auditor and worker side by side, as the keeper's process and ``ledger autorecovery run`` do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.repair.auditor import Auditor, AuditorConfig
from spark_ledger.repair.worker import Worker, WorkerConfig


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """What both do."""

    auditor: AuditorConfig = field(default_factory=AuditorConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)


async def run_repair(
    client: LedgerClient,
    config: RepairConfig,
    stop: asyncio.Event,
    is_elected: Callable[[], bool] = lambda: True,
) -> None:
    """Repair until ``stop`` is set; audit while elected. Belongs to the loop of the client."""
    async with asyncio.TaskGroup() as group:
        group.create_task(Auditor(client, config.auditor).run(stop, is_elected))
        group.create_task(Worker(client, config.worker).run(stop))
