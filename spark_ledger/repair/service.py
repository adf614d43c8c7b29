"""Auditor, checker and worker side by side: in the keeper's process, in ``ledger autorecovery``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_ledger.client.ledger_client import LedgerClient
from spark_ledger.errors import MetadataRestoredError
from spark_ledger.repair.auditor import Auditor, AuditorConfig
from spark_ledger.repair.checker import Checker, CheckerConfig
from spark_ledger.repair.closed import ClosedCheck
from spark_ledger.repair.worker import Worker, WorkerConfig


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """What all of them do."""

    auditor: AuditorConfig = field(default_factory=AuditorConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    checker: CheckerConfig = field(default_factory=CheckerConfig)


async def run_repair(
    client: LedgerClient,
    config: RepairConfig,
    stop: asyncio.Event,
    is_elected: Callable[[], bool] = lambda: True,
) -> None:
    """Repair until ``stop`` is set; audit and check while elected. On the loop of the client.

    Raises MetadataRestoredError: go on with a new process (rule K6).
    """
    checker = Checker(client, config.checker)
    closed = ClosedCheck(client, checker, config.checker)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(Auditor(client, config.auditor).run(stop, is_elected))
            group.create_task(checker.run(stop, is_elected))
            group.create_task(closed.run(stop, is_elected))
            group.create_task(Worker(client, config.worker).run(stop))
    except* MetadataRestoredError as restored:
        raise MetadataRestoredError(str(restored.exceptions[0])) from None
