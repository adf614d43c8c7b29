"""The keeper as a process beside a bookie: bookies look whether a cluster has one, and start it.

It is a process of its own, so that what it does costs the bookie's service no turn of its loop. It
ends with the bookie: its standard input is a pipe that nobody else holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bookie_server.config import AutorecoverySettings, BookieConfig
from bookie_server.repair_figures import read_repair_figures
from bookie_server.service.metrics import KeeperFigures, RepairFigures, ServiceMetrics
from spark_ledger.amounts import duration_argument, size_argument
from spark_ledger.errors import LedgerError, NotFoundError
from spark_ledger.keeper.nodes import (
    ELECTED_PATH,
    AuditState,
    Done,
    Elected,
    Found,
    SweptNode,
    read_audit,
    read_elected,
    read_packed,
    read_state,
    read_swept,
)
from spark_ledger.limits.keeper import KEEPER_FAILED_PAUSE_S, KEEPER_LOOK_S, KEEPER_STOP_S
from spark_ledger.metadata.base import MetadataStore
from spark_ledger.tasks import cancel

logger = logging.getLogger(__name__)

HOST: Final = socket.gethostname()
FAILED: Final = 1
"""Exit code of a keeper that ended by an error, such as that it reaches no bookie."""
WRONG_USAGE: Final = 2
"""Exit code of ``ledger`` that no other try changes: an option or the configuration is wrong."""


def command(config: BookieConfig) -> list[str]:
    """The command line of the keeper; the metadata URI may hold a password, and is not in it."""
    keeper, sinks_s = config.keeper, config.keeper.sink_records_s
    return [
        *(sys.executable, "-m", "spark_ledger.cli", "keeper", "run"),
        *("--unless-elected", "--until-input-ends"),
        *("--owner-grace", str(keeper.owner_grace_s)),
        *("--unnamed-grace", str(keeper.unnamed_grace_s)),
        *("--dropped-grace", str(keeper.dropped_grace_s)),
        *("--replaced-grace", str(keeper.replaced_grace_s)),
        *("--interval", str(keeper.interval_s)),
        *("--audit-interval", str(keeper.audit_s)),
        *("--optimize-interval", str(keeper.optimize_s)),
        *("--optimize-rate", size_argument(keeper.optimize_bytes_per_s)),
        *(["--sink-records", duration_argument(sinks_s)] if sinks_s else []),
        *_autorecovery(config.autorecovery),
    ]


def _autorecovery(settings: AutorecoverySettings) -> list[str]:
    if not settings.enabled:
        return ["--no-autorecovery"]
    return [
        *("--lost-bookie-delay", duration_argument(settings.lost_bookie_delay_s)),
        *("--open-ledger-grace", duration_argument(settings.open_ledger_grace_s)),
        *("--repair-rate", size_argument(settings.bytes_per_s)),
        *("--repair-source-rate", size_argument(settings.source_bytes_per_s)),
    ]


class KeeperProcess:
    """Sees to it that some bookie of the cluster runs the keeper. Belongs to the service thread."""

    def __init__(
        self,
        store: MetadataStore,
        argv: Sequence[str],
        environment: dict[str, str],
        *,
        look_s: float = KEEPER_LOOK_S,
        failed_pause_s: float = KEEPER_FAILED_PAUSE_S,
    ) -> None:
        self._store = store
        self._failed_pause_s = failed_pause_s
        self._argv = argv
        self._environment = environment
        self._look_s = look_s
        self._pid: int | None = None
        """Of the process that runs here, which may or may not be elected."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def is_here(self, elected: Elected | None) -> bool:
        """Whether the one that is elected is the process beside this bookie."""
        return elected is not None and (elected.host, elected.pid) == (HOST, self._pid)

    async def stop(self) -> None:
        """End the keeper, if it is this bookie's."""
        await cancel(self._task)

    async def _run(self) -> None:
        while True:
            # At random: the bookies of a cluster start at the same time.
            await asyncio.sleep(random.uniform(0.5, 1.5) * self._look_s)  # noqa: S311 - jitter
            try:
                if not await self._is_elected() and await self._keep() == FAILED:
                    await asyncio.sleep(self._failed_pause_s)
            except (LedgerError, OSError) as error:
                logger.warning("no keeper is started now: %s", error)

    async def _is_elected(self) -> bool:
        try:
            await self._store.get(ELECTED_PATH)
        except NotFoundError:
            return False
        return True

    async def _keep(self) -> int:
        """Run a keeper until it ends: because another one was faster, or by an error; its exit
        code."""
        process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=PIPE, stdout=DEVNULL, env={**os.environ, **self._environment}
        )
        logger.info("started a keeper, process %d", process.pid)
        self._pid = process.pid
        try:
            code = await process.wait()
            if code == WRONG_USAGE:
                logger.error(
                    "the keeper of this bookie ended with %d, since it refuses its settings: it "
                    "recovers and repairs nothing. What is wrong stands above",
                    code,
                )
            else:
                logger.info("the keeper of this bookie ended with %d", code)
            return code
        finally:
            self._pid = None
            if process.returncode is None:
                await asyncio.shield(_end(process))


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(KEEPER_STOP_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


class Watched:
    """What the keeper of the cluster has written down, read again now and then, for the metrics.

    Of the cluster's keeper, wherever it runs: it has no port of its own.
    """

    def __init__(
        self, store: MetadataStore, process: KeeperProcess, *, look_s: float = KEEPER_LOOK_S
    ) -> None:
        self._store = store
        self._process = process
        self._look_s = look_s
        self.figures: KeeperFigures | None = None
        """None before the first look."""
        self.repair: RepairFigures | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        await cancel(self._task)
        await self._process.stop()

    async def _run(self) -> None:
        while True:
            try:
                self.figures = await self._look()
                self.repair = await read_repair_figures(self._store)
            except LedgerError as error:  # the numbers stay as they were, and their time says so
                logger.info("the keeper's numbers were not read: %s", error)
            await asyncio.sleep(self._look_s)

    async def _look(self) -> KeeperFigures:
        elected, state = await read_elected(self._store), await read_state(self._store)
        swept, audited = await read_swept(self._store), await read_audit(self._store)
        packed = await read_packed(self._store)
        done, found = (state.value.done, state.value.found) if state else (Done(), Found())
        waits = swept.value if swept else SweptNode()
        audit = audited.value if audited else AuditState()
        return KeeperFigures(
            elected=elected is not None,
            here=self._process.is_here(elected),
            passed_at=state.value.time_ms / 1000 if state else 0.0,
            open=found.open,
            open_of_the_dead=found.open_of_the_dead,
            unnamed=found.unnamed,
            unnamed_of_the_dead=found.unnamed_of_the_dead,
            locked=found.locked,
            failing=found.failing,
            reclaimable_commits=waits.reclaimable_commits,
            reclaimable_bytes=waits.reclaimable_bytes,
            unlisted=audit.last.ledgers,
            audited_at=audit.ended_ms / 1000,
            recovered=done.recovered,
            deleted=done.deleted,
            reclaimed=done.reclaimed,
            streams_finished=done.streams_finished,
            audit_deleted=audit.deleted,
            packs=packed.value.packs if packed else 0,
            packed_commits=packed.value.commits if packed else 0,
            packed_bytes=packed.value.copied_bytes if packed else 0,
        )


def keeper_beside(
    config: BookieConfig, store: MetadataStore, metrics: ServiceMetrics
) -> Callable[[], Awaitable[None]]:
    """Begin to see to it that the cluster has a keeper, if the bookie is told to; how to stop."""
    if not config.keeper.enabled:
        return _nothing
    environment = {"SPARK_LEDGER_METADATA": config.metadata}
    watched = Watched(store, KeeperProcess(store, command(config), environment))
    metrics.keeper = lambda: watched.figures
    metrics.repair = lambda: watched.repair
    return watched.stop


async def _nothing() -> None:
    pass
