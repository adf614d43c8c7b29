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
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Sequence

from bookie_server.config import BookieConfig
from spark_ledger.errors import LedgerError, NotFoundError
from spark_ledger.keeper.nodes import ELECTED_PATH
from spark_ledger.limits.keeper import KEEPER_LOOK_S, KEEPER_STOP_S
from spark_ledger.metadata.base import MetadataStore

logger = logging.getLogger(__name__)


def command(config: BookieConfig) -> list[str]:
    """The command line of the keeper; the metadata URI may hold a password, and is not in it."""
    keeper = config.keeper
    return [
        *(sys.executable, "-m", "spark_ledger.cli", "keeper", "run"),
        *("--unless-elected", "--until-input-ends"),
        *("--owner-grace", str(keeper.owner_grace_s)),
        *("--unnamed-grace", str(keeper.unnamed_grace_s)),
        *("--dropped-grace", str(keeper.dropped_grace_s)),
        *("--interval", str(keeper.interval_s)),
        *("--audit-interval", str(keeper.audit_s)),
        *(["--sink-records", f"{keeper.sink_records_s}s"] if keeper.sink_records_s else []),
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
    ) -> None:
        self._store = store
        self._argv = argv
        self._environment = environment
        self._look_s = look_s
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the keeper, if it is this bookie's."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            # At random: the bookies of a cluster start at the same time.
            await asyncio.sleep(random.uniform(0.5, 1.5) * self._look_s)  # noqa: S311 - jitter
            try:
                if not await self._is_elected():
                    await self._keep()
            except (LedgerError, OSError) as error:
                logger.warning("no keeper is started now: %s", error)

    async def _is_elected(self) -> bool:
        try:
            await self._store.get(ELECTED_PATH)
        except NotFoundError:
            return False
        return True

    async def _keep(self) -> None:
        """Run a keeper until it ends: because another one was faster, or by an error."""
        process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=PIPE, stdout=DEVNULL, env={**os.environ, **self._environment}
        )
        logger.info("started a keeper, process %d", process.pid)
        try:
            code = await process.wait()
            logger.info("the keeper of this bookie ended with %d", code)
        finally:
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


def keeper_beside(config: BookieConfig, store: MetadataStore) -> Callable[[], Awaitable[None]]:
    """Begin to see to it that the cluster has a keeper, if the bookie is told to; how to stop."""
    if not config.keeper.enabled:
        return _nothing
    environment = {"SPARK_LEDGER_METADATA": config.metadata}
    return KeeperProcess(store, command(config), environment).stop


async def _nothing() -> None:
    pass
